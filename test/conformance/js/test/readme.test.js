// Runs the JavaScript that README.md shows, as it stands there.

import assert from 'node:assert/strict'
import { readFile, rm, writeFile } from 'node:fs/promises'
import { test } from 'node:test'

test('README', { timeout: 90_000 }, async () => {
  const page = await readFile(`${process.env.DROWSE_PAGES}/README.md`, 'utf8')
  const blocks = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map((match) => match[1])
  assert.equal(blocks.length, 1)
  const program = new URL(`./readme-${process.pid}.mjs`, import.meta.url)
  await writeFile(program, `${blocks[0]}\nexport { stdout }\n`)
  try {
    const { stdout } = await import(program)
    assert.match(stdout, /^Linux .*\nuser\n$/)
  } finally {
    await rm(program)
  }
})
