import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { Sandbox, SandboxNotFoundError, TimeoutError } from 'e2b'
import {
  assertNear,
  check,
  eventually,
  isGone,
  listAll,
  marker,
  open,
  rawInfo,
  rejectsAs,
  secondsUntil,
  UNKNOWN,
} from './support.js'

describe('timeout', () => {
  check('setTimeout extends and shortens', async (t) => {
    const sandbox = await open(t, { timeoutMs: 100_000 })
    for (const seconds of [600, 50, 3600]) {
      await sandbox.setTimeout(seconds * 1000)
      assertNear(secondsUntil((await sandbox.getInfo()).endAt), seconds, 5, 'seconds left')
    }
    assert.equal(await sandbox.isRunning(), true)
  })

  check('setTimeout 0 ends the sandbox now', async (t) => {
    const sandbox = await open(t)
    await sandbox.setTimeout(0)
    await eventually('not running', async () => !(await sandbox.isRunning()))
    await eventually('not found', () => isGone(sandbox))
  })

  check('a sandbox is gone at its timeout', async (t) => {
    const metadata = { run: marker() }
    const sandbox = await open(t, { timeoutMs: 60_000, metadata })
    assert.equal((await sandbox.commands.run('echo alive')).stdout, 'alive\n')
    await sandbox.setTimeout(3000)
    await eventually('not running', async () => !(await sandbox.isRunning()))
    await eventually('not found', () => isGone(sandbox))
    await rejectsAs(sandbox.getInfo(), SandboxNotFoundError)
    await rejectsAs(sandbox.commands.run('echo dead'), SandboxNotFoundError)
    await rejectsAs(sandbox.files.read('/etc/hostname'), TimeoutError)
    await rejectsAs(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
    assert.deepEqual(await listAll({ query: { metadata } }), [])
    // A kill joins the end that is still under way, and says so.
    await eventually('no more to kill', async () => (await sandbox.kill()) === false)
  })

  check('a command in flight ends with a TimeoutError when the sandbox is killed', async (t) => {
    const sandbox = await open(t)
    const handle = await sandbox.commands.run('sleep 80', { background: true })
    await sandbox.kill()
    await rejectsAs(handle.wait(), TimeoutError)
  })

  check('connect does not shorten', async (t) => {
    const sandbox = await open(t, { timeoutMs: 600_000 })
    const { endAt } = await rawInfo(sandbox)
    for (const opts of [{ timeoutMs: 10_000 }, {}]) {
      await Sandbox.connect(sandbox.sandboxId, opts)
      assert.equal((await rawInfo(sandbox)).endAt, endAt)
    }
    await sandbox.connect({ timeoutMs: 1000 })
    assert.equal((await rawInfo(sandbox)).endAt, endAt)
  })

  check('connect extends', async (t) => {
    const sandbox = await open(t, { timeoutMs: 60_000 })
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 900_000 })
    assertNear(secondsUntil((await sandbox.getInfo()).endAt), 900, 5, 'seconds left')
  })

  check('kill: true, then false', async (t) => {
    const sandbox = await open(t)
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.kill(), false)
    assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  })

  check('an unknown sandbox', async () => {
    assert.equal(await Sandbox.kill(UNKNOWN), false)
    await rejectsAs(Sandbox.connect(UNKNOWN), SandboxNotFoundError)
    await rejectsAs(Sandbox.setTimeout(UNKNOWN, 60_000), SandboxNotFoundError)
    await rejectsAs(Sandbox.getInfo(UNKNOWN), SandboxNotFoundError)
    await rejectsAs(Sandbox.pause(UNKNOWN), SandboxNotFoundError)
  })
})
