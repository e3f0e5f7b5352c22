import assert from 'node:assert/strict'
import { after, before, describe } from 'node:test'
import { Sandbox } from 'e2b'
import { check, listAll, marker, open } from './support.js'

const ids = (sandboxes) => sandboxes.map((s) => s.sandboxId)

describe('list', () => {
  const run = marker()
  const odd = { 'odd key': 'a b', 'k&=%é': 'c&d=e%20 é', plus: '1+1' }
  const created = []

  before(async () => {
    for (let i = 0; i < 3; i++) {
      created.push(await Sandbox.create({ timeoutMs: 150_000, metadata: { run, index: String(i), ...odd } }))
    }
  })
  after(() => Promise.all(created.map((sandbox) => sandbox.kill())))

  check('by metadata, newest first', async () => {
    const found = await listAll({ query: { metadata: { run } } })
    assert.deepEqual(ids(found), ids(created).reverse())
    for (const info of found) {
      assert.equal(info.state, 'running')
      assert.equal(info.metadata.run, run)
      assert.notEqual(info.templateId, '')
      assert.ok(info.cpuCount >= 1)
      assert.ok(info.memoryMB >= 128)
      assert.ok(info.endAt > info.startedAt)
    }
    const times = found.map((info) => info.startedAt.getTime())
    assert.deepEqual(times, [...times].sort((a, b) => b - a))
  })

  check('without a filter all are there', async () => {
    const found = ids(await listAll())
    for (const id of ids(created)) assert.ok(found.includes(id), `${id} is not listed`)
  })

  check('by metadata: all pairs must match', async () => {
    const found = await listAll({ query: { metadata: { run, index: '1' } } })
    assert.deepEqual(ids(found), [created[1].sandboxId])
    assert.deepEqual(await listAll({ query: { metadata: { run, index: '7' } } }), [])
  })

  for (const [key, value] of Object.entries(odd)) {
    check(`by metadata: ${JSON.stringify(key)} = ${JSON.stringify(value)}`, async () => {
      const found = await listAll({ query: { metadata: { run, [key]: value } } })
      assert.deepEqual(ids(found), ids(created).reverse())
      assert.equal(found[0].metadata[key], value)
      assert.deepEqual(await listAll({ query: { metadata: { run, [key]: `${value}x` } } }), [])
    })
  }

  check('in pages of one', async () => {
    const paginator = Sandbox.list({ query: { metadata: { run } }, limit: 1 })
    for (const [i, want] of ids(created).reverse().entries()) {
      assert.equal(paginator.hasNext, true)
      assert.deepEqual(ids(await paginator.nextItems()), [want])
      assert.equal(paginator.hasNext, i < 2, `hasNext after page ${i + 1}`)
    }
    await assert.rejects(paginator.nextItems())
  })

  check('a page that is exactly full is the last', async () => {
    const paginator = Sandbox.list({ query: { metadata: { run } }, limit: 3 })
    assert.equal((await paginator.nextItems()).length, 3)
    assert.equal(paginator.hasNext, false)
  })

  check('oldest first when asked for', async () => {
    assert.deepEqual(ids(await listAll({ query: { metadata: { run } }, order: 'asc', limit: 2 })), ids(created))
  })

  check('by state, and not at all after kill', async (t) => {
    const metadata = { run: marker() }
    const older = await open(t, { metadata })
    const newer = await open(t, { metadata })
    const listed = async (state) => ids(await listAll({ query: { metadata, ...(state && { state }) } }))

    await older.pause()
    assert.deepEqual(await listed(['running']), [newer.sandboxId])
    assert.deepEqual(await listed(['paused']), [older.sandboxId])
    assert.deepEqual(await listed(['running', 'paused']), [newer.sandboxId, older.sandboxId])
    assert.deepEqual(await listed(), [newer.sandboxId, older.sandboxId])

    await newer.kill()
    assert.deepEqual(await listed(), [older.sandboxId])
    await older.kill()
    assert.deepEqual(await listed(), [])
  })
})
