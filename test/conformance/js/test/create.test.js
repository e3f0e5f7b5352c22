import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { Sandbox } from 'e2b'
import { assertNear, check, marker, open, secondsUntil } from './support.js'

describe('create', () => {
  check('with defaults: id, info and running', async (t) => {
    const sandbox = await Sandbox.create()
    t.after(() => sandbox.kill())
    assert.match(sandbox.sandboxId, /^[a-z0-9]+$/)
    assert.equal(await sandbox.isRunning(), true)

    const info = await sandbox.getInfo()
    assert.equal(info.sandboxId, sandbox.sandboxId)
    assert.equal(typeof info.templateId, 'string')
    assert.notEqual(info.templateId, '')
    assert.ok(info.name === undefined || info.name === 'base', `name: ${info.name}`)
    assert.deepEqual(info.metadata, {})
    assert.equal(info.state, 'running')
    assert.match(info.envdVersion, /^\d+\.\d+\.\d+$/)
    assert.ok(info.cpuCount >= 1, `cpuCount: ${info.cpuCount}`)
    assert.ok(info.memoryMB >= 128, `memoryMB: ${info.memoryMB}`)
    assert.deepEqual(info.lifecycle, { onTimeout: 'kill', autoResume: false })
    assertNear(-secondsUntil(info.startedAt), 0, 30, 'age')
    assertNear((info.endAt - info.startedAt) / 1000, 300, 10, 'default timeout')
  })

  check('with the template named', async (t) => {
    const sandbox = await Sandbox.create('base', { timeoutMs: 60_000 })
    t.after(() => sandbox.kill())
    assert.equal((await sandbox.commands.run('echo hello')).stdout, 'hello\n')
  })

  check('with metadata', async (t) => {
    const metadata = { run: marker(), 'odd key': 'a b&c=d%é', empty: '' }
    const sandbox = await open(t, { metadata })
    assert.deepEqual((await sandbox.getInfo()).metadata, metadata)
  })

  check('with envs', async (t) => {
    const sandbox = await open(t, { envs: { PLAIN: 'value', ODD: `a "b" 'c' $d \\ é\nnext` } })
    assert.equal((await sandbox.commands.run('printf %s "$PLAIN"')).stdout, 'value')
    assert.equal((await sandbox.commands.run('printf %s "$ODD"')).stdout, `a "b" 'c' $d \\ é\nnext`)
  })

  check('the sandbox knows its own id', async (t) => {
    const sandbox = await open(t)
    const { stdout } = await sandbox.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID"')
    assert.equal(stdout, `true ${sandbox.sandboxId}\n`)
  })

  check('with a timeout', async (t) => {
    const sandbox = await open(t, { timeoutMs: 42_000 })
    assertNear(secondsUntil((await sandbox.getInfo()).endAt), 42, 8, 'seconds left')
  })

  check('with a lifecycle', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  })

  check('a second client connects to the running sandbox', async (t) => {
    const sandbox = await open(t)
    await sandbox.files.write('/tmp/note', 'from the first')
    const second = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(second.sandboxId, sandbox.sandboxId)
    assert.equal(await second.files.read('/tmp/note'), 'from the first')
  })

  check('a killed sandbox is not running', async (t) => {
    const sandbox = await open(t)
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.isRunning(), false)
  })
})
