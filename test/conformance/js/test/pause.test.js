import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { Sandbox, SandboxNotFoundError, TimeoutError } from 'e2b'
import {
  assertNear,
  check,
  counterRuns,
  eventually,
  listAll,
  marker,
  open,
  rejectsAs,
  request,
  scratch,
  secondsUntil,
  startCounter,
  stateOf,
} from './support.js'

const BOOT_ID = '/proc/sys/kernel/random/boot_id'

const pausedBy = (sandbox, within) =>
  eventually('paused', async () => (await stateOf(sandbox)) === 'paused', { within })

describe('pause', () => {
  check('by its former names', async (t) => {
    const sandbox = await open(t)
    assert.equal(await sandbox.betaPause(), true)
    assert.equal(await Sandbox.betaPause(sandbox.sandboxId), false)
    assert.equal((await Sandbox.getFullInfo(sandbox.sandboxId)).state, 'paused')
  })

  check('true, then false; not running, and shown as paused', async (t) => {
    const metadata = { run: marker() }
    const sandbox = await open(t, { metadata })
    assert.equal(await sandbox.pause(), true)
    assert.equal(await sandbox.pause(), false)
    assert.equal(await sandbox.isRunning(), false)
    const info = await sandbox.getInfo()
    assert.equal(info.state, 'paused')
    assert.deepEqual(info.metadata, metadata)
    const listed = await listAll({ query: { metadata } })
    assert.deepEqual(listed.map((s) => [s.sandboxId, s.state]), [[sandbox.sandboxId, 'paused']])
    await rejectsAs(sandbox.setTimeout(60_000), SandboxNotFoundError)
  })

  check('connect brings back processes, memory, files and envs', async (t) => {
    const sandbox = await open(t, { envs: { KEPT: 'kept' }, metadata: { run: marker() } })
    const path = scratch()
    await sandbox.files.write(path, 'still here')
    const bootId = await sandbox.files.read(BOOT_ID)
    const counter = await startCounter(sandbox)

    await sandbox.pause()
    const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 100_000 })

    assert.equal(resumed.sandboxId, sandbox.sandboxId)
    assert.equal(await resumed.isRunning(), true)
    const info = await resumed.getInfo()
    assert.equal(info.state, 'running')
    assertNear(secondsUntil(info.endAt), 100, 8, 'seconds left')
    assert.equal(await resumed.files.read(path), 'still here')
    assert.equal(await resumed.files.read(BOOT_ID), bootId)
    assert.equal((await resumed.commands.run('echo $KEPT')).stdout, 'kept\n')
    await counterRuns(resumed, counter)
    assert.ok((await resumed.commands.list()).some((p) => p.pid === counter.pid))
    await resumed.commands.run(`kill -0 ${counter.pid}`)
  })

  check('the object from before the pause keeps working', async (t) => {
    const sandbox = await open(t)
    await sandbox.pause()
    await sandbox.connect()
    assert.equal((await sandbox.commands.run('echo again')).stdout, 'again\n')
    await sandbox.files.write('/tmp/again', 'written')
    assert.equal(await sandbox.files.read('/tmp/again'), 'written')
    const second = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(second.envdAccessToken, sandbox.envdAccessToken)
  })

  check('a background command is reached again by its pid', async (t) => {
    const sandbox = await open(t)
    const gate = scratch()
    const first = await sandbox.commands.run(`until [ -e ${gate} ]; do sleep 0.05; done; echo after; exit 5`, {
      background: true,
      timeoutMs: 0,
    })
    await first.disconnect()
    await sandbox.pause()
    await sandbox.connect()
    const second = await sandbox.commands.connect(first.pid)
    await sandbox.files.write(gate, '')
    await assert.rejects(second.wait(), { name: 'CommandExitError', exitCode: 5, stdout: 'after\n' })
  })

  check('a command in flight ends with an error, and nothing hangs', async (t) => {
    const sandbox = await open(t)
    const handle = await sandbox.commands.run('sleep 80', { background: true })
    await sandbox.pause()
    await rejectsAs(handle.wait(), TimeoutError)
  })

  check('three cycles', async (t) => {
    const sandbox = await open(t)
    const counter = await startCounter(sandbox)
    await counter.handle.disconnect()
    for (let cycle = 1; cycle <= 3; cycle++) {
        await sandbox.files.write(`/tmp/cycle-${cycle}`, String(cycle))
      assert.equal(await sandbox.pause(), true)
      assert.equal(await stateOf(sandbox), 'paused')
      await sandbox.connect()
      await counterRuns(sandbox, counter)
    }
    const { stdout } = await sandbox.commands.run('cat /tmp/cycle-1 /tmp/cycle-2 /tmp/cycle-3')
    assert.equal(stdout, '123')
  })

  check('a paused sandbox can be killed', async (t) => {
    const sandbox = await open(t)
    await sandbox.pause()
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.kill(), false)
    await rejectsAs(sandbox.getInfo(), SandboxNotFoundError)
    await rejectsAs(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
  })
})

describe('pause at the timeout', () => {
  check('onTimeout pause: paused instead of killed, and connect resumes', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause' } })
    await sandbox.files.write('/tmp/kept', 'kept')
    await sandbox.setTimeout(1000)
    await pausedBy(sandbox, 30_000)
    assert.equal(await sandbox.isRunning(), false)
    await sandbox.connect()
    assert.equal(await stateOf(sandbox), 'running')
    assert.equal(await sandbox.files.read('/tmp/kept'), 'kept')
  })

  check('autoResume: a command wakes the sandbox', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    const counter = await startCounter(sandbox)
    await counter.handle.disconnect()
    await sandbox.setTimeout(1000)
    await pausedBy(sandbox, 30_000)
    assert.equal((await sandbox.commands.run('echo awake')).stdout, 'awake\n')
    const info = await sandbox.getInfo()
    assert.equal(info.state, 'running')
    assertNear(secondsUntil(info.endAt), 300, 15, 'seconds left')
    await counterRuns(sandbox, counter)
  })

  check('autoResume: a plain request to a port wakes the sandbox', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    const server = await sandbox.commands.run('python3 -m http.server 8000', {
      background: true,
      timeoutMs: 0,
      cwd: '/usr/share',
    })
    await server.disconnect()
    const get = async () => {
      const res = await request(sandbox, 8000, '/')
      await res.arrayBuffer()
      return res.status
    }
    await eventually('server reachable', async () => (await get()) === 200)
    await sandbox.pause()
    assert.equal(await stateOf(sandbox), 'paused')
    assert.equal(await get(), 200)
    assert.equal(await stateOf(sandbox), 'running')
  })

  check('autoResume: isRunning reads whether it runs, and does not wake it', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    assert.equal(await sandbox.isRunning(), true)
    await sandbox.pause()
    assert.equal(await sandbox.isRunning(), false)
    assert.equal(await stateOf(sandbox), 'paused')
  })

  check('autoResume off: traffic fails and the sandbox stays paused', async (t) => {
    const sandbox = await open(t, { timeoutMs: 3000, lifecycle: { onTimeout: 'pause', autoResume: false } })
    await pausedBy(sandbox, 30_000)
    await rejectsAs(sandbox.commands.run('echo asleep'), SandboxNotFoundError)
    await rejectsAs(sandbox.files.read('/etc/hostname'), TimeoutError)
    assert.equal(await sandbox.isRunning(), false)
    const res = await request(sandbox, 8000, '/')
    assert.equal(res.status, 502)
    const { message, ...rest } = await res.json()
    assert.match(message, /^The sandbox was not found running, because it is asleep: .*resume it with connect/)
    assert.equal(rest.sandboxId, sandbox.sandboxId)
    assert.deepEqual([rest.code, rest.error_code, rest.reason], [502, 'not_resumable', 'timeout'])
    assert.ok(new Date(rest.pausedAt) <= new Date())
    assert.equal(await stateOf(sandbox), 'paused')
  })
})
