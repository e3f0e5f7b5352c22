// What this server does not have is refused by name, and leaves nothing behind.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { FileNotFoundError, Sandbox, Secret } from 'e2b'
import { check, open, preview, rejection, shared, statusOf } from './support.js'

// refuses wants every call to fail because the server does not support it, or
// for a reason.
async function refuses(calls, reason = /is not supported by this server yet/) {
  for (const [name, call] of Object.entries(calls)) {
    const err = await rejection(Promise.resolve().then(call))
    assert.match(err.message, reason, `${name}: ${err.stack}`)
  }
}

describe('refused', () => {
  const box = shared()

  check('secrets', async () => {
    await refuses({
      create: () => Secret.create('some-secret', 'value'),
      update: () => Secret.update('some-secret', 'value'),
      getInfo: () => Secret.getInfo('some-secret'),
      list: () => Secret.list().nextItems(),
      exists: () => Secret.exists('some-secret'),
      destroy: () => Secret.destroy('some-secret'),
    }, /403: E2B's secrets do not say for which hosts/)
  })

  check('the gateway for MCP', async (t) => {
    await refuses({
      servers: () => open(t, { mcp: { time: {} } }),
      'no servers': () => open(t, { mcp: {} }),
    }, /400: "mcp" is not supported by this server yet/)
    const sandbox = await open(t)
    assert.equal(sandbox.getMcpUrl(), `https://${sandbox.getHost(50005)}/mcp`)
    assert.equal((await preview(sandbox, 50005)).status, 502) // nobody is there
    assert.ok((await rejection(sandbox.getMcpToken())) instanceof FileNotFoundError)
  })

  for (const [field, opts] of Object.entries({
    iam: { iam: { tokens: { own: { audience: 'somebody', tokenType: 'JWT-SVID' } } } },
    'network.egressProxy': { network: { egressProxy: { address: '127.0.0.1:1080' } } }, // one inside
  })) {
    check(`a sandbox with ${field}`, async (t) => {
      const err = await rejection(open(t, opts))
      assert.equal(statusOf(err), 400, err.stack)
      assert.ok(err.message.includes(field), err.message)
    })
  }
})
