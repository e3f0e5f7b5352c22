// Servers inside, reached by the host name that getHost gives them.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { check, eventually, open, preview, stateOf } from './support.js'

// serve starts a server inside that shows a file, and returns when it answers.
async function serve(sandbox, port, body) {
  await sandbox.files.write(`/home/user/${port}/index.html`, body)
  const server = `python3 -m http.server --bind 127.0.0.1 --directory /home/user/${port} ${port}`
  await sandbox.commands.run(server, { background: true, timeoutMs: 0 })
  await eventually('the server answers', async () => (await preview(sandbox, port)).status === 200, { within: 30_000 })
}

describe('previews', () => {
  check('a host name has port and sandbox', async (t) => {
    const sandbox = await open(t)
    assert.match(sandbox.getHost(8000), new RegExp(`^8000-${sandbox.sandboxId}\\.[a-z0-9.:-]+$`))
  })

  check('the right server of the right sandbox answers', async (t) => {
    const sandboxes = await Promise.all([open(t), open(t)])
    for (const sandbox of sandboxes) {
      for (const port of [8000, 8001]) await serve(sandbox, port, `${port} of ${sandbox.sandboxId}`)
    }
    for (const sandbox of sandboxes) {
      for (const port of [8000, 8001]) {
        assert.equal((await preview(sandbox, port)).body, `${port} of ${sandbox.sandboxId}`)
      }
    }
  })

  check('a port where nobody listens', async (t) => {
    const sandbox = await open(t)
    const { status, body } = await preview(sandbox, 8123)
    assert.equal(status, 502)
    assert.deepEqual(JSON.parse(body), {
      sandboxId: sandbox.sandboxId,
      message: 'The sandbox is running but port is not open',
      port: 8123,
      code: 502,
    })
  })

  check('a visit wakes', async (t) => {
    const sandbox = await open(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    await serve(sandbox, 8000, 'awake')
    await sandbox.pause()
    assert.equal((await preview(sandbox, 8000)).body, 'awake')
    assert.equal(await stateOf(sandbox), 'running')
  })

  check('of a private sandbox, with its token only', async (t) => {
    const sandbox = await open(t, { network: { allowPublicTraffic: false } })
    assert.equal((await preview(sandbox, 8000)).status, 403)
    const headers = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
    assert.equal((await preview(sandbox, 8000, { headers })).status, 502)
  })
})
