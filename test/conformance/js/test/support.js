// What all test files share: the check of the environment, sandboxes that are
// killed whatever happens, and waiting for a condition with a deadline.
//
// The tests talk to a drowse server that is already running. They create every
// sandbox they look at and name it by a random metadata value, so other
// sandboxes on the same server do not disturb them.

import assert from 'node:assert/strict'
import { createHash, randomUUID } from 'node:crypto'
import { request as send } from 'node:http'
import { after, before, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { Sandbox, SandboxNotFoundError } from 'e2b'
import { record } from './surface.js'

const { E2B_API_KEY, E2B_DOMAIN, E2B_SANDBOX_URL } = process.env
if (!E2B_API_KEY || !(E2B_DOMAIN || (process.env.E2B_API_URL && E2B_SANDBOX_URL))) {
  throw new Error('E2B_API_KEY, and E2B_DOMAIN or E2B_API_URL and E2B_SANDBOX_URL, are not set: these tests need a running drowse server')
}
const API_URL = process.env.E2B_API_URL ?? `https://api.${E2B_DOMAIN}`

export const UNKNOWN = 'nonexistingsandbox'

// A sandbox left behind by a killed test run disappears by itself.
const LEFTOVER_MS = 240_000

// check is test() with a limit, so that a server that does not answer fails
// one test and not the run.
export function check(name, fn) {
  return test(name, { timeout: 180_000 }, (t) => record(name, () => fn(t)))
}

// open creates a sandbox that is killed when the test ends, passed or failed.
export async function open(t, opts = {}, kind = Sandbox) {
  const sandbox = await kind.create({ timeoutMs: LEFTOVER_MS, ...opts })
  t.after(() => Sandbox.kill(sandbox.sandboxId))
  return sandbox
}

// openWith is open with options that the SDK has no word for.
export async function openWith(t, options) {
  const res = await fetch(`${API_URL}/sandboxes`, {
    method: 'POST',
    headers: { 'X-API-Key': E2B_API_KEY, 'Content-Type': 'application/json' },
    body: JSON.stringify({ templateID: 'base', timeout: LEFTOVER_MS / 1000, secure: true, ...options }),
  })
  const body = await res.json()
  assert.equal(res.status, 201, JSON.stringify(body))
  t.after(() => Sandbox.kill(body.sandboxID))
  return Sandbox.connect(body.sandboxID)
}

// shared gives the tests of one describe block a common sandbox. They keep
// apart by using paths of their own, see scratch.
export function shared(opts = {}) {
  const box = {}
  before(async () => {
    box.sandbox = await Sandbox.create({ timeoutMs: 600_000, ...opts })
  })
  after(async () => {
    if (box.sandbox) await box.sandbox.kill()
  })
  return box
}

// scratch returns a path nobody else uses.
export function scratch(suffix = '') {
  return `/tmp/t-${randomUUID()}${suffix}`
}

export function marker() {
  return `js-${randomUUID()}`
}

export function sha256(data) {
  return createHash('sha256').update(data).digest('hex')
}

// Machines are busy: what is awaited may take so many times longer than it should.
const PATIENCE = 6 * Number(process.env.DROWSE_TEST_PATIENCE ?? 1)

// eventually polls until probe returns something truthy and returns that.
export async function eventually(what, probe, { within = 10_000, every = 100 } = {}) {
  within *= PATIENCE
  const deadline = Date.now() + within
  for (;;) {
    const value = await probe()
    if (value) return value
    if (Date.now() >= deadline) assert.fail(`${what}: not so after ${within} ms`)
    await delay(every)
  }
}

// rejection returns what the promise was rejected with.
export async function rejection(promise) {
  let value
  try {
    value = await promise
  } catch (err) {
    return err
  }
  assert.fail(`expected an error, got ${JSON.stringify(value)}`)
}

// rejectsAs wants an error of exactly this class, not of one derived from it.
export async function rejectsAs(promise, errorClass) {
  const err = await rejection(promise)
  assert.equal(err.constructor.name, errorClass.name, err.stack)
  return err
}

// statusOf is the HTTP status of the answer that an SDK error is about. Older
// SDKs (2.45) have it in the message only.
export function statusOf(err) {
  return err.statusCode ?? Number(/^(\d+): /.exec(err.message)?.[1])
}

export async function listAll(opts) {
  const paginator = Sandbox.list(opts)
  const all = []
  while (paginator.hasNext) all.push(...(await paginator.nextItems()))
  return all
}

export async function stateOf(sandbox) {
  return (await Sandbox.getInfo(sandbox.sandboxId)).state
}

export async function isGone(sandbox) {
  try {
    await Sandbox.getInfo(sandbox.sandboxId)
    return false
  } catch (err) {
    if (err instanceof SandboxNotFoundError) return true
    throw err
  }
}

// rawInfo is the answer as it is on the wire; SDK dates lose digits.
export async function rawInfo(sandbox) {
  const res = await fetch(`${API_URL}/sandboxes/${sandbox.sandboxId}`, {
    headers: { 'X-API-Key': E2B_API_KEY },
  })
  assert.equal(res.status, 200)
  return res.json()
}

// v1 is a call of the native API on a sandbox.
export async function v1(sandbox, path = '', init = {}) {
  const res = await fetch(`${API_URL}/v1/sandboxes/${sandbox.sandboxId}${path}`, {
    ...init,
    headers: { 'X-API-Key': E2B_API_KEY, 'Content-Type': 'application/json' },
  })
  const body = await res.json()
  assert.equal(res.status, 200, JSON.stringify(body))
  return body
}

// api is a call of E2B's API that the SDK has no method for. It returns the status.
export async function api(method, path) {
  return (await fetch(`${API_URL}${path}`, { method, headers: { 'X-API-Key': E2B_API_KEY } })).status
}

// request reaches a port of the sandbox without the SDK.
export function request(sandbox, port, path, init = {}) {
  if (!E2B_SANDBOX_URL) return fetch(`https://${sandbox.getHost(port)}${path}`, init)
  return fetch(`${E2B_SANDBOX_URL}${path}`, {
    ...init,
    headers: { ...init.headers, 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) },
  })
}

// preview visits a port by the host name that the SDK has for it. Where nobody
// resolves that name, the server is told it.
export async function preview(sandbox, port, { headers } = {}) {
  if (!E2B_SANDBOX_URL) {
    const res = await request(sandbox, port, '/', { headers })
    return { status: res.status, body: await res.text() }
  }
  return new Promise((resolve, reject) => {
    const options = { agent: false, headers: { ...headers, Host: sandbox.getHost(port) } }
    send(E2B_SANDBOX_URL, options, async (res) => {
      try {
        resolve({ status: res.statusCode, body: (await res.toArray()).join('') })
      } catch (err) {
        reject(err)
      }
    })
      .on('error', reject)
      .end()
  })
}

// secondsUntil compares with the clock of this host, which is the server's too.
export function secondsUntil(date) {
  return (date.getTime() - Date.now()) / 1000
}

export function assertNear(got, want, tolerance, what) {
  assert.ok(Math.abs(got - want) <= tolerance, `${what}: got ${got}, want ${want} ± ${tolerance}`)
}

// A counter lives in the memory of a bash process and appends "pid n" to a
// file: a restarted process would change the pid or begin at 1 again.
export async function startCounter(sandbox) {
  const file = scratch('.counter')
  const handle = await sandbox.commands.run(
    `n=0; while :; do n=$((n+1)); echo "$$ $n" >> ${file}; sleep 0.1; done`,
    { background: true, timeoutMs: 0 },
  )
  const counter = { file, pid: handle.pid, handle }
  await eventually('counter started', () => sandbox.files.exists(file))
  await counterRuns(sandbox, counter)
  return counter
}

// counterRuns wants the counter to go on from where it is now.
export async function counterRuns(sandbox, counter) {
  const now = await readCounter(sandbox, counter)
  await eventually(`counter past ${now + 1}`, async () => (await readCounter(sandbox, counter)) > now + 1)
}

export async function readCounter(sandbox, counter) {
  const lines = (await sandbox.files.read(counter.file)).split('\n').slice(0, -1)
  lines.forEach((line, i) => assert.equal(line, `${counter.pid} ${i + 1}`, 'the process was not continued'))
  return lines.length
}
