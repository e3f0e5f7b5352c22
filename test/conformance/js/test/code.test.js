// The code interpreter, through E2B's own client of it.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { Sandbox } from '@e2b/code-interpreter'
import { NotFoundError, TimeoutError } from 'e2b'
import { check, eventually, rejection, rejectsAs, request, stateOf } from './support.js'

async function open(t, opts = {}) {
  const sandbox = await Sandbox.create({ timeoutMs: 150_000, ...opts })
  t.after(() => Sandbox.kill(sandbox.sandboxId))
  return sandbox
}

const texts = (messages) => messages.join('')

describe('code interpreter', () => {
  check('cells share state, stream output, and show their value', async (t) => {
    const sandbox = await open(t)
    const seen = []
    await sandbox.runCode('x = 41')
    const execution = await sandbox.runCode('print(1)\nimport sys\nprint("é😀", file=sys.stderr)\ndisplay("shown")\nx + 1', {
      onStdout: (m) => seen.push(['stdout', m.line]),
      onStderr: (m) => seen.push(['stderr', m.line]),
      onResult: (r) => seen.push(['result', r.text, r.isMainResult]),
    })
    assert.deepEqual(execution.logs, { stdout: ['1\n'], stderr: ['é😀\n'] })
    assert.equal(execution.text, '42')
    assert.equal(execution.executionCount, 2)
    assert.deepEqual(seen.slice(-2), [['result', 'shown', false], ['result', '42', true]])
  })

  check('errors have a name, a value and a traceback', async (t) => {
    const sandbox = await open(t)
    let called
    const { error } = await sandbox.runCode('def f():\n    raise ValueError("no")\nf()', { onError: (e) => { called = e } })
    assert.equal(error.name, 'ValueError')
    assert.equal(error.value, 'no')
    assert.match(error.traceback, /line 2, in f/)
    assert.equal(called.name, 'ValueError')
  })

  check('JavaScript and bash', async (t) => {
    const sandbox = await open(t)
    await sandbox.runCode('const a = await Promise.resolve(1)', { language: 'js' })
    assert.equal((await sandbox.runCode('const a = 2; a', { language: 'javascript' })).text, '2')
    assert.equal((await sandbox.runCode('import path from "path"; path.sep', { language: 'js' })).text, '/')
    await sandbox.runCode('cd /usr; v=kept', { language: 'bash' })
    assert.equal(texts((await sandbox.runCode('pwd; echo $v; id -un', { language: 'bash' })).logs.stdout), '/usr\nkept\nuser\n')
  })

  check('what is not there is said', async (t) => {
    const sandbox = await open(t)
    const err = await rejection(sandbox.runCode('1', { language: 'r' }))
    assert.match(err.message, /^500/) // the SDK shows no more
    const cell = { method: 'POST', body: '{"code": "1", "language": "r"}' }
    assert.equal((await request(sandbox, 49999, '/execute', cell)).status, 401) // not the owner
    const refused = await request(sandbox, 49999, '/execute', { ...cell, headers: { 'X-Access-Token': sandbox.envdAccessToken } })
    assert.match(await refused.text(), /^language 'r' is not supported here/)
    await rejectsAs(sandbox.runCode('1', { context: { id: 'none' } }), NotFoundError)
  })

  check('contexts are made, listed, restarted and removed', async (t) => {
    const sandbox = await open(t)
    const context = await sandbox.createCodeContext({ cwd: '/usr' })
    assert.equal(context.cwd, '/usr')
    const run = (code) => sandbox.runCode(code, { context })
    assert.equal((await run('import os; y = 1; os.getcwd()')).text, '/usr')
    const listed = await sandbox.listCodeContexts()
    assert.deepEqual(listed.map((c) => c.language), ['python', 'javascript', 'python'])
    assert.equal(listed.at(-1).id, context.id)
    await sandbox.restartCodeContext(context)
    assert.equal((await run('"y" in globals()')).text, 'False')
    await sandbox.removeCodeContext(context)
    assert.equal((await sandbox.listCodeContexts()).length, 2)
    await rejectsAs(run('1'), NotFoundError)
  })

  check('variables of the sandbox, and of one run', async (t) => {
    const sandbox = await open(t, { envs: { OF_ALL: 'sandbox' } })
    const code = 'import os\n(os.getenv("OF_ALL"), os.getenv("OWN"))'
    assert.equal((await sandbox.runCode(code, { envs: { OF_ALL: 'run', OWN: 'own' } })).text, "('run', 'own')")
    assert.equal((await sandbox.runCode(code)).text, "('sandbox', None)")
  })

  check('a timeout interrupts the cell and leaves the state', async (t) => {
    const sandbox = await open(t)
    await sandbox.runCode('kept = "kept"')
    await rejectsAs(sandbox.runCode('import time; time.sleep(300)', { timeoutMs: 3000 }), TimeoutError)
    assert.equal((await sandbox.runCode('kept')).text, 'kept')
  })

  check('kernels keep their state over a pause, and a cell wakes the sandbox', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    await sandbox.runCode('x = [1]')
    await sandbox.runCode('let y = { a: 1 }', { language: 'js' })
    await sandbox.runCode('z=3', { language: 'bash' })
    await sandbox.pause()
    assert.equal(await stateOf(sandbox), 'paused')
    assert.equal((await sandbox.runCode('x.append(2); x')).text, '[1, 2]')
    assert.equal(await stateOf(sandbox), 'running')
    assert.equal((await sandbox.runCode('y.a', { language: 'js' })).text, '1')
    assert.equal(texts((await sandbox.runCode('echo $z', { language: 'bash' })).logs.stdout), '3\n')
  })

  check('a private sandbox wants the traffic token', async (t) => {
    const sandbox = await open(t, { network: { allowPublicTraffic: false } })
    assert.equal((await sandbox.runCode('1')).text, '1')
    const refused = await request(sandbox, 49999, '/contexts')
    assert.equal(refused.status, 403)
    await refused.arrayBuffer()
  })

  check('output is not lost when there is much of it', async (t) => {
    const sandbox = await open(t)
    const { logs } = await sandbox.runCode('for i in range(10_000): print(i)')
    const lines = texts(logs.stdout).split('\n')
    assert.equal(lines.length, 10_001)
    lines.slice(0, -1).forEach((line, i) => assert.equal(line, String(i)))
  })

  check('health is answered before any kernel runs', async (t) => {
    const sandbox = await open(t)
    await eventually('healthy', async () => (await (await request(sandbox, 49999, '/health')).json()) === 'OK')
    const { stdout } = await sandbox.commands.run('ps -eo args')
    assert.doesNotMatch(stdout, /kernel\.(py|js|sh)/)
  })
})
