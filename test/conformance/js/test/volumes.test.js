import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { describe } from 'node:test'
import { Sandbox, SandboxError, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'
import { check, open, rejectsAs } from './support.js'

// make creates a volume that is destroyed when the test ends: after its
// sandboxes, which are to be opened later.
async function make(t) {
  const sandboxes = []
  const volume = await Volume.create(`js-${randomUUID()}`)
  t.after(async () => {
    await Promise.all(sandboxes.map((s) => Sandbox.kill(s.sandboxId)))
    await Volume.destroy(volume.volumeId)
  })
  const mounted = async (opts) => {
    const sandbox = await open(t, opts)
    sandboxes.push(sandbox)
    return sandbox
  }
  return { volume, mounted }
}

describe('volumes', () => {
  check('are created, listed, connected to and destroyed', async (t) => {
    const { volume } = await make(t)
    assert.ok(volume.token)
    const listed = await Volume.list()
    assert.ok(listed.some((v) => v.volumeId === volume.volumeId && v.name === volume.name))
    const info = await Volume.getInfo(volume.volumeId)
    assert.deepEqual([info.name, info.token], [volume.name, volume.token])
    await volume.writeFile('/a', 'text')
    assert.equal(await (await Volume.connect(volume.volumeId)).readFile('/a'), 'text')
    for (const name of [volume.name, 'no name', 'a/b']) {
      assert.match((await rejectsAs(Volume.create(name), VolumeError)).message, /^400: /)
    }
    assert.equal(await Volume.destroy(volume.volumeId), true)
    assert.equal(await Volume.destroy(volume.volumeId), false)
    await rejectsAs(Volume.getInfo(volume.volumeId), VolumeNotFoundError)
  })

  check('hold files', async (t) => {
    const { volume } = await make(t)
    const dir = await volume.makeDir('/d', { mode: 0o750 })
    assert.deepEqual([dir.path, dir.type, dir.mode], ['/d', 'directory', 0o750])
    await rejectsAs(volume.makeDir('/d'), VolumeError)
    await rejectsAs(volume.makeDir('/x/y'), VolumePathNotFoundError)
    assert.equal((await volume.makeDir('/x/y', { force: true })).path, '/x/y')

    const data = randomBytes(3 << 20)
    const made = await volume.writeFile('/d/f', new Blob([data]), { mode: 0o600 })
    assert.deepEqual([made.name, made.path, made.type, made.size, made.mode, made.uid], ['f', '/d/f', 'file', data.length, 0o600, 1000])
    assert.ok(made.mtime instanceof Date && Date.now() - made.mtime < 3_600_000)
    assert.ok(Buffer.from(await volume.readFile('/d/f', { format: 'bytes' })).equals(data))
    await volume.writeFile('/d/f', 'é')
    assert.equal(await volume.readFile('/d/f'), 'é')
    await rejectsAs(volume.writeFile('/none/f', ''), VolumePathNotFoundError)

    assert.deepEqual((await volume.list('/')).map((e) => e.path), ['/d', '/x'])
    assert.deepEqual((await volume.list('/', { depth: 2 })).map((e) => e.path), ['/d', '/d/f', '/x', '/x/y'])
    const changed = await volume.updateMetadata('/d/f', { uid: 0, gid: 0, mode: 0o644 })
    assert.deepEqual([changed.uid, changed.gid, changed.mode], [0, 0, 0o644])
    assert.equal(await volume.exists('/d/f'), true)
    await volume.remove('/d')
    assert.equal(await volume.exists('/d/f'), false)
    for (const call of [volume.getInfo, volume.readFile, volume.list, volume.remove]) {
      await rejectsAs(call.call(volume, '/d/f'), VolumePathNotFoundError)
    }
    await rejectsAs(volume.readFile('/../../etc/passwd'), VolumePathNotFoundError)
  })

  check('are shared by sandboxes, over the sleep of one', async (t) => {
    const { volume, mounted } = await make(t)
    const first = await mounted({ volumeMounts: { '/mnt/data': volume } })
    const second = await mounted({ volumeMounts: { '/mnt/data': volume.name } })
    await volume.writeFile('/in', 'from outside')
    assert.equal(await first.files.read('/mnt/data/in'), 'from outside')
    await first.files.write('/mnt/data/out', 'from inside')
    assert.equal((await second.commands.run('cat /mnt/data/out')).stdout, 'from inside')
    assert.deepEqual((await first.getInfo()).volumeMounts, [{ name: volume.name, path: '/mnt/data' }])
    const refused = await rejectsAs(Volume.destroy(volume.volumeId), VolumeError)
    assert.ok(refused.message.includes(first.sandboxId) && refused.message.includes(second.sandboxId), refused.message)

    await first.pause()
    await volume.writeFile('/in', 'changed')
    await first.connect()
    assert.equal((await first.commands.run('cat /mnt/data/in')).stdout, 'changed')
  })

  for (const [what, mounts] of Object.entries({
    'an unknown volume': () => ({ '/mnt': 'no-such-volume' }),
    'a relative path': (v) => ({ mnt: v }),
    'the root': (v) => ({ '/': v }),
    'one path twice': (v) => ({ '/mnt': v, '/mnt/': v }),
  })) {
    check(`${what} is refused`, async (t) => {
      const { volume } = await make(t)
      const err = await rejectsAs(Sandbox.create({ volumeMounts: mounts(volume.name) }), SandboxError)
      assert.match(err.message, /^400: /)
    })
  }
})
