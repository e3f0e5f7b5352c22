// A pause holds while a client is attached. Every stream that the SDK can hold
// is cut by each kind of pause; then the SDK sends what it sends by itself, and
// the sandbox sleeps on.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { Sandbox, TimeoutError } from 'e2b'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'
import { check, eventually, open, rejection, stateOf, v1 } from './support.js'

const waiting = async (handle, opened) => {
  const process = await handle
  opened()
  return process.wait()
}

// Each opens a stream, calls back once the SDK knows, and waits for its end, which it
// tells by rejecting a promise, or to a callback.
const STREAMS = {
  command: (sandbox, opened) => waiting(sandbox.commands.run('sleep 600', { background: true, timeoutMs: 0 }), opened),
  'command that prints': (sandbox, opened) =>
    waiting(sandbox.commands.run('while :; do echo tick; sleep 0.02; done', { background: true, timeoutMs: 0 }), opened),
  pty: (sandbox, opened) => waiting(sandbox.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} }), opened),
  watch: (sandbox, opened) =>
    new Promise((_, reject) => {
      sandbox.files.watchDir('/tmp', () => {}, { timeoutMs: 0, onExit: (err) => reject(err ?? new Error('a clean end')) })
        .then(opened, reject)
    }),
  run_code: (sandbox, opened) =>
    sandbox.runCode("import time; print('begun', flush=True); time.sleep(600)", { timeoutMs: 0, onStdout: () => opened() }),
}

const PAUSES = {
  'pause by the same client': { by: (sandbox) => sandbox.pause() },
  'pause by another client': { by: async (sandbox) => void (await Sandbox.betaPause(sandbox.sandboxId)) },
  'pause at the timeout': { by: (sandbox) => sandbox.setTimeout(1000) },
  // Work that stands still is no work after a while.
  'pause when idle': { settings: { idleTimeoutSeconds: 1, onIdle: 'pause', stallAfterSeconds: 1 } },
}

const lifecycleOf = (sandbox) => v1(sandbox, '/lifecycle')

describe('asleep with a client attached', () => {
  for (const [pause, { by, settings }] of Object.entries(PAUSES)) {
    for (const [stream, hold] of Object.entries(STREAMS)) {
      if (!process.env.DROWSE_TEST_ALL && stream !== 'pty') continue // one will do
      if (settings && stream === 'command that prints') continue // it never stands still
      check(`${stream}, ${pause}`, async (t) => {
        const opts = { lifecycle: { onTimeout: 'pause', autoResume: true } }
        const sandbox = await open(t, opts, Interpreter)
        let ended
        const opened = new Promise((resolve) => { ended = rejection(hold(sandbox, resolve)) })
        await Promise.race([opened, ended])
        await eventually('open', async () => (await v1(sandbox, '')).openStreams > 0, { within: 60_000 })
        if (settings) await v1(sandbox, '', { method: 'PATCH', body: JSON.stringify(settings) })
        if (by) await by(sandbox)
        const err = await ended
        assert.ok(err instanceof TimeoutError, `${err.constructor.name}: ${err.message}`)
        // The answer of a cell has no message that could say why.
        if (stream !== 'run_code') assert.match(err.message, /the sandbox was put to sleep/)
        await eventually('paused', async () => (await stateOf(sandbox)) === 'paused', { within: 60_000 })
        for (let n = 0; n < (process.env.DROWSE_TEST_ALL ? 5 : 2); n++) {
          assert.equal(await sandbox.isRunning(), false)
          await delay(1000)
        }
        const now = await lifecycleOf(sandbox)
        assert.deepEqual([now.state, now.phase, now.generation], ['paused', null, 1], JSON.stringify(now.transitions))
      })
    }
  }

  check('isRunning keeps nothing awake', async (t) => {
    const sandbox = await open(t, { timeoutMs: 3000, lifecycle: { onTimeout: 'pause', autoResume: true } })
    await eventually('not running', async () => !(await sandbox.isRunning()), { within: 10_000, every: 1000 })
    await eventually('paused', async () => (await lifecycleOf(sandbox)).phase === null)
    assert.equal((await lifecycleOf(sandbox)).generation, 1)
    assert.equal((await lifecycleOf(sandbox)).state, 'paused')
  })
})
