// Git inside the sandbox: the SDK runs the sandbox's own git. The origin is a
// bare repository in the sandbox, so that no network is needed.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { CommandExitError } from 'e2b'
import { check, rejectsAs, scratch, shared } from './support.js'

describe('git', () => {
  const box = shared()

  // repository makes an empty one, whose commits have an author.
  const repository = async () => {
    const path = scratch()
    const { git } = box.sandbox
    await git.init(path, { initialBranch: 'main' })
    await git.configureUser('Some One', 'one@example.com', { scope: 'local', path })
    return path
  }

  const write = (path, data) => box.sandbox.files.write(path, data)

  check('init, status, add, commit', async () => {
    const path = await repository()
    const { git } = box.sandbox
    await write(`${path}/a.txt`, 'a')
    const before = await git.status(path)
    assert.deepEqual([before.currentBranch, before.isClean, before.untrackedCount], ['main', false, 1])
    assert.equal(before.fileStatus[0].name, 'a.txt')
    await git.add(path, { files: ['a.txt'] })
    assert.equal((await git.status(path)).stagedCount, 1)
    await git.commit(path, 'the first')
    assert.equal((await git.status(path)).isClean, true)
    const { stdout } = await box.sandbox.commands.run('git log --format="%an %ae %s"', { cwd: path })
    assert.equal(stdout, 'Some One one@example.com the first\n')
  })

  check('nothing to commit is a CommandExitError', async () => {
    await rejectsAs(box.sandbox.git.commit(await repository(), 'nothing'), CommandExitError)
  })

  check('branches are made, listed, changed to and deleted', async () => {
    const path = await repository()
    const { git } = box.sandbox
    await git.commit(path, 'the first', { allowEmpty: true })
    await git.createBranch(path, 'other')
    assert.deepEqual(await git.branches(path), { branches: ['main', 'other'], currentBranch: 'other' })
    await git.checkoutBranch(path, 'main')
    assert.equal((await git.branches(path)).currentBranch, 'main')
    await git.deleteBranch(path, 'other')
    assert.deepEqual((await git.branches(path)).branches, ['main'])
  })

  check('restore and reset', async () => {
    const path = await repository()
    const { git } = box.sandbox
    await write(`${path}/f`, 'committed')
    await git.add(path)
    await git.commit(path, 'the first')
    await write(`${path}/f`, 'changed')
    await git.restore(path, { paths: ['f'] })
    assert.equal(await box.sandbox.files.read(`${path}/f`), 'committed')
    await write(`${path}/f`, 'changed again')
    await git.add(path)
    await git.reset(path, { mode: 'hard', target: 'HEAD' })
    assert.equal(await box.sandbox.files.read(`${path}/f`), 'committed')
    assert.equal((await git.status(path)).isClean, true)
  })

  check('clone, push and pull', async () => {
    const { git } = box.sandbox
    const [origin, one, two] = [scratch('.git'), await repository(), scratch()]
    await git.init(origin, { bare: true, initialBranch: 'main' })
    await git.remoteAdd(one, 'origin', origin)
    assert.equal(await git.remoteGet(one, 'origin'), origin)
    assert.equal(await git.remoteGet(one, 'none'), undefined)
    await git.commit(one, 'the first', { allowEmpty: true })
    await git.push(one, { remote: 'origin', branch: 'main' })
    await git.clone(`file://${origin}`, { path: two, depth: 1 })
    assert.equal((await git.status(two)).upstream, 'origin/main')

    await write(`${one}/f`, 'from one')
    await git.add(one)
    await git.commit(one, 'the second')
    assert.equal((await git.status(one)).ahead, 1)
    await git.push(one)
    await git.pull(two)
    assert.equal(await box.sandbox.files.read(`${two}/f`), 'from one')
  })

  check('settings', async () => {
    const path = await repository()
    const { git } = box.sandbox
    await git.setConfig('drowse.key', 'a "b" é', { scope: 'local', path })
    assert.equal(await git.getConfig('drowse.key', { scope: 'local', path }), 'a "b" é')
    assert.equal(await git.getConfig('drowse.none', { scope: 'local', path }), undefined)
    assert.equal(await git.getConfig('user.name', { scope: 'local', path }), 'Some One')
  })

  check('credentials are kept for later', async () => {
    await box.sandbox.git.dangerouslyAuthenticate({ username: 'someone', password: 'secret', host: 'git.example.com' })
    const { stdout } = await box.sandbox.commands.run(
      'printf "protocol=https\\nhost=git.example.com\\n\\n" | git credential fill',
    )
    assert.match(stdout, /^username=someone\npassword=secret$/m)
  })
})
