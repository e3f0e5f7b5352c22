import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { NotFoundError, SandboxError } from 'e2b'
import { check, eventually, rejection, rejectsAs, shared } from './support.js'

describe('terminals', () => {
  const box = shared()

  // open starts a shell in a terminal. typed sends it a line, shown waits until
  // its output has something; what is shown is what was typed, too, so commands
  // are written so that their output differs from themselves.
  const open = async (t, opts = {}) => {
    const decoder = new TextDecoder()
    let output = ''
    const onData = (data) => void (output += decoder.decode(data, { stream: true }))
    const handle = await box.sandbox.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData, ...opts })
    t.after(() => box.sandbox.pty.kill(handle.pid))
    const typed = (line) => box.sandbox.pty.sendInput(handle.pid, new TextEncoder().encode(`${line}\n`))
    const shown = (what) => eventually(`${what} is shown`, () => what.test(output), { within: 30_000 })
    return { handle, typed, shown, onData }
  }

  check('a shell has a terminal of the size asked for, which can change', async (t) => {
    const { handle, typed, shown } = await open(t, { cols: 101, rows: 31 })
    await typed('echo "size=$(stty size)"')
    await shown(/size=31 101/)
    await box.sandbox.pty.resize(handle.pid, { cols: 77, rows: 22 })
    await typed('echo "size=$(stty size)"')
    await shown(/size=22 77/)
  })

  check('user, directory and environment', async (t) => {
    const { typed, shown } = await open(t, { user: 'root', cwd: '/usr', envs: { LOCAL: 'é' } })
    await typed('echo "is=$(id -un)=$PWD=$LOCAL=$TERM"')
    await shown(/is=root=\/usr=é=xterm-256color/)
  })

  check('keys that are signals', async (t) => {
    const { handle, typed, shown } = await open(t)
    await typed('sleep 300; echo "code=$?"')
    await eventually('it sleeps', async () => (await box.sandbox.commands.run('pgrep -f "^sleep 300" || true')).stdout)
    await box.sandbox.pty.sendInput(handle.pid, new Uint8Array([3]))
    await typed('echo "code=$?"')
    await shown(/code=130/)
  })

  check('exit ends it', async (t) => {
    const { handle, typed } = await open(t)
    await typed('exit')
    assert.equal((await handle.wait()).exitCode, 0)
    await rejectsAs(box.sandbox.pty.sendInput(handle.pid, new Uint8Array([10])), NotFoundError)
  })

  check('a second client connects to it after the first has gone', async (t) => {
    const { handle, typed, shown, onData } = await open(t)
    await typed('kept=state')
    await handle.disconnect()
    const second = await box.sandbox.pty.connect(handle.pid, { onData })
    assert.equal(second.pid, handle.pid)
    await typed('echo "kept=<$kept>"')
    await shown(/kept=<state>/)
  })

  check('kill: true, then false', async (t) => {
    const { handle } = await open(t)
    assert.equal(await box.sandbox.pty.kill(handle.pid), true)
    assert.ok((await rejection(handle.wait())) instanceof SandboxError)
    assert.equal(await box.sandbox.pty.kill(handle.pid), false)
  })
})
