import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { ALL_TRAFFIC, Sandbox } from 'e2b'
import { check, open } from './support.js'

// These tests need no internet: what is refused inside is refused without one.
const unreachable = 'curl --silent --max-time 30 http://192.0.2.1/; echo $?'
const couldNotConnect = '7\n'

describe('network', () => {
  check('without internet access', async (t) => {
    const sandbox = await open(t, { allowInternetAccess: false })
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
    assert.equal((await sandbox.commands.run(unreachable)).stdout, couldNotConnect)
  })

  check('rules are shown and hold', async (t) => {
    const network = { allowOut: ['example.com', '203.0.113.0/24'], denyOut: [ALL_TRAFFIC] }
    const sandbox = await open(t, { network: { ...network, allowOut: ['203.0.113.0/24'] } })
    assert.equal((await sandbox.commands.run(unreachable)).stdout, couldNotConnect)
    await sandbox.updateNetwork(network)
    const shown = (await sandbox.getInfo()).network
    assert.deepEqual({ allowOut: shown.allowOut, denyOut: shown.denyOut }, network)
  })

  check('an update replaces all rules, and survives a pause', async (t) => {
    const sandbox = await open(t, { network: { denyOut: ['192.0.2.1'] } })
    assert.equal((await sandbox.commands.run(unreachable)).stdout, couldNotConnect)
    await sandbox.updateNetwork({ denyOut: ['192.0.2.0/24'] })
    await sandbox.pause()
    await sandbox.connect()
    assert.deepEqual((await sandbox.getInfo()).network?.denyOut, ['192.0.2.0/24'])
    assert.equal((await sandbox.commands.run(unreachable)).stdout, couldNotConnect)
  })

  check('a name needs all else denied', async () => {
    await assert.rejects(Sandbox.create({ network: { allowOut: ['example.com'] } }), /you must include 'ALL_TRAFFIC' in deny out/)
  })
})
