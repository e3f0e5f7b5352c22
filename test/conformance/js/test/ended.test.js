// A command streams while its sandbox ends: the error says of what. Only where
// E2B's users expect its class for that do they get the SDK's advice about timeouts.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { CommandExitError, Sandbox, TimeoutError } from 'e2b'
import { check, open, openWith, rejection } from './support.js'

describe('ended with a command in flight', () => {
  check('killed by another client', async (t) => {
    const sandbox = await open(t)
    const handle = await sandbox.commands.run('while :; do echo tick; sleep 0.1; done', { background: true, timeoutMs: 0 })
    const ended = rejection(handle.wait())
    await delay(500)
    assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
    const err = await ended
    assert.equal(err.constructor, TimeoutError, err.stack)
    assert.match(err.message, /the sandbox ended at .*: Killed/)
    assert.match(err.message, /sandbox was killed or reached its end of life/)
    assert.doesNotMatch(err.message, /not found/)
  })

  check('out of memory', async (t) => {
    const sandbox = await openWith(t, { memoryMB: 256 })
    // The largest process is ended before the sandbox's limit is hit: the command ends,
    // and the sandbox goes on.
    const handle = await sandbox.commands.run(`exec python3 -c 'x = b"x" * (4 << 30)'`, { background: true, user: 'root', timeoutMs: 0 })
    const err = await rejection(handle.wait())
    assert.equal(err.constructor, CommandExitError, err.stack)
    assert.match(err.message, /out of memory: process .* was ended/)
    assert.doesNotMatch(err.message, /not found|timeout/i)
  })
})
