import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { APIError, Client } from 'sandbox0'
import { cases, offer } from './report.js'

offer('sandbox0')
const check = cases('sandbox0')

const client = new Client({ token: process.env.SANDBOX0_TOKEN, baseUrl: process.env.SANDBOX0_BASE_URL })

// A sandbox left behind by a killed test run disappears by itself.
const leftover = { ttl: 600, hardTtl: 600 }

let box
before(async () => {
  box = await client.sandboxes.claim('base', { config: { ...leftover, envVars: { GREETING: 'hello' } } })
})
after(() => box && client.sandboxes.delete(box.id))

// claim makes a sandbox for one case.
async function claim(t, config, options) {
  const sandbox = await client.sandboxes.claim('base', { config: { ...leftover, ...config }, ...options })
  t.after(() => client.sandboxes.delete(sandbox.id).catch(() => {}))
  return sandbox
}

async function refused(call, status, ...words) {
  let error
  await assert.rejects(call, (e) => {
    error = e
    return e instanceof APIError
  })
  assert.equal(error.statusCode, status)
  for (const word of words) assert.ok(`${error.message} ${error.code} ${error.body}`.includes(word), `no ${word} in ${error.message}`)
  return error
}

async function until(holds) {
  for (const end = Date.now() + 30_000; !(await holds()); await sleep(50)) assert.ok(Date.now() < end)
}

const sh = (script, options) => ['sh', { command: ['sh', '-c', script], ...options }]
const scratch = () => `/tmp/t-${randomUUID()}`

check('claim and look', async () => {
  const info = await client.sandboxes.get(box.id)
  assert.deepEqual([info.id, info.templateId, info.status, info.paused, info.autoResume], [box.id, 'base', 'running', false, true])
  assert.equal((await client.sandboxes.status(box.id)).status, 'running')
  assert.ok((await client.sandboxes.list({ status: 'running' })).sandboxes.some((s) => s.id === box.id))
  assert.ok((await client.templates.list()).length > 0)
})

check('commands', async () => {
  const result = await box.cmd(...sh('echo $GREETING; echo err >&2; exit 3'))
  assert.deepEqual([result.stdout, result.stderr, result.exitCode, result.state], ['hello\n', 'err\n', 3, 'crashed'])
  assert.equal((await box.cmd('pwd', { cwd: '/usr' })).stdout, '/usr\n')
  await refused(box.cmd('/no/such/program'), 400, 'no/such/program')
})

check('command streams', async () => {
  const stream = await box.cmdStream(...sh('echo one; read x; echo got $x; exit 4'))
  stream.sendInput('two\n')
  let output = ''
  for await (const o of stream.outputs()) output += o.data
  assert.equal(output, 'one\ngot two\n')
  const done = await stream.wait()
  assert.deepEqual([done.exitCode, done.state], [4, 'crashed'])
})

check('repls keep their state', async () => {
  await box.run('python', 'x = 41')
  assert.equal((await box.run('python', 'x + 1')).outputRaw, '42\n')
  await box.run('bash', 'v=kept')
  assert.equal((await box.run('bash', 'echo $v')).outputRaw, 'kept\n')
  assert.ok((await box.listContexts()).length >= 2)
})

check('files', async () => {
  const at = scratch()
  const content = new Uint8Array(100_000).map((_, i) => i % 256)
  await box.mkdir(`${at}/a`, true)
  await box.writeFile(`${at}/f.bin`, content)
  assert.deepEqual(new Uint8Array(await box.readFile(`${at}/f.bin`)), content)
  assert.equal((await box.statFile(`${at}/f.bin`)).size, content.length)
  assert.deepEqual((await box.listFiles(at)).map((e) => e.name).sort(), ['a', 'f.bin'])
  await box.moveFile(`${at}/f.bin`, `${at}/g.bin`)
  await refused(box.readFile(`${at}/f.bin`), 404, 'file_not_found')
  await box.deleteFile(at)
  await refused(box.listFiles(at), 404, 'directory_not_found')
})

check('watch', async () => {
  const at = scratch()
  await box.mkdir(at)
  const watch = await box.watchFiles(at)
  await box.writeFile(`${at}/seen`, 'x')
  for await (const event of watch.events()) {
    assert.deepEqual([event.event, event.path], ['create', `${at}/seen`])
    break
  }
  watch.close()
})

check('pause and what wakes', async (t) => {
  const box = await claim(t)
  await box.run('python', 'kept = 42')
  const paused = await client.sandboxes.pauseAndWait(box.id)
  assert.deepEqual([paused.status, paused.paused], ['paused', true])
  assert.equal((await box.run('python', 'kept')).outputRaw, '42\n')
  assert.equal((await client.sandboxes.get(box.id)).runtimeGeneration, 2)
  await client.sandboxes.pauseAndWait(box.id)
  const resumed = await client.sandboxes.resumeAndWait(box.id)
  assert.deepEqual([resumed.status, resumed.runtimeGeneration], ['running', 3])
})

check('pause in the background', async (t) => {
  const box = await claim(t)
  const answer = await fetch(`${process.env.SANDBOX0_BASE_URL}/api/v1/sandboxes/${box.id}/pause?async=true`, {
    method: 'POST', headers: { Authorization: `Bearer ${process.env.SANDBOX0_TOKEN}` },
  })
  assert.deepEqual([answer.status, (await answer.json()).data.paused], [202, false])
  await until(async () => (await client.sandboxes.get(box.id)).paused)
  assert.equal((await client.sandboxes.get(box.id)).status, 'paused')
})

check('without auto resume', async (t) => {
  const box = await claim(t, { autoResume: false })
  await client.sandboxes.pause(box.id)
  await refused(box.cmd('true'), 503, 'autoResume is off')
  assert.equal((await client.sandboxes.get(box.id)).paused, true)
})

check('services', async (t) => {
  const box = await claim(t)
  await box.writeFile('/srv/site/open.txt', 'open')
  const code = "def handler(request):\n    return {'status': 201, 'body': request['method']}\n"
  const got = await box.updateServices([
    {
      id: 'web',
      port: 8000,
      runtime: { type: 'cmd', command: ['python3', '-m', 'http.server', '8000'], cwd: '/srv/site' },
      ingress: { _public: true, routes: [{ id: 'root', pathPrefix: '/', methods: ['GET'], resume: true }] },
      healthCheck: { path: '/open.txt' },
    },
    { id: 'call', runtime: { type: 'function', _function: { runtime: 'python', source: { type: 'inline', code } } }, ingress: { _public: true, routes: [] } },
  ])
  const [web, call] = got.services
  assert.deepEqual([web.id, web.port, web.publishable, web.healthCheck.path], ['web', 8000, true, '/open.txt'])
  const ask = async (url, path, options) => {
    const answer = await fetch(url + path, options)
    return [answer.status, await answer.text()]
  }
  assert.deepEqual(await ask(web.publicUrl, '/open.txt'), [200, 'open'])
  assert.equal((await ask(web.publicUrl, '/open.txt', { method: 'POST', body: 'x' }))[0], 405)
  assert.deepEqual(await ask(call.publicUrl, '/', { method: 'POST', body: 'x' }), [201, 'POST'])
  await client.sandboxes.pauseAndWait(box.id)
  assert.deepEqual(await ask(web.publicUrl, '/open.txt'), [200, 'open'])
  assert.equal((await client.sandboxes.get(box.id)).runtimeGeneration, 2)
  await refused(box.updateServices([{ id: 'web', port: 49983, ingress: { _public: true, routes: [] } }]), 400, 'agent')
  assert.deepEqual((await box.getServices()).services.map((s) => s.id), ['web', 'call'])
  assert.deepEqual((await box.clearServices()).services, [])
})

check('update and refresh', async () => {
  const info = await client.sandboxes.update(box.id, { config: { ttl: 300, autoResume: false } })
  assert.equal(info.autoResume, false)
  const left = (info.expiresAt - Date.now()) / 1000
  assert.ok(left > 200 && left <= 300)
  const refreshed = await client.sandboxes.refresh(box.id, { duration: 500 })
  assert.ok(refreshed.expiresAt > info.expiresAt)
  await client.sandboxes.update(box.id, { config: { autoResume: true } })
})

check('snapshots', async (t) => {
  const box = await claim(t)
  await box.writeFile('/root/kept', 'before')
  const snap = await client.sandboxes.createRootFSSnapshot(box.id)
  t.after(() => client.sandboxes.deleteRootFSSnapshot(snap.id))
  assert.deepEqual((await client.sandboxes.listRootFSSnapshots(box.id)).map((s) => s.id), [snap.id])
  const other = await claim(t, {}, { snapshotId: snap.id })
  assert.equal(Buffer.from(await other.readFile('/root/kept')).toString(), 'before')
})

check('volumes', async (t) => {
  const volume = await client.volumes.create({})
  const box = await claim(t, {}, { mounts: [{ sandboxvolumeId: volume.id, mountPoint: '/mnt/data' }] })
  assert.deepEqual(box.bootstrapMounts.map((m) => [m.sandboxvolumeId, m.state]), [[volume.id, 'mounted']])
  await box.cmd(...sh('echo x > /mnt/data/x'))
  await refused(client.volumes.delete(volume.id), 409)
  await client.sandboxes.delete(box.id)
  await client.volumes.delete(volume.id)
  await refused(client.volumes.get(volume.id), 404)
})

check('errors', async () => {
  assert.equal((await refused(client.sandboxes.get('inosuchsandbox'), 404)).code, 'not_found')
  assert.equal((await refused(client.sandboxes.claim('nowhere'), 404, 'nowhere')).code, 'not_found')
  assert.equal((await refused(client.sandboxes.claim('base', { config: { ttl: -1 } }), 400, 'ttl')).code, 'bad_request')
  const stranger = new Client({ token: `e2b_${'0'.repeat(40)}`, baseUrl: process.env.SANDBOX0_BASE_URL })
  assert.equal((await refused(stranger.sandboxes.get(box.id), 401)).code, 'unauthorized')
})

check('delete', async () => {
  const box = await client.sandboxes.claim('default')
  await client.sandboxes.delete(box.id)
  await refused(client.sandboxes.get(box.id), 404, 'ended')
})
