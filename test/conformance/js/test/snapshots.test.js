// Snapshots and forks: what goes on in another sandbox, and what is its own.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe } from 'node:test'
import { Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'
import { assertNear, check, counterRuns, open, readCounter, rejection, secondsUntil, startCounter, UNKNOWN } from './support.js'

// taken takes a snapshot that is deleted when the test ends.
async function taken(t, sandbox, opts) {
  const snapshot = await sandbox.createSnapshot(opts)
  t.after(() => Sandbox.deleteSnapshot(snapshot.snapshotId))
  return snapshot
}

async function all(paginator) {
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found.map((snapshot) => snapshot.snapshotId)
}

describe('snapshots', () => {
  check('a sandbox goes on from one, with its memory and files', async (t) => {
    const source = await open(t, { metadata: { of: 'the source' }, envs: { OF: 'source' } })
    const counter = await startCounter(source)
    await source.files.write('/tmp/file', 'before')
    const { endAt } = await source.getInfo()
    const snapshot = await taken(t, source)
    assert.deepEqual(snapshot.names ?? [], [])
    assert.equal((await source.getInfo()).endAt.getTime(), endAt.getTime())
    await counterRuns(source, counter)
    await source.files.write('/tmp/file', 'after')
    await source.kill()

    for (const [i, opts] of [{ metadata: { of: 'its own' }, envs: { OF: 'its own' } }, {}].entries()) {
      const child = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 150_000, ...opts })
      t.after(() => child.kill())
      assert.notEqual(child.sandboxId, source.sandboxId)
      assert.deepEqual((await child.getInfo()).metadata, opts.metadata ?? {})
      assert.equal(await child.files.read('/tmp/file'), 'before')
      await counterRuns(child, counter)
      assert.equal((await child.commands.run('echo $OF')).stdout, `${i === 0 ? 'its own' : 'source'}\n`)
      await child.files.write('/tmp/file', 'of the child')
    }
  })

  check('a name is found, and passes to the next', async (t) => {
    const name = `own-${randomUUID()}`
    const source = await open(t)
    await source.files.write('/tmp/file', 'first')
    const first = await Sandbox.createSnapshot(source.sandboxId, { name })
    assert.ok(first.names.some((n) => n.includes(name)), JSON.stringify(first))
    assert.ok(first.snapshotId.includes(name), first.snapshotId)
    await source.files.write('/tmp/file', 'second')
    const second = await taken(t, source, { name })
    assert.equal(second.snapshotId, first.snapshotId)
    const child = await Sandbox.create(name, { timeoutMs: 150_000 })
    t.after(() => child.kill())
    assert.equal(await child.files.read('/tmp/file'), 'second')
  })

  check('they are listed newest first, in pages, and by their source', async (t) => {
    const one = await open(t)
    const other = await open(t)
    const want = []
    for (const source of [one, other, one]) want.unshift((await taken(t, source)).snapshotId)
    const everything = await all(Sandbox.listSnapshots())
    assert.deepEqual(everything.filter((id) => want.includes(id)), want)
    assert.deepEqual(await all(one.listSnapshots({ limit: 1 })), [want[0], want[2]])
    assert.deepEqual(await all(Sandbox.listSnapshots({ sandboxId: other.sandboxId })), [want[1]])
    assert.deepEqual(await all(Sandbox.listSnapshots({ sandboxId: UNKNOWN })), [])
  })

  check('one that is deleted is gone', async (t) => {
    const source = await open(t)
    const { snapshotId } = await source.createSnapshot()
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
    const err = await rejection(Sandbox.create(snapshotId))
    assert.ok(err instanceof SandboxError, err.stack)
    assert.equal(await source.isRunning(), true)
  })

  check('of no sandbox there is none', async (t) => {
    const source = await open(t)
    assert.ok((await rejection(Sandbox.createSnapshot(UNKNOWN))) instanceof SandboxNotFoundError)
    assert.ok((await rejection(Sandbox.fork(UNKNOWN))) instanceof SandboxNotFoundError)
    for (const name of ['a b', 'of/another', '../x']) {
      const err = await rejection(source.createSnapshot({ name }))
      assert.match(err.message, /400/, err.stack)
    }
  })
})

describe('forks', () => {
  check('each goes on by itself', async (t) => {
    const source = await open(t, { metadata: { of: 'the source' }, timeoutMs: 100_000 })
    const counter = await startCounter(source)
    await source.files.write('/tmp/file', 'before')
    const { endAt } = await source.getInfo()
    const children = await source.fork({ count: 3, timeoutMs: 60_000 })
    for (const child of children) t.after(() => child.kill?.())
    assert.ok(children.every((child) => child instanceof Sandbox), String(children))
    await source.files.write('/tmp/file', 'after')
    assert.equal((await source.getInfo()).endAt.getTime(), endAt.getTime())
    const ids = new Set(children.map((child) => child.sandboxId))
    assert.equal(ids.size, 3)
    const random = new Set()
    for (const child of children) {
      const info = await child.getInfo()
      assert.deepEqual(info.metadata, { of: 'the source' })
      assertNear(secondsUntil(info.endAt), 60, 30, 'the timeout of a child')
      assert.equal(await child.files.read('/tmp/file'), 'before')
      random.add((await child.commands.run('head -c 16 /dev/urandom | od -An -tx1')).stdout)
      await counterRuns(child, counter)
    }
    assert.equal(random.size, 3)
    await counterRuns(source, counter)
    assert.ok((await readCounter(source, counter)) > 0)
  })

  check('of a paused one must be resumed first', async (t) => {
    const source = await open(t)
    await source.pause()
    const err = await rejection(source.fork())
    assert.match(err.message, /resume/, err.stack)
    const list = await all(source.listSnapshots())
    assert.deepEqual(list, [])
  })

  check('a count that cannot be meant', async (t) => {
    const source = await open(t)
    for (const count of [0, 101]) assert.match((await rejection(source.fork({ count }))).message, /400|count/i)
    assert.equal(await source.isRunning(), true)
  })
})
