// The first five timelines of lifecycle.md 12, with seconds in place of
// minutes. The native API says what the SDK does not: generation, cause, reason.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { Sandbox, SandboxNotFoundError } from 'e2b'
import { check, eventually, open, rejectsAs, stateOf, v1 } from './support.js'

const PAUSES = { onTimeout: 'pause', autoResume: true }

// What a busy machine may add to a deadline.
const MAX_LATENESS_MS = 60_000

// By how much the clock inside may differ.
const MAX_CLOCK_ERROR_MS = 500

const startedAt = async (sandbox) => (await sandbox.getInfo()).startedAt.getTime()
const patch = (sandbox, body) => v1(sandbox, '', { method: 'PATCH', body: JSON.stringify(body) })

// checkAfter wants that something happened when it was due: never before, and
// not much later.
function checkAfter(what, due, got) {
  const late = got - due
  assert.ok(late >= 0 && late <= MAX_LATENESS_MS, `${what} ${late} ms after it was due`)
}

// paused waits until the sandbox has been paused in the generation, and returns
// when that began. The SDK shows it as paused before the commit, when a request
// still cancels the pause.
async function paused(sandbox, cause, generation) {
  await eventually('paused', async () => (await v1(sandbox)).state === 'paused', { within: 20_000 })
  assert.equal(await stateOf(sandbox), 'paused')
  const life = await v1(sandbox, '/lifecycle')
  const pausing = life.transitions.find((e) => e.type === 'pausing')
  assert.deepEqual([life.generation, pausing.generation, pausing.cause], [generation, generation, cause])
  return Date.parse(pausing.time)
}

// awake wants that the sandbox runs in the generation, and was granted a time.
async function awake(sandbox, generation, grantedMs, autoResume = true) {
  const life = await v1(sandbox, '/lifecycle')
  assert.deepEqual([life.state, life.generation], ['running', generation])
  const info = await v1(sandbox)
  assert.equal(Date.parse(info.endAt) - Date.parse(info.startedAt), grantedMs)
  assert.equal(life.clocks.find((c) => c.clock === 'timeout').deadline, info.endAt)
  assert.equal((await sandbox.getInfo()).endAt.getTime(), Date.parse(info.endAt))
  assert.equal(info.settings.autoResume, autoResume)
}

describe('timelines', { concurrency: true }, () => {
  check('two minutes', async (t) => {
    const sandbox = await open(t, { timeoutMs: 2000, lifecycle: PAUSES })
    const due = await startedAt(sandbox)
    checkAfter('paused', due + 2000, await paused(sandbox, 'timeout', 1))
    assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
    await awake(sandbox, 2, 300_000)

    const asked = Date.now()
    await sandbox.setTimeout(1000)
    checkAfter('paused again', asked + 1000, await paused(sandbox, 'timeout', 2))
    assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
    await awake(sandbox, 3, 300_000)
  })

  check('one hour', async (t) => {
    const sandbox = await open(t, { timeoutMs: 3_600_000, lifecycle: PAUSES })
    await awake(sandbox, 1, 3_600_000)
    await sandbox.setTimeout(1000)
    await paused(sandbox, 'timeout', 1)
    assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
    await awake(sandbox, 2, 3_600_000)
  })

  check('background job', async (t) => {
    const sandbox = await open(t, { lifecycle: PAUSES })
    const job = await sandbox.commands.run('SECONDS=0; while ((SECONDS < 8)); do :; done; date +%s%3N >ended', {
      background: true,
      timeoutMs: 0,
    })
    await job.disconnect()
    await patch(sandbox, { idleTimeoutSeconds: 2 })
    await eventually('the job counts as work', async () => {
      const { busy, holds } = await v1(sandbox, '/lifecycle')
      return busy && holds.some((h) => h.kind === 'process' && h.counts)
    })
    const pausedAt = await paused(sandbox, 'idle', 1)
    await patch(sandbox, { idleTimeoutSeconds: 0 })
    const ended = Number(await sandbox.files.read('ended')) // wakes it
    checkAfter('idle', ended + 2000 - MAX_CLOCK_ERROR_MS, pausedAt)
    await awake(sandbox, 2, 300_000)
  })

  check('live deadline', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'kill' } })
    const asked = Date.now()
    await sandbox.setTimeout(8000)
    await patch(sandbox, { idleTimeoutSeconds: 2 })
    const { tombstone, generation, transitions } = await eventually(
      'ended',
      async () => {
        const life = await v1(sandbox, '/lifecycle')
        return life.state === 'terminated' && life
      },
      { within: 20_000 },
    )
    assert.deepEqual([tombstone.reason, generation], ['TimeoutExpired', 1])
    checkAfter('ended', asked + 8000, Date.parse(tombstone.at))
    assert.deepEqual(transitions.filter((e) => e.cause === 'idle'), [])
    await rejectsAs(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
  })

  check('manual only', async (t) => {
    const sandbox = await open(t, { timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: false } })
    checkAfter('paused', (await startedAt(sandbox)) + 2000, await paused(sandbox, 'timeout', 1))
    await rejectsAs(sandbox.commands.run('echo asleep'), SandboxNotFoundError)
    const asleep = await v1(sandbox, '/lifecycle')
    assert.deepEqual([asleep.state, asleep.generation], ['paused', 1])
    await sandbox.connect({ timeoutMs: 60_000 })
    await awake(sandbox, 2, 60_000, false)
    assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
  })
})
