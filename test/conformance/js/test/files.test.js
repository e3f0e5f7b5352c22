import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe } from 'node:test'
import { FileNotFoundError, InvalidArgumentError, NotFoundError } from 'e2b'
import { assertNear, check, rejectsAs, scratch, sha256, shared } from './support.js'

const everyByte = Uint8Array.from({ length: 256 }, (_, i) => i)

const bufferOf = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)

async function collect(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}

function streamOf(bytes, chunk = 64 * 1024) {
  let at = 0
  return new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close()
      controller.enqueue(bytes.subarray(at, at + chunk))
      at += chunk
    },
  })
}

describe('files', () => {
  const box = shared()
  const stat = async (path) => (await box.sandbox.commands.run(`stat -c '%U:%G %a' '${path}'`)).stdout.trim()

  check('text: written and read back', async () => {
    const path = scratch('.txt')
    const info = await box.sandbox.files.write(path, 'héllo 漢字 😀\n')
    assert.equal(info.path, path)
    assert.equal(info.name, path.slice('/tmp/'.length))
    assert.equal(info.type, 'file')
    assert.equal(info.metadata, undefined)
    assert.equal(await box.sandbox.files.read(path), 'héllo 漢字 😀\n')
    assert.equal((await box.sandbox.commands.run(`cat ${path}`)).stdout, 'héllo 漢字 😀\n')
  })

  for (const [name, data] of [
    ['an ArrayBuffer', () => bufferOf(everyByte)],
    ['a Blob', () => new Blob([everyByte])],
    ['a ReadableStream', () => streamOf(everyByte, 100)],
  ]) {
    check(`bytes: written from ${name}, read in every format`, async () => {
      const path = scratch()
      const info = await box.sandbox.files.write(path, data())
      assert.equal(info.path, path)
      const want = Buffer.from(everyByte)
      assert.deepEqual(Buffer.from(await box.sandbox.files.read(path, { format: 'bytes' })), want)
      const blob = await box.sandbox.files.read(path, { format: 'blob' })
      assert.deepEqual(Buffer.from(await blob.arrayBuffer()), want)
      assert.deepEqual(await collect(await box.sandbox.files.read(path, { format: 'stream' })), want)
    })
  }

  check('bytes: sent as an octet stream', async () => {
    const path = scratch()
    const info = await box.sandbox.files.write(path, bufferOf(everyByte), { useOctetStream: true })
    assert.deepEqual({ path: info.path, type: info.type }, { path, type: 'file' })
    assert.deepEqual(await box.sandbox.files.read(path, { format: 'bytes' }), everyByte)
  })

  check('an empty file, in every format', async () => {
    const path = scratch()
    await box.sandbox.files.write(path, '')
    assert.equal(await box.sandbox.files.read(path), '')
    const bytes = await box.sandbox.files.read(path, { format: 'bytes' })
    assert.ok(bytes instanceof Uint8Array)
    assert.equal(bytes.length, 0)
    assert.equal((await box.sandbox.files.read(path, { format: 'blob' })).size, 0)
    assert.equal((await collect(await box.sandbox.files.read(path, { format: 'stream' }))).length, 0)
    assert.equal((await box.sandbox.files.getInfo(path)).size, 0)
  })

  check('50 MiB there and back', async () => {
    const path = scratch()
    const data = randomBytes(50 * 1024 * 1024)
    await box.sandbox.files.write(path, bufferOf(data))
    const { stdout } = await box.sandbox.commands.run(`sha256sum < ${path}`)
    assert.equal(stdout.split(' ')[0], sha256(data))
    const back = await box.sandbox.files.read(path, { format: 'bytes' })
    assert.equal(back.length, data.length)
    assert.equal(sha256(back), sha256(data))
    await box.sandbox.files.remove(path)
  })

  check('20 MiB streamed there and back', async () => {
    const path = scratch()
    const data = randomBytes(20 * 1024 * 1024)
    await box.sandbox.files.write(path, streamOf(data))
    assert.equal((await box.sandbox.files.getInfo(path)).size, data.length)
    const back = await collect(await box.sandbox.files.read(path, { format: 'stream' }))
    assert.equal(sha256(back), sha256(data))
    await box.sandbox.files.remove(path)
  })

  check('several files in one call, in order', async () => {
    const dir = scratch()
    const files = [
      { path: `${dir}/b.txt`, data: 'b' },
      { path: `${dir}/deep/er/a.txt`, data: 'a' },
      { path: `${dir}/with space é.bin`, data: bufferOf(everyByte) },
      { path: 'several-relative.txt', data: '' },
    ]
    const infos = await box.sandbox.files.write(files)
    assert.deepEqual(infos.map((info) => info.path), [
      `${dir}/b.txt`,
      `${dir}/deep/er/a.txt`,
      `${dir}/with space é.bin`,
      '/home/user/several-relative.txt',
    ])
    assert.deepEqual(infos.map((info) => info.name), ['b.txt', 'a.txt', 'with space é.bin', 'several-relative.txt'])
    assert.equal(await box.sandbox.files.read(`${dir}/b.txt`), 'b')
    assert.equal(await box.sandbox.files.read(`${dir}/deep/er/a.txt`), 'a')
    assert.deepEqual(await box.sandbox.files.read(`${dir}/with space é.bin`, { format: 'bytes' }), everyByte)
    assert.equal(await box.sandbox.files.read('several-relative.txt'), '')
    assert.deepEqual(await box.sandbox.files.writeFiles(files), infos)
  })

  check('missing parents are created', async () => {
    const dir = scratch()
    await box.sandbox.files.write(`${dir}/x/y/z.txt`, 'deep')
    assert.equal(await box.sandbox.files.read(`${dir}/x/y/z.txt`), 'deep')
    assert.equal(await stat(`${dir}/x`), 'user:user 755')
  })

  check('a shorter text replaces a longer one', async () => {
    const path = scratch()
    await box.sandbox.files.write(path, 'the longer text')
    await box.sandbox.files.write(path, 'short')
    assert.equal(await box.sandbox.files.read(path), 'short')
  })

  check('files belong to the user they are written as', async () => {
    const dir = scratch()
    await box.sandbox.files.write(`${dir}/mine`, '')
    assert.equal(await stat(`${dir}/mine`), 'user:user 644')
    const path = scratch()
    await box.sandbox.files.write(path, '', { user: 'root' })
    assert.equal(await stat(path), 'root:root 644')
  })

  check('list, with depth', async () => {
    const dir = scratch()
    await box.sandbox.files.write([
      { path: `${dir}/a/inner/leaf.txt`, data: '12345' },
      { path: `${dir}/a/one.txt`, data: '1' },
      { path: `${dir}/b.txt`, data: '' },
    ])
    const paths = async (depth) =>
      (await box.sandbox.files.list(dir, depth && { depth })).map((entry) => entry.path.slice(dir.length))
    assert.deepEqual(await paths(), ['/a', '/b.txt'])
    assert.deepEqual(await paths(1), ['/a', '/b.txt'])
    assert.deepEqual(await paths(2), ['/a', '/a/inner', '/a/one.txt', '/b.txt'])
    assert.deepEqual(await paths(3), ['/a', '/a/inner', '/a/inner/leaf.txt', '/a/one.txt', '/b.txt'])
    const entries = await box.sandbox.files.list(dir, { depth: 3 })
    assert.deepEqual(entries.map((e) => [e.name, e.type]), [
      ['a', 'dir'],
      ['inner', 'dir'],
      ['leaf.txt', 'file'],
      ['one.txt', 'file'],
      ['b.txt', 'file'],
    ])
    assert.equal(entries[2].size, 5)
  })

  check('list of an empty directory', async () => {
    const dir = scratch()
    await box.sandbox.files.makeDir(dir)
    assert.deepEqual(await box.sandbox.files.list(dir), [])
  })

  check('exists', async () => {
    const dir = scratch()
    assert.equal(await box.sandbox.files.exists(dir), false)
    await box.sandbox.files.write(`${dir}/f`, '')
    assert.equal(await box.sandbox.files.exists(dir), true)
    assert.equal(await box.sandbox.files.exists(`${dir}/f`), true)
    assert.equal(await box.sandbox.files.exists(`${dir}/g`), false)
  })

  check('getInfo of a file', async () => {
    const path = scratch('.txt')
    await box.sandbox.files.write(path, '12345')
    const info = await box.sandbox.files.getInfo(path)
    assert.deepEqual(
      { ...info, modifiedTime: undefined },
      {
        name: path.slice('/tmp/'.length),
        path,
        type: 'file',
        size: 5,
        mode: 0o644,
        permissions: '-rw-r--r--',
        owner: 'user',
        group: 'user',
        modifiedTime: undefined,
        symlinkTarget: undefined,
        metadata: undefined,
      },
    )
    assertNear((Date.now() - info.modifiedTime.getTime()) / 1000, 0, 30, 'seconds since the write')
  })

  check('getInfo of a directory and of a symlink', async () => {
    const dir = scratch()
    await box.sandbox.files.write(`${dir}/target.txt`, 'x')
    await box.sandbox.commands.run(`ln -s target.txt ${dir}/link`)
    const info = await box.sandbox.files.getInfo(dir)
    assert.equal(info.type, 'dir')
    assert.equal(info.permissions, 'drwxr-xr-x')
    const link = await box.sandbox.files.getInfo(`${dir}/link`)
    assert.equal(link.path, `${dir}/link`)
    assert.equal(link.symlinkTarget, `${dir}/target.txt`)
    assert.equal(await box.sandbox.files.read(`${dir}/link`), 'x')
  })

  check('rename', async () => {
    const dir = scratch()
    await box.sandbox.files.write(`${dir}/old.txt`, 'content')
    const info = await box.sandbox.files.rename(`${dir}/old.txt`, `${dir}/sub/new.txt`)
    assert.equal(info.path, `${dir}/sub/new.txt`)
    assert.equal(info.name, 'new.txt')
    assert.equal(info.type, 'file')
    assert.equal(await box.sandbox.files.exists(`${dir}/old.txt`), false)
    assert.equal(await box.sandbox.files.read(`${dir}/sub/new.txt`), 'content')
    await rejectsAs(box.sandbox.files.rename(`${dir}/old.txt`, `${dir}/x`), FileNotFoundError)
  })

  check('remove: a file, a tree, and what is not there', async () => {
    const dir = scratch()
    await box.sandbox.files.write(`${dir}/a/b.txt`, '')
    await box.sandbox.files.write(`${dir}/c.txt`, '')
    await box.sandbox.files.remove(`${dir}/c.txt`)
    assert.equal(await box.sandbox.files.exists(`${dir}/c.txt`), false)
    await box.sandbox.files.remove(dir)
    assert.equal(await box.sandbox.files.exists(dir), false)
    await box.sandbox.files.remove(dir)
  })

  check('makeDir: true, then false', async () => {
    const dir = scratch()
    assert.equal(await box.sandbox.files.makeDir(`${dir}/a/b`), true)
    assert.equal(await box.sandbox.files.makeDir(`${dir}/a/b`), false)
    assert.equal(await stat(`${dir}/a/b`), 'user:user 755')
    await box.sandbox.files.write(`${dir}/file`, '')
    await rejectsAs(box.sandbox.files.makeDir(`${dir}/file`), InvalidArgumentError)
  })

  check('what is missing is a FileNotFoundError', async () => {
    const path = scratch()
    assert.ok((await rejectsAs(box.sandbox.files.read(path), FileNotFoundError)) instanceof NotFoundError)
    await rejectsAs(box.sandbox.files.read(path, { format: 'stream' }), FileNotFoundError)
    await rejectsAs(box.sandbox.files.list(path), FileNotFoundError)
    await rejectsAs(box.sandbox.files.getInfo(path), FileNotFoundError)
  })

  check('a directory is not read, a file is not listed, a directory is not overwritten', async () => {
    const dir = scratch()
    await box.sandbox.files.write(`${dir}/f`, '')
    await rejectsAs(box.sandbox.files.read(dir), InvalidArgumentError)
    await rejectsAs(box.sandbox.files.list(`${dir}/f`), InvalidArgumentError)
    await rejectsAs(box.sandbox.files.write(dir, 'x'), InvalidArgumentError)
  })

  check('relative and ~ paths begin at the home of the user', async () => {
    const info = await box.sandbox.files.write('relative/r.txt', 'r')
    assert.equal(info.path, '/home/user/relative/r.txt')
    assert.equal(await box.sandbox.files.read('~/relative/r.txt'), 'r')
    assert.equal(await box.sandbox.files.read('/home/user/relative/r.txt'), 'r')
    assert.deepEqual((await box.sandbox.files.list('relative')).map((e) => e.path), ['/home/user/relative/r.txt'])
    assert.equal((await box.sandbox.files.write('~/tilde.txt', 't')).path, '/home/user/tilde.txt')
    assert.equal((await box.sandbox.files.write('rooted.txt', 'r', { user: 'root' })).path, '/root/rooted.txt')
    assert.equal(await box.sandbox.files.read('/root/rooted.txt', { user: 'root' }), 'r')
  })

  check('spaces and unicode in paths', async () => {
    const dir = scratch(' with space')
    const name = 'žluťoučký 漢字 😀 & %41+100% #1?.txt'
    const path = `${dir}/${name}`
    const info = await box.sandbox.files.write(path, name)
    assert.equal(info.path, path)
    assert.equal(info.name, name)
    assert.equal(await box.sandbox.files.read(path), name)
    assert.deepEqual((await box.sandbox.files.list(dir)).map((e) => e.name), [name])
    assert.equal(await box.sandbox.files.exists(path), true)
    const two = await box.sandbox.files.write([
      { path: `${path}.1`, data: '1' },
      { path: `${path}.2`, data: '2' },
    ])
    assert.deepEqual(two.map((i) => i.path), [`${path}.1`, `${path}.2`])
    assert.equal(await box.sandbox.files.read(`${path}.2`), '2')
  })

  check('a file that does not know its size', async () => {
    const path = '/proc/sys/kernel/random/boot_id'
    const text = await box.sandbox.files.read(path)
    assert.match(text, /^[0-9a-f-]{36}\n$/)
    assert.equal(text, (await box.sandbox.commands.run(`cat ${path}`)).stdout)
  })

  check('gzip, both ways', async () => {
    const path = scratch()
    const text = 'compressible é\n'.repeat(100_000)
    await box.sandbox.files.write(path, text, { gzip: true })
    const { stdout } = await box.sandbox.commands.run(`sha256sum < ${path}`)
    assert.equal(stdout.split(' ')[0], sha256(text))
    assert.equal((await box.sandbox.files.read(path, { gzip: true })) === text, true)
    const empty = scratch()
    await box.sandbox.files.write(empty, '', { gzip: true })
    assert.equal(await box.sandbox.files.read(empty, { gzip: true }), '')
  })

  check('metadata is kept with the file until the next write', async () => {
    const path = scratch()
    const metadata = { author: 'someone else', 'x-kind': 'a=b; c' }
    assert.deepEqual((await box.sandbox.files.write(path, '1', { metadata })).metadata, metadata)
    assert.deepEqual((await box.sandbox.files.getInfo(path)).metadata, metadata)
    assert.deepEqual((await box.sandbox.files.rename(path, `${path}.moved`)).metadata, metadata)
    const second = await box.sandbox.files.write(`${path}.moved`, '2', { metadata: { Upper: 'Case' } })
    assert.deepEqual(second.metadata, { upper: 'Case' })
    assert.equal((await box.sandbox.files.write(`${path}.moved`, '3')).metadata, undefined)
    assert.equal((await box.sandbox.files.getInfo(`${path}.moved`)).metadata, undefined)
  })
})
