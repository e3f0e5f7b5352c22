import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { check, open } from './support.js'

describe('concurrency', () => {
  check('five sandboxes at once do not see each other', async (t) => {
    const sandboxes = await Promise.all(
      Array.from({ length: 5 }, (_, i) => open(t, { envs: { INDEX: String(i) } })),
    )
    assert.equal(new Set(sandboxes.map((s) => s.sandboxId)).size, 5)
    await Promise.all(sandboxes.map((s, i) => s.files.write('/tmp/same-path', `of ${i}`)))
    const outputs = await Promise.all(
      sandboxes.map((s) => s.commands.run('cat /tmp/same-path; echo " $INDEX $E2B_SANDBOX_ID"')),
    )
    outputs.forEach((output, i) => assert.equal(output.stdout, `of ${i} ${i} ${sandboxes[i].sandboxId}\n`))
    assert.deepEqual(await Promise.all(sandboxes.map((s) => s.kill())), [true, true, true, true, true])
    assert.deepEqual(await Promise.all(sandboxes.map((s) => s.isRunning())), [false, false, false, false, false])
  })
})
