// Templates that are built of steps: by a build, by the next one, and what fails.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { describe } from 'node:test'
import { Sandbox, Template, waitForFile } from 'e2b'
import { api, check, rejection } from './support.js'

// named returns a name for a template that is deleted when the test ends.
function named(t) {
  const name = `js-${randomUUID()}`
  t.after(() => api('DELETE', `/templates/${name}`))
  return name
}

// context makes a directory with files.
function context(t, files) {
  const dir = mkdtempSync(join(tmpdir(), 'drowse-context-'))
  t.after(() => rmSync(dir, { recursive: true }))
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(dir, name, '..'), { recursive: true })
    writeFileSync(join(dir, name), text)
  }
  return dir
}

// build builds, and returns what the log says.
async function build(template, name, opts = {}) {
  const log = []
  await Template.build(template, name, { ...opts, onBuildLogs: (entry) => log.push(entry.message) })
  return log
}

async function started(t, name) {
  const sandbox = await Sandbox.create(name, { timeoutMs: 150_000 })
  t.after(() => sandbox.kill())
  return sandbox
}

describe('templates', () => {
  check('steps run as they say, and the second build runs none', async (t) => {
    const name = named(t)
    const fileContextPath = context(t, { 'one.txt': 'one', 'src/a.txt': 'a', 'src/sub/b.txt': 'b', 'src/x.md': 'x' })
    const template = Template({ fileContextPath })
      .fromTemplate('base')
      .runCmd('id -un; pwd')
      .setEnvs({ FIRST: 'one', SECOND: '$FIRST two' })
      .setWorkdir('/srv/app')
      .copy('one.txt', 'renamed.txt')
      .copy('src', 'src', { mode: 0o700 })
      .copy('src/*.md', '/srv/docs/', { user: 'root' })
      .runCmd('echo "$SECOND" > envs; pwd')
      .runCmd('id -un; touch /etc/by-root', { user: 'root' })
      .setUser('root')
    const first = await build(template, name)
    for (const line of ['user', '/home/user', '/srv/app', 'root']) assert.ok(first.includes(line), first.join('\n'))

    const sandbox = await started(t, name)
    const { stdout } = await sandbox.commands.run('id -un; pwd; cat envs renamed.txt src/a.txt src/sub/b.txt; echo; stat -c "%a %U %n" src/a.txt /srv/docs/x.md /etc/by-root; echo $SECOND')
    assert.equal(stdout, 'root\n/srv/app\none two\noneab\n700 user src/a.txt\n644 root /srv/docs/x.md\n644 root /etc/by-root\none two\n')

    const second = await build(template, name)
    assert.ok(!second.includes('/srv/app'), second.join('\n'))
    assert.equal(second.filter((line) => line.startsWith('CACHED')).length, 9, second.join('\n'))
    writeFileSync(join(fileContextPath, 'one.txt'), 'another')
    const third = await build(template, name)
    assert.equal(third.filter((line) => line.startsWith('CACHED')).length, 3, third.join('\n'))
    assert.equal(await (await started(t, name)).files.read('/srv/app/renamed.txt'), 'another')
  })

  check('a step that fails is told by its line', async (t) => {
    const name = named(t)
    const template = Template()
      .fromTemplate('base')
      .runCmd('true')
      .runCmd('echo to be seen; exit 3')
    const log = []
    const err = await rejection(Template.build(template, name, { onBuildLogs: (entry) => log.push(entry.message) }))
    assert.equal(err.constructor.name, 'BuildError')
    assert.match(err.message, /exit status 3/)
    assert.match(err.stack, /templates\.test\.js/)
    assert.ok(log.includes('to be seen'), log.join('\n'))
    await assert.rejects(Sandbox.create(name), /not found/)
    const missing = await rejection(Template.build(Template().fromTemplate('no-such-template').runCmd('true'), name))
    assert.match(missing.message, /no-such-template/)
    await assert.rejects(Template.build(template, 'base'), /409/)
  })

  check('a start command runs in every sandbox', async (t) => {
    const name = named(t)
    const template = Template()
      .fromBaseImage()
      .setStartCmd('echo $RANDOM > /home/user/started; exec sleep 1000', waitForFile('/home/user/started'))
    await build(template, name)
    const read = async () => (await started(t, name)).commands.run('cat started; grep -lx sleep /proc/[0-9]*/comm')
    const [one, two] = [await read(), await read()]
    assert.match(one.stdout, /^\d+\n\/proc\/\d+\/comm\n$/)
    assert.equal(two.stdout, one.stdout) // it was started once, and goes on in each
  })

  check('a build in the background', async (t) => {
    const name = named(t)
    const info = await Template.buildInBackground(Template().fromTemplate('base').runCmd('echo in the background'), name)
    const lines = []
    for (;;) {
      const status = await Template.getBuildStatus(info, { logsOffset: lines.length })
      lines.push(...status.logEntries.map((entry) => entry.message))
      if (status.status === 'ready') break
      assert.ok(['waiting', 'building'].includes(status.status), JSON.stringify(status))
      await delay(100)
    }
    const rest = await Template.getBuildStatus(info, { logsOffset: lines.length })
    lines.push(...rest.logEntries.map((entry) => entry.message))
    assert.ok(lines.includes('in the background'), lines.join('\n'))
  })

  check('tags name results', async (t) => {
    const name = named(t)
    const template = (text) => Template().fromTemplate('base').runCmd(`echo ${text} > /home/user/file`)
    const read = async (ref) => (await started(t, ref)).files.read('/home/user/file')
    await build(template('first'), `${name}:v1`, { tags: ['stable'] })
    await build(template('second'), `${name}:v2`)
    assert.equal(await read(`${name}:v1`), 'first\n')
    assert.equal(await read(`${name}:stable`), 'first\n')
    assert.equal(await read(`${name}:v2`), 'second\n')
    await Template.assignTags(`${name}:v2`, ['stable', 'default'])
    assert.equal(await read(`${name}:stable`), 'second\n')
    assert.equal(await read(name), 'second\n')
    await Template.removeTags(name, ['v1'])
    assert.deepEqual((await Template.getTags(name)).map((tag) => tag.tag).sort(), ['default', 'stable', 'v2'])
    await assert.rejects(Sandbox.create(`${name}:v1`), /not found/)
    assert.equal(await Template.exists(name), true)
    assert.equal(await Template.exists(`js-${randomUUID()}`), false)
    assert.equal(await Template.exists('base'), true)
    assert.equal(await Template.aliasExists('base'), true)
    assert.equal(await api('DELETE', `/templates/${name}`), 204)
    assert.equal(await api('DELETE', `/templates/${name}`), 404)
    await assert.rejects(Sandbox.create(name), /not found/)
  })
})
