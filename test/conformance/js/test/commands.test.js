import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { AuthenticationError, CommandExitError, InvalidArgumentError, SandboxError, TimeoutError } from 'e2b'
import { check, eventually, rejectsAs, scratch, sha256, shared } from './support.js'

// waitFor is shell for: go on once the test has written the file.
const waitFor = (file) => `until [ -e ${file} ]; do sleep 0.05; done`

const alive = async (sandbox, pid) =>
  (await sandbox.commands.run(`kill -0 ${pid} 2>/dev/null && echo yes || echo no`, { user: 'root' })).stdout === 'yes\n'

describe('commands', () => {
  const box = shared({ envs: { GLOBAL: 'from create', BOTH: 'from create' } })

  check('stdout', async () => {
    const result = await box.sandbox.commands.run('echo hello')
    assert.deepEqual(
      { exitCode: result.exitCode, stdout: result.stdout, stderr: result.stderr },
      { exitCode: 0, stdout: 'hello\n', stderr: '' },
    )
  })

  check('stdout and stderr are kept apart', async () => {
    const out = []
    const err = []
    const result = await box.sandbox.commands.run('echo out; echo err >&2', {
      onStdout: (data) => void out.push(data),
      onStderr: (data) => void err.push(data),
    })
    assert.equal(result.stdout, 'out\n')
    assert.equal(result.stderr, 'err\n')
    assert.equal(out.join(''), 'out\n')
    assert.equal(err.join(''), 'err\n')
  })

  for (const [stream, redirect, option] of [['stdout', '', 'onStdout'], ['stderr', ' >&2', 'onStderr']]) {
    check(`${stream} arrives while the command is running`, async () => {
      const gate = scratch()
      const events = []
      // The command cannot end before the test has seen its first line.
      const result = await box.sandbox.commands.run(
        `echo first${redirect}; ${waitFor(gate)}; echo second${redirect}`,
        {
          timeoutMs: 20_000,
          [option]: async (data) => {
            for (const line of data.trim().split('\n')) events.push(line)
            if (events.length === 1) {
              events.push('gate opened')
              await box.sandbox.files.write(gate, '')
            }
          },
        },
      )
      assert.deepEqual(events, ['first', 'gate opened', 'second'])
      assert.equal(result[stream], 'first\nsecond\n')
    })
  }

  check('a non-zero exit code is a CommandExitError with the output', async () => {
    const err = await rejectsAs(box.sandbox.commands.run('echo out; echo err >&2; exit 7'), CommandExitError)
    assert.ok(err instanceof SandboxError)
    assert.equal(err.exitCode, 7)
    assert.equal(err.stdout, 'out\n')
    assert.equal(err.stderr, 'err\n')
    assert.equal(err.error, 'exit status 7')
  })

  check('an unknown program exits with 127', async () => {
    const err = await rejectsAs(box.sandbox.commands.run('no-such-program'), CommandExitError)
    assert.equal(err.exitCode, 127)
    assert.match(err.stderr, /not found/)
  })

  check('envs of a command win over those of the sandbox, for that command', async () => {
    const show = 'echo "$GLOBAL, $BOTH, $LOCAL"'
    const one = await box.sandbox.commands.run(show, { envs: { BOTH: 'from run', LOCAL: 'a "b" $c é' } })
    assert.equal(one.stdout, 'from create, from run, a "b" $c é\n')
    const two = await box.sandbox.commands.run(show)
    assert.equal(two.stdout, 'from create, from create, \n')
  })

  check('cwd', async () => {
    assert.equal((await box.sandbox.commands.run('pwd')).stdout, '/home/user\n')
    assert.equal((await box.sandbox.commands.run('pwd', { cwd: '/usr/share' })).stdout, '/usr/share\n')
    await box.sandbox.files.makeDir('/home/user/relative cwd')
    assert.equal((await box.sandbox.commands.run('pwd', { cwd: 'relative cwd' })).stdout, '/home/user/relative cwd\n')
    assert.equal((await box.sandbox.commands.run('pwd', { cwd: '~' })).stdout, '/home/user\n')
  })

  check('a missing cwd is an InvalidArgumentError', async () => {
    const err = await rejectsAs(box.sandbox.commands.run('pwd', { cwd: '/no/such/dir' }), InvalidArgumentError)
    assert.match(err.message, /cwd/)
  })

  const identity = 'whoami; id -u; id -gn; echo $HOME; echo $USER; pwd'

  check('the default user is user', async () => {
    const { stdout } = await box.sandbox.commands.run(identity)
    assert.deepEqual(stdout.trim().split('\n'), ['user', '1000', 'user', '/home/user', 'user', '/home/user'])
  })

  check('user root', async () => {
    const { stdout } = await box.sandbox.commands.run(identity, { user: 'root' })
    assert.deepEqual(stdout.trim().split('\n'), ['root', '0', 'root', '/root', 'root', '/root'])
  })

  check('sudo needs no password', async () => {
    assert.equal((await box.sandbox.commands.run('sudo whoami')).stdout, 'root\n')
  })

  check('an unknown user is an AuthenticationError', async () => {
    await rejectsAs(box.sandbox.commands.run('whoami', { user: 'nobodyhere' }), AuthenticationError)
  })

  check('20 MiB of output arrive complete', async () => {
    const file = scratch()
    const size = 20 * 1024 * 1024
    const sum = await box.sandbox.commands.run(
      `head -c ${(size / 4) * 3} /dev/urandom | base64 -w0 > ${file} && sha256sum < ${file}`,
    )
    let streamed = 0
    const { stdout } = await box.sandbox.commands.run(`cat ${file}; rm ${file}`, {
      onStdout: (data) => void (streamed += data.length),
    })
    assert.equal(stdout.length, size)
    assert.equal(streamed, size)
    assert.equal(sha256(stdout), sum.stdout.split(' ')[0])
  })

  check('unicode is not broken where the output is split', async () => {
    const text = 'é漢😀'
    const { stdout } = await box.sandbox.commands.run(`yes '${text}' | head -n 60000 | tr -d '\\n'`)
    assert.equal(stdout === text.repeat(60000), true)
  })

  check('a command past its timeout is a TimeoutError and is dead', async () => {
    const file = scratch()
    await rejectsAs(
      box.sandbox.commands.run(`echo $$ > ${file}; exec sleep 300`, { timeoutMs: 1500 }),
      TimeoutError,
    )
    const pid = Number(await box.sandbox.files.read(file))
    await eventually('process killed', async () => !(await alive(box.sandbox, pid)))
  })

  check('without stdin a command reads end of file', async () => {
    assert.equal((await box.sandbox.commands.run('cat; echo done', { timeoutMs: 10_000 })).stdout, 'done\n')
  })

  check('stdin: data, then end of file', async () => {
    let seen = ''
    const handle = await box.sandbox.commands.run('cat', {
      background: true,
      stdin: true,
      timeoutMs: 20_000,
      onStdout: (data) => void (seen += data),
    })
    await handle.sendStdin('one é\n')
    await eventually('the line comes back', () => seen === 'one é\n')
    await box.sandbox.commands.sendStdin(handle.pid, 'two\n')
    await eventually('the second line comes back', () => seen === 'one é\ntwo\n')
    await box.sandbox.commands.closeStdin(handle.pid)
    const result = await handle.wait()
    assert.equal(result.exitCode, 0)
    assert.equal(result.stdout, 'one é\ntwo\n')
    const other = await box.sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 20_000 })
    await other.closeStdin()
    assert.equal((await other.wait()).exitCode, 0)
  })

  check('stdin of a command started without it is refused', async (t) => {
    const handle = await box.sandbox.commands.run('sleep 60', { background: true })
    t.after(() => handle.kill())
    assert.ok((await rejectsAs(handle.sendStdin('x'), SandboxError)) instanceof SandboxError)
  })

  check('after disconnect the command lives, is listed, and connect gets its later output', async () => {
    const gate = scratch()
    const cmd = `echo before; ${waitFor(gate)}; echo after`
    let early = ''
    const first = await box.sandbox.commands.run(cmd, {
      background: true,
      timeoutMs: 30_000,
      cwd: '/tmp',
      envs: { LISTED: 'yes' },
      onStdout: (data) => void (early += data),
    })
    await eventually('first output', () => early === 'before\n')
    await first.disconnect()

    assert.equal(await alive(box.sandbox, first.pid), true)
    const listed = (await box.sandbox.commands.list()).find((p) => p.pid === first.pid)
    assert.deepEqual(listed, {
      pid: first.pid,
      cmd: '/bin/bash',
      args: ['-l', '-c', cmd],
      envs: { LISTED: 'yes' },
      cwd: '/tmp',
    })

    let late = ''
    const second = await box.sandbox.commands.connect(first.pid, { onStdout: (data) => void (late += data) })
    assert.equal(second.pid, first.pid)
    await box.sandbox.files.write(gate, '')
    assert.equal((await second.wait()).exitCode, 0)
    assert.equal(late, 'after\n')
    assert.equal(early, 'before\n')
    assert.equal((await box.sandbox.commands.list()).some((p) => p.pid === first.pid), false)
  })

  check('two clients of one command get the same output', async () => {
    const gate = scratch()
    const first = await box.sandbox.commands.run(`${waitFor(gate)}; echo for both; exit 3`, { background: true })
    const second = await box.sandbox.commands.connect(first.pid)
    await box.sandbox.files.write(gate, '')
    for (const handle of [first, second]) {
      const err = await rejectsAs(handle.wait(), CommandExitError)
      assert.equal(err.exitCode, 3)
      assert.equal(err.stdout, 'for both\n')
    }
  })

  check('kill: true, then false', async () => {
    const handle = await box.sandbox.commands.run('echo $$; exec sleep 300', { background: true })
    assert.equal(await handle.kill(), true)
    const err = await rejectsAs(handle.wait(), CommandExitError)
    assert.equal(err.exitCode, -1)
    assert.equal(err.error, 'signal: killed')
    assert.equal(await handle.kill(), false)
    assert.equal(await box.sandbox.commands.kill(handle.pid), false)
    assert.equal((await box.sandbox.commands.list()).some((p) => p.pid === handle.pid), false)
  })

  check('20 concurrent commands keep their output to themselves', async () => {
    const results = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        box.sandbox.commands.run(`for n in $(seq 100); do echo "${i}:$n"; echo "e${i}:$n" >&2; done; exit ${i}`).catch((err) => err),
      ),
    )
    results.forEach((result, i) => {
      const lines = (prefix) => Array.from({ length: 100 }, (_, n) => `${prefix}${i}:${n + 1}\n`).join('')
      assert.equal(result.exitCode, i, String(result))
      assert.equal(result.stdout, lines(''))
      assert.equal(result.stderr, lines('e'))
    })
  })
})
