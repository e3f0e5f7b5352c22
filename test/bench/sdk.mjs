// The JavaScript side of the benchmarks: the published E2B SDK as a program
// uses it. One JSON request per line on standard input, one answer per line on
// standard output. Times are in milliseconds.

import { createInterface } from 'node:readline'
import { Sandbox } from 'e2b'

const TIMEOUT_MS = 600_000
let warm // the sandbox that exec and touch work in
let news // who waits for news of a file
let touched = 0

const operations = {
  // create measures from the call to create to the first output of a command.
  async create() {
    const start = performance.now()
    const sandbox = await Sandbox.create({ timeoutMs: TIMEOUT_MS })
    const created = performance.now()
    let first
    const result = await sandbox.commands.run('echo ok', { onStdout: () => void (first ??= performance.now()) })
    if (result.stdout !== 'ok\n') throw new Error(`echo ok printed ${JSON.stringify(result.stdout)}`)
    await sandbox.kill()
    return { created: created - start, first: first - start }
  },

  async open() {
    warm = await Sandbox.create({ timeoutMs: TIMEOUT_MS })
    return { sandbox: warm.sandboxId }
  },

  // exec measures a whole command in the sandbox that open made.
  async exec() {
    const start = performance.now()
    await warm.commands.run('true')
    return { done: performance.now() - start }
  },

  // watch has the sandbox's news told, for touch.
  async watch() {
    warm = await Sandbox.create({ timeoutMs: TIMEOUT_MS })
    await warm.files.makeDir('/home/user/watched')
    await warm.files.watchDir('/home/user/watched', (event) => news?.(event.name), { timeoutMs: 0 })
    return { sandbox: warm.sandboxId }
  },

  // touch measures from the call that writes a file to the first that is heard
  // of it, and to the end of the call.
  async touch() {
    const name = `file${++touched}`
    const start = performance.now()
    const told = new Promise((resolve) => (news = (about) => about === name && resolve(performance.now())))
    await warm.files.write(`/home/user/watched/${name}`, 'news')
    const done = performance.now()
    return { first: (await told) - start, done: done - start }
  },

  async close() {
    await warm.kill()
    return {}
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer
  try {
    answer = await operations[line]()
  } catch (err) {
    answer = { error: `${line}: ${err.stack ?? err}` }
  }
  process.stdout.write(JSON.stringify(answer) + '\n')
}
