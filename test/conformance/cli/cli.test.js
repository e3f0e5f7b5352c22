// E2B's own command line, unmodified, against a running server. What it offers
// is read from its help; that and the commands which each case uses are written
// to DROWSE_CONFORMANCE_RESULTS, a file, as lines of JSON.

import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'

const program = createRequire(import.meta.url).resolve('@e2b/cli/dist/index.js')
const home = mkdtempSync(join(tmpdir(), 'e2b-cli-'))
const env = { ...process.env, HOME: home, NO_COLOR: '1' }
after(() => rmSync(home, { recursive: true }))

let used = new Set() // commands, by the case that runs

function report(line) {
  const file = process.env.DROWSE_CONFORMANCE_RESULTS
  if (file) appendFileSync(file, `${JSON.stringify(line)}\n`)
}

function check(name, fn) {
  return test(name, { timeout: 300_000 }, async (t) => {
    used = new Set()
    const calls = used
    let ok = false
    try {
      await fn(t)
      ok = true
    } finally {
      report({ area: 'cli', case: name, ok, calls: [...calls] })
    }
  })
}

// e2b runs a command of the group sandbox, and returns what it printed.
function e2b(command, ...args) {
  used.add(`e2b sandbox.${command}`)
  return run('sandbox', command, ...args)
}

function run(...args) {
  return runWith('', ...args)
}

// runWith gives the command an input.
function runWith(input, ...args) {
  const running = promisify(execFile)(process.execPath, [program, ...args], { env })
  running.child.stdin.end(input)
  return running
}

// commandsOf reads the names of commands from a help text.
async function commandsOf(...group) {
  const { stdout } = await run(...group, '--help')
  const names = [...stdout.split('Commands:')[1].matchAll(/^ {2}([a-z-]+)/gm)].map((m) => m[1])
  return names.filter((name) => name !== 'help')
}

// create makes a sandbox that is killed when the test ends.
async function create(t, ...args) {
  const { stdout } = await e2b('create', '--detach', '--timeout', '150', ...args)
  const id = /\bi[a-z0-9]{20}\b/.exec(stdout)[0]
  t.after(() => run('sandbox', 'kill', id))
  return id
}

async function list(...args) {
  return JSON.parse((await e2b('list', '--format', 'json', ...args)).stdout)
}

const ids = (sandboxes) => sandboxes.map((s) => s.sandboxId)

// v1 is a call of the native API on a sandbox.
async function v1(id, path, init = {}) {
  const api = process.env.E2B_API_URL ?? `https://api.${process.env.E2B_DOMAIN}`
  const headers = { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }
  const res = await fetch(`${api}/v1/sandboxes/${id}${path}`, { ...init, headers })
  const body = await res.json()
  assert.equal(res.status, 200, JSON.stringify(body))
  return body
}

// terminal runs a command on a terminal, as a person does who types.
function terminal(t, ...args) {
  const line = ['sandbox', ...args].map((arg) => `'${arg}'`).join(' ')
  const child = spawn('script', ['-qec', `'${process.execPath}' '${program}' ${line}`, '/dev/null'], { env })
  const box = { output: '', ended: new Promise((resolve) => child.on('close', resolve)) }
  child.stdout.setEncoding('utf8').on('data', (data) => void (box.output += data))
  t.after(() => child.kill('SIGKILL'))
  box.type = (text) => child.stdin.write(`${text}\r`)
  box.shown = async (what) => {
    const deadline = Date.now() + 30_000
    while (!what.test(box.output)) {
      assert.ok(Date.now() < deadline, `${what} is not shown in ${JSON.stringify(box.output)}`)
      await delay(50)
    }
  }
  used.add(`e2b sandbox.${args[0]}`)
  return box
}

describe('the command line', () => {
  before(async () => {
    const methods = []
    for (const group of await commandsOf()) {
      for (const command of await commandsOf(group)) methods.push(`e2b ${group}.${command}`)
    }
    const { stdout } = await run('--version')
    report({ packages: { '@e2b/cli': stdout.trim() }, methods })
  })

  check('create, list, info and kill', async (t) => {
    const id = await create(t, 'base')
    const [listed] = (await list()).filter((s) => s.sandboxId === id)
    assert.equal(listed.state, 'running')
    assert.match((await e2b('list')).stdout, new RegExp(id))
    assert.match((await e2b('info', id)).stdout, new RegExp(id))
    await e2b('kill', id)
    assert.ok(!ids(await list('--state', 'running,paused')).includes(id))
  })

  check('templates are listed', async () => {
    used.add('e2b template.list')
    const templates = JSON.parse((await run('template', 'list', '--format', 'json')).stdout)
    const base = templates.find((template) => template.names.includes('base'))
    assert.ok(base?.names.includes('code-interpreter-v1'), JSON.stringify(templates))
    assert.match((await run('template', 'list')).stdout, new RegExp(base.templateID))
  })

  check('a template is built from a Dockerfile, started from and deleted', async (t) => {
    for (const command of ['create', 'delete']) used.add(`e2b template.${command}`)
    const dir = mkdtempSync(join(tmpdir(), 'e2b-template-'))
    t.after(() => rmSync(dir, { recursive: true }))
    writeFileSync(join(dir, 'file'), 'from the context')
    writeFileSync(join(dir, 'e2b.Dockerfile'), 'FROM e2bdev/base\nENV MADE=here\nWORKDIR /app\nCOPY file .\nRUN echo "$MADE" > made\n')
    const name = `cli-${randomUUID()}`
    const built = await run('template', 'create', '--path', dir, name)
    assert.match(built.stdout, /RUN echo/)
    const id = await create(t, name)
    assert.equal((await e2b('exec', id, 'cat /app/file /app/made')).stdout, 'from the contexthere\n')
    const names = async () => JSON.parse((await run('template', 'list', '--format', 'json')).stdout).flatMap((template) => template.names)
    assert.ok((await names()).includes(name))
    await run('template', 'delete', '--yes', name)
    assert.ok(!(await names()).includes(name))
  })

  check('pause and resume', async (t) => {
    const id = await create(t)
    await e2b('pause', id)
    assert.ok(!ids(await list()).includes(id))
    assert.ok(ids(await list('--state', 'paused')).includes(id))
    await e2b('resume', id)
    assert.ok(ids(await list()).includes(id))
  })

  check('exec has input and output, an environment and an exit code', async (t) => {
    const id = await create(t)
    const { stdout, stderr } = await e2b('exec', '--user', 'root', '--cwd', '/usr', '--env', 'A=b c', id, 'id -un; pwd; echo "$A"; echo no >&2')
    assert.equal(stdout, 'root\n/usr\nb c\n')
    assert.equal(stderr, 'no\n')
    assert.equal((await runWith('piped é\n', 'sandbox', 'exec', id, 'cat')).stdout, 'piped é\n')
    await assert.rejects(e2b('exec', id, 'exit 7'), { code: 7 })
  })

  check('snapshots are taken, listed, started from and deleted', async (t) => {
    const id = await create(t)
    await e2b('exec', id, 'echo kept >/tmp/file')
    const name = `cli-${randomUUID()}`
    const { stdout } = await e2b('snapshot', 'create', '--name', name, id)
    assert.match(stdout, new RegExp(name))
    const listed = async () => (await e2b('snapshot', 'list', '--format', 'json')).stdout.includes(name)
    assert.ok(await listed())
    const child = await create(t, name)
    assert.equal((await e2b('exec', child, 'cat /tmp/file')).stdout, 'kept\n')
    await e2b('snapshot', 'delete', `${name}:default`)
    assert.ok(!(await listed()))
  })

  check('logs and metrics', async (t) => {
    const id = await create(t)
    const word = randomUUID()
    await e2b('exec', id, `echo ${word}`)
    assert.match((await e2b('logs', '--level', 'DEBUG', id)).stdout, new RegExp(`${word}`))
    const deadline = Date.now() + 30_000
    for (;;) {
      const { stdout } = await e2b('metrics', id)
      if (/Memory/i.test(stdout) && /MiB/.test(stdout)) break
      assert.ok(Date.now() < deadline, stdout)
      await delay(500)
    }
  })

  check('connect is a terminal in the sandbox', async (t) => {
    const id = await create(t)
    const shell = terminal(t, 'connect', id)
    await shell.shown(/Terminal connecting[^\n]*\n[^]*[$#] /)
    const word = randomUUID()
    shell.type(`tty && echo "word=$((6*7))=$E2B_SANDBOX_ID=${word}"`)
    await shell.shown(new RegExp(`/dev/pts/\\d+\\s+word=42=${id}=${word}`))
    shell.type('exit')
    await shell.shown(/Closing terminal connection/)
    assert.equal(await shell.ended, 0)
    assert.ok(ids(await list()).includes(id))
  })

  for (const pause of ['asked for', 'at the timeout', 'when idle']) {
    check(`a pause ${pause} holds while a terminal is attached`, async (t) => {
      const id = await create(t)
      await v1(id, '', { method: 'PATCH', body: JSON.stringify({ onTimeout: 'pause', autoResume: true }) })
      const shell = terminal(t, 'connect', id)
      await shell.shown(/Terminal connecting[^\n]*\n[^]*[$#] /)
      // Nobody types: after a while that is no work.
      const idle = { idleTimeoutSeconds: 1, onIdle: 'pause', stallAfterSeconds: 1 }
      if (pause === 'asked for') await e2b('pause', id)
      else if (pause === 'when idle') await v1(id, '', { method: 'PATCH', body: JSON.stringify(idle) })
      else await v1(id, '/timeout', { method: 'POST', body: JSON.stringify({ timeout: 1 }) })
      await shell.shown(/put to sleep/)
      const deadline = Date.now() + 90_000
      while ((await v1(id, '/lifecycle')).state !== 'paused') {
        assert.ok(Date.now() < deadline, 'it is not asleep')
        await delay(100)
      }
      await delay(5000)
      const now = await v1(id, '/lifecycle')
      assert.deepEqual([now.state, now.phase, now.generation], ['paused', null, 1], JSON.stringify(now.transitions))
    })
  }

  check('create without --detach is a terminal as well', async (t) => {
    const shell = terminal(t, 'create', 'base')
    await shell.shown(/sandbox ID [^\n]*\n[^]*[$#] /)
    const id = /\bi[a-z0-9]{20}\b/.exec(shell.output)[0]
    t.after(() => run('sandbox', 'kill', id))
    shell.type('echo "word=$((6*7))=$E2B_SANDBOX_ID"')
    await shell.shown(new RegExp(`word=42=${id}`))
    shell.type('exit')
    await shell.shown(/Closing terminal connection/)
    assert.equal(await shell.ended, 0)
  })
})
