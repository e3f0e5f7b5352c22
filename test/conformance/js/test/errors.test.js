import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { AuthenticationError, Sandbox, SandboxError } from 'e2b'
import { assertNear, check, open, rawInfo, rejection, rejectsAs, request, secondsUntil, statusOf, UNKNOWN } from './support.js'

const HOUR = 3_600_000

// A sandbox that should not have been created is killed, then the test fails.
async function createFails(...args) {
  return rejection(
    Sandbox.create(...args).then(async (sandbox) => {
      await sandbox.kill()
      return sandbox.sandboxId
    }),
  )
}

describe('errors', () => {
  check('a wrong API key is an AuthenticationError everywhere', async (t) => {
    const sandbox = await open(t)
    const opts = { apiKey: `e2b_${'0'.repeat(40)}` }
    assert.equal((await createFails(opts)).name, 'AuthenticationError')
    await rejectsAs(Sandbox.list(opts).nextItems(), AuthenticationError)
    await rejectsAs(Sandbox.getInfo(sandbox.sandboxId, opts), AuthenticationError)
    await rejectsAs(Sandbox.kill(sandbox.sandboxId, opts), AuthenticationError)
    await rejectsAs(Sandbox.kill(UNKNOWN, opts), AuthenticationError)
    await rejectsAs(Sandbox.connect(sandbox.sandboxId, opts), AuthenticationError)
    assert.equal(await sandbox.isRunning(), true)
  })

  check('an unknown template is a SandboxError with 404', async () => {
    const err = await createFails('no-such-template')
    assert.equal(err.constructor.name, SandboxError.name, err.stack)
    assert.match(err.message, /^404: .*no-such-template/)
    assert.equal(statusOf(err), 404)
  })

  for (const timeoutMs of [0, -1000]) {
    check(`a timeout of ${timeoutMs} ms is refused`, async () => {
      const err = await createFails({ timeoutMs })
      assert.equal(err.constructor.name, SandboxError.name, err.stack)
      assert.equal(statusOf(err), 400)
      assert.match(err.message, /timeout/i)
    })
  }

  check('a timeout beyond 24 hours is refused, naming the limit', async () => {
    const err = await createFails({ timeoutMs: 24 * HOUR + 1000 })
    assert.equal(err.constructor.name, SandboxError.name, err.stack)
    assert.equal(statusOf(err), 400)
    assert.match(err.message, /24 hours/)
  })

  check('a timeout of 24 hours is granted in full', async (t) => {
    const sandbox = await open(t, { timeoutMs: 24 * HOUR })
    assertNear(secondsUntil((await sandbox.getInfo()).endAt), 24 * 3600, 10, 'seconds left')
  })

  check('setTimeout and connect beyond 24 hours are refused and change nothing', async (t) => {
    const sandbox = await open(t)
    const { endAt } = await rawInfo(sandbox)
    for (const call of [
      () => sandbox.setTimeout(25 * HOUR),
      () => sandbox.setTimeout(-1000),
      () => Sandbox.connect(sandbox.sandboxId, { timeoutMs: 25 * HOUR }),
      () => Sandbox.connect(sandbox.sandboxId, { timeoutMs: -1000 }),
    ]) {
      const err = await rejection(call())
      assert.equal(statusOf(err), 400, err.stack)
    }
    assert.match((await rejection(sandbox.setTimeout(25 * HOUR))).message, /24 hours/)
    assert.equal((await rawInfo(sandbox)).endAt, endAt)
  })

  check('a sandbox does not answer without its token', async (t) => {
    const sandbox = await open(t)
    for (const headers of [{}, { 'X-Access-Token': 'wrong' }]) {
      const res = await request(sandbox, 49983, '/files?path=/etc/hostname', { headers })
      assert.equal(res.status, 401)
      assert.equal((await res.json()).code, 401)
    }
  })
})
