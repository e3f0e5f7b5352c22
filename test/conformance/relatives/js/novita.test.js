import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  Sandbox,
  SandboxError,
  SandboxNotFoundError,
  TimeoutError,
  Volume,
} from 'novita-sandbox'
import { cases, offer } from './report.js'

offer('novita-sandbox')
const check = cases('Novita')

// A sandbox left behind by a killed test run disappears by itself.
const timeoutMs = 300_000

let box
before(async () => {
  box = await Sandbox.create({ timeoutMs, envs: { GREETING: 'hello' }, metadata: { of: 'novita' } })
})
after(() => box?.kill())

// open creates a sandbox for one case.
async function open(t, opts) {
  const sandbox = await Sandbox.create({ timeoutMs, ...opts })
  t.after(() => Sandbox.kill(sandbox.sandboxId))
  return sandbox
}

const scratch = () => `/tmp/t-${randomUUID()}`

// refused wants a plain SandboxError: for a sandbox that is not there, the SDK has
// a class of its own.
async function refused(call, status, ...names) {
  await assert.rejects(call, (err) => {
    assert.equal(err.constructor, SandboxError, err.stack)
    assert.match(err.message, new RegExp(`^${status}: `))
    for (const name of names) assert.ok(err.message.includes(name), err.message)
    return true
  })
}

async function eventually(what, probe) {
  for (const end = Date.now() + 30_000; ; await sleep(100)) {
    const value = await probe()
    if (value) return value
    assert.ok(Date.now() < end, `${what}: not so after 30 s`)
  }
}

check('info and lists', async (t) => {
  const info = await box.getInfo()
  assert.deepEqual([info.sandboxId, info.name, info.state, info.metadata], [box.sandboxId, 'base', 'running', { of: 'novita' }])
  const mark = randomUUID()
  const other = await open(t, { metadata: { mark } })
  const found = await Sandbox.list({ query: { metadata: { mark } } }).nextItems()
  assert.deepEqual(found.map((s) => s.sandboxId), [other.sandboxId])
})

check('commands', async () => {
  assert.equal(await box.isRunning(), true)
  const { stdout, stderr } = await box.commands.run('echo $GREETING; id -un; echo err >&2')
  assert.deepEqual([stdout, stderr], ['hello\nuser\n', 'err\n'])
  assert.equal((await box.commands.run('echo $ONE', { envs: { ONE: '1' }, user: 'root', cwd: '/' })).stdout, '1\n')
  await assert.rejects(box.commands.run('exit 3'), (err) => err instanceof CommandExitError && err.exitCode === 3)
  const handle = await box.commands.run('cat', { background: true, stdin: true })
  await box.commands.sendStdin(handle.pid, 'typed\n')
  await eventually('the input comes back', () => handle.stdout === 'typed\n')
  assert.ok((await box.commands.list()).some((p) => p.pid === handle.pid))
  assert.equal(await handle.kill(), true)
  await assert.rejects(box.commands.run('sleep 60', { timeoutMs: 1000 }), TimeoutError)
})

check('files', async () => {
  const path = scratch()
  assert.equal(await box.files.makeDir(path), true)
  assert.equal((await box.files.write(`${path}/a`, 'one')).path, `${path}/a`)
  await box.files.write(`${path}/b`, new Uint8Array([0, 255]).buffer)
  assert.equal(await box.files.read(`${path}/a`), 'one')
  assert.deepEqual([...(await box.files.read(`${path}/b`, { format: 'bytes' }))], [0, 255])
  assert.deepEqual((await box.files.list(path)).map((e) => e.name).sort(), ['a', 'b'])
  await box.files.rename(`${path}/a`, `${path}/c`)
  assert.equal(await box.files.exists(`${path}/a`), false)
  await box.files.remove(`${path}/c`)
  await assert.rejects(box.files.read(`${path}/c`), FileNotFoundError)
})

check('watch and terminal', async () => {
  const path = scratch()
  await box.files.makeDir(path)
  const events = []
  const watch = await box.files.watchDir(path, (event) => events.push(event.name))
  await box.files.write(`${path}/new`, 'x')
  await eventually('an event', () => events.includes('new'))
  await watch.stop()
  let shown = ''
  const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => (shown += new TextDecoder().decode(data)) })
  await box.pty.sendInput(terminal.pid, new TextEncoder().encode('echo $((6*7))$((6*7)); exit\n'))
  await terminal.wait()
  assert.match(shown, /4242/)
})

check('the timeout moves', async () => {
  const before = (await box.getInfo()).endAt
  await box.setTimeout(timeoutMs + 300_000)
  const moved = (await box.getInfo()).endAt - before
  assert.ok(moved > 240_000 && moved < 900_000, `${moved} ms`)
  await Sandbox.setTimeout(box.sandboxId, timeoutMs)
})

check('pause keeps memory and connect wakes', async (t) => {
  const sandbox = await open(t)
  const process = await sandbox.commands.run('exec sleep 600', { background: true, timeoutMs: 0 })
  process.wait().catch(() => {}) // the pause ends the stream
  await sandbox.files.write('/tmp/kept', 'kept')
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal((await sandbox.getInfo()).state, 'paused')
  assert.equal(await sandbox.isRunning(), false)
  await sandbox.connect({ timeoutMs })
  assert.equal(await sandbox.isRunning(), true)
  assert.equal(await sandbox.files.read('/tmp/kept'), 'kept')
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === process.pid))
})

check('connect by id', async () => {
  const path = scratch()
  const other = await Sandbox.connect(box.sandboxId)
  assert.equal(other.sandboxId, box.sandboxId)
  assert.equal(await other.isRunning(), true)
  await other.files.write(path, 'by id')
  assert.equal((await other.commands.run(`cat ${path}`)).stdout, 'by id')
  assert.equal(await box.files.read(path), 'by id')
})

check('a request wakes', async (t) => {
  const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  await sandbox.files.write('/tmp/kept', 'kept')
  const byId = await Sandbox.connect(sandbox.sandboxId)
  for (const wakes of [sandbox, byId]) {
    await sandbox.pause()
    assert.equal(await wakes.files.read('/tmp/kept'), 'kept')
    assert.equal((await sandbox.getInfo()).state, 'running')
  }
})

check('what has ended', async (t) => {
  const sandbox = await open(t)
  const byId = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  for (const ended of [sandbox, byId]) {
    assert.equal(await ended.isRunning(), false)
    await assert.rejects(ended.commands.run('true'), SandboxNotFoundError)
  }
  for (const call of [() => sandbox.getInfo(), () => sandbox.connect(), () => sandbox.pause(), () => sandbox.setTimeout(60_000), () => Sandbox.connect(sandbox.sandboxId)]) {
    await assert.rejects(call, SandboxNotFoundError)
  }
})

check('what cannot be asked for', async () => {
  await assert.rejects(Sandbox.create({ apiKey: `e2b_${'0'.repeat(40)}` }), AuthenticationError)
  await refused(Sandbox.create('nonesuch'), 404, 'nonesuch')
  await refused(Sandbox.create({ secretEnvs: { A: 'b' } }), 404, 'no secret "b"')
  await refused(Sandbox.create({ nodeId: 'a' }), 400, 'nodeID')
  await refused(box.connect({ allowPublicTraffic: false }), 400, 'allowPublicTraffic')
  await refused(box.connect({ secure: false }), 400, 'secure')
  assert.equal(await box.isRunning(), true)
})

check('clones', async (t) => {
  const file = '/tmp/cloned'
  await box.files.write(file, 'before')
  const { sandboxes } = await Sandbox.clone(box.sandboxId, { count: 2 })
  for (const clone of sandboxes) t.after(() => clone.kill())
  assert.equal(new Set([box, ...sandboxes].map((s) => s.sandboxId)).size, 3)
  await box.files.write(file, 'after')
  for (const clone of sandboxes) assert.equal(await clone.files.read(file), 'before')
})

check('what is not built is refused', async () => {
  for (const call of [
    () => box.reset(),
    () => box.hotplugMemory(64),
    () => box.resize({ memoryMiB: 64 }),
    () => box.mountVolume('a', '/mnt/a'),
    () => box.unmountVolume('/mnt/a'),
  ]) {
    await refused(call, 501, 'not supported')
  }
  assert.equal(await box.isRunning(), true)
})

check('network', async (t) => {
  const sandbox = await open(t, { allowInternetAccess: false })
  await sandbox.setNetwork({ allowOut: ['192.0.2.1'], denyOut: ['0.0.0.0/0'] })
  const { network } = await sandbox.getInfo()
  assert.deepEqual([network.allowOut, network.denyOut], [['192.0.2.1'], ['0.0.0.0/0']])
})

check('volumes', async (t) => {
  const volume = await Volume.create(`novita-${randomUUID()}`)
  t.after(() => eventually('the volume can be deleted', () => Volume.destroy(volume.volumeId)))
  assert.ok((await Volume.list()).some((v) => v.name === volume.name))
  const one = await Sandbox.create({ timeoutMs, volumeMounts: { '/mnt/v': volume } })
  const two = await Sandbox.create({ timeoutMs, volumeMounts: { '/mnt/v': volume.name } })
  try {
    await one.commands.run('echo shared >/mnt/v/a')
    assert.equal((await two.commands.run('cat /mnt/v/a')).stdout, 'shared\n')
  } finally {
    await Promise.all([one.kill(), two.kill()])
  }
})

check('quota and events', async (t) => {
  const quota = await Sandbox.getQuota()
  assert.ok(quota.usage.concurrentInstances >= 1)
  assert.equal(quota.limit.maxLengthHours, 24)
  const sandbox = await open(t)
  await sandbox.pause()
  await sandbox.kill()
  const page = await Sandbox.getEvents({ sandboxID: sandbox.sandboxId, orderAsc: true })
  assert.deepEqual(page.items.map((e) => e.eventName), ['create', 'pause', 'kill'])
  assert.deepEqual([page.total, page.hasMore], [3, false])
})

check('metrics', async () => {
  const [sample] = await eventually('a sample', async () => {
    const samples = await box.getMetrics()
    return samples.length > 0 && samples
  })
  assert.ok(sample.cpuCount >= 1 && sample.memTotal > 0)
})

// The code interpreter of this SDK has no URL setting: it wants host names and TLS.
if (process.env.NOVITA_DOMAIN) {
  check('code', async (t) => {
    const { Sandbox: CodeSandbox } = await import('novita-sandbox/code-interpreter')
    const sandbox = await CodeSandbox.create({ timeoutMs })
    t.after(() => sandbox.kill())
    await sandbox.runCode('x = 41')
    await sandbox.pause()
    await sandbox.connect({ timeoutMs })
    assert.equal((await sandbox.runCode('x + 1')).text, '42')
    assert.equal((await sandbox.runCode('1/0')).error.name, 'ZeroDivisionError')
  })
}
