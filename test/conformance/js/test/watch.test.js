import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { FileNotFoundError, FilesystemEventType, InvalidArgumentError } from 'e2b'
import { check, eventually, rejectsAs, scratch, shared } from './support.js'

describe('watching directories', () => {
  const box = shared()

  // watch collects what happens in a new directory until the test ends.
  const watch = async (t, opts) => {
    const dir = scratch()
    await box.sandbox.files.makeDir(dir)
    const events = []
    const handle = await box.sandbox.files.watchDir(dir, (event) => void events.push(event), { timeoutMs: 0, ...opts })
    t.after(() => handle.stop())
    const told = (type, name) =>
      eventually(`${type} ${name}`, () => events.find((event) => event.type === type && event.name === name), { within: 30_000 })
    return { dir, events, told }
  }

  check('every kind of event', async (t) => {
    const { dir, told } = await watch(t)
    await box.sandbox.files.write(`${dir}/a`, 'x')
    await told(FilesystemEventType.CREATE, 'a')
    await told(FilesystemEventType.WRITE, 'a')
    await box.sandbox.commands.run(`chmod 600 ${dir}/a`)
    await told(FilesystemEventType.CHMOD, 'a')
    await box.sandbox.files.rename(`${dir}/a`, `${dir}/b`)
    await told(FilesystemEventType.RENAME, 'a')
    await told(FilesystemEventType.CREATE, 'b')
    await box.sandbox.files.remove(`${dir}/b`)
    await told(FilesystemEventType.REMOVE, 'b')
  })

  check('an existing file that is overwritten', async (t) => {
    const { dir, events, told } = await watch(t)
    await box.sandbox.files.write(`${dir}/a`, 'x')
    await told(FilesystemEventType.WRITE, 'a')
    events.length = 0
    await box.sandbox.files.write(`${dir}/a`, 'y')
    await told(FilesystemEventType.WRITE, 'a')
    assert.equal(events.find((event) => event.type === FilesystemEventType.CREATE), undefined)
  })

  check('a tree, with directories made after the watch', async (t) => {
    const { dir, events, told } = await watch(t, { recursive: true })
    await box.sandbox.files.makeDir(`${dir}/new/deep`)
    await box.sandbox.files.write(`${dir}/new/deep/file`, 'x')
    await told(FilesystemEventType.WRITE, 'new/deep/file')
    await box.sandbox.commands.run(`for i in $(seq 50); do mkdir -p ${dir}/$i/a/b && echo x > ${dir}/$i/a/b/f; done`)
    for (let i = 1; i <= 50; i++) {
      for (const name of [`${i}`, `${i}/a`, `${i}/a/b`, `${i}/a/b/f`]) {
        await told(FilesystemEventType.CREATE, name)
        const times = events.filter((event) => event.type === FilesystemEventType.CREATE && event.name === name).length
        assert.equal(times, 1, name)
      }
    }
  })

  check('without recursive: not what is below', async (t) => {
    const { dir, events, told } = await watch(t)
    await box.sandbox.files.write(`${dir}/new/file`, 'x')
    await box.sandbox.files.write(`${dir}/last`, 'x')
    await told(FilesystemEventType.CREATE, 'last')
    assert.deepEqual(events.filter((event) => event.name.includes('/')), [])
  })

  check('with entries', async (t) => {
    const { dir, told } = await watch(t, { includeEntry: true })
    await box.sandbox.files.write(`${dir}/a`, 'content')
    const created = await told(FilesystemEventType.CREATE, 'a')
    assert.equal(created.entry.path, `${dir}/a`)
    assert.equal(created.entry.type, 'file')
    await box.sandbox.files.remove(`${dir}/a`)
    const removed = await told(FilesystemEventType.REMOVE, 'a')
    assert.equal(removed.entry, undefined)
  })

  check('a path that is no directory', async () => {
    await rejectsAs(box.sandbox.files.watchDir(scratch(), () => {}), FileNotFoundError)
    const file = scratch()
    await box.sandbox.files.write(file, 'x')
    await rejectsAs(box.sandbox.files.watchDir(file, () => {}), InvalidArgumentError)
  })

  check('stopped: the end is told, and no more events', async () => {
    const dir = scratch()
    await box.sandbox.files.makeDir(dir)
    const events = []
    let ends = 0
    const opts = { onExit: () => void ends++ }
    const handle = await box.sandbox.files.watchDir(dir, (event) => void events.push(event), opts)
    await handle.stop()
    await eventually('the end', () => ends > 0)
    await box.sandbox.files.write(`${dir}/a`, 'x')
    assert.deepEqual(events, [])
    assert.equal(ends, 1)
  })
})
