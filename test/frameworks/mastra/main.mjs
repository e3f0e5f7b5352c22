// @mastra/e2b: a sandbox of a workspace, which stop() puts to sleep.
import assert from 'node:assert/strict'
import { appendFileSync, readFileSync } from 'node:fs'
import { E2BSandbox } from '@mastra/e2b'
import { Sandbox } from 'e2b'

const { version } = JSON.parse(readFileSync(new URL('./node_modules/@mastra/e2b/package.json', import.meta.url)))

async function step(name, work) {
  const begin = Date.now()
  await work()
  console.log(`@mastra/e2b: ${name} (${(Date.now() - begin) / 1000} s)`)
  appendFileSync(process.env.DROWSE_FRAMEWORK_RESULTS, JSON.stringify({ framework: '@mastra/e2b', version, step: name }) + '\n')
}

const output = async (sandbox, command, args) => {
  const result = await sandbox.executeCommand(command, args)
  assert.equal(result.exitCode, 0, JSON.stringify(result))
  return result.stdout
}

const options = { id: 'drowse-case', timeout: 600_000, template: 'base' }
const sandbox = new E2BSandbox(options)
await sandbox.start()
const id = sandbox.e2b.sandboxId
await step('runs code', async () => assert.equal(await output(sandbox, 'python3', ['-c', 'print(6*7)']), '42\n'))
await step('writes a file', () => sandbox.e2b.files.write('/home/user/note.txt', 'written before the sleep'))
await step('starts a process', () => sandbox.processes.spawn('sleep 1000'))
await step('sleeps', async () => {
  await sandbox.stop()
  assert.equal((await Sandbox.getInfo(id)).state, 'paused')
})
let again
await step('wakes in another process, with files and processes', async () => {
  again = new E2BSandbox(options)
  await again.start()
  assert.equal(again.e2b.sandboxId, id)
  assert.equal(await output(again, 'cat', ['/home/user/note.txt']), 'written before the sleep')
  assert.match(await output(again, 'pgrep', ['-f', 'sleep 1000']), /\d/)
})
await step('ends its sandbox', () => again.destroy())
process.exit(0)
