import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { Sandbox } from 'e2b'
import { check, eventually, open } from './support.js'

describe('metrics', () => {
  check('are of a sandbox that runs, and of one that sleeps', async (t) => {
    const sandbox = await open(t)
    const measured = await eventually('a metric', async () => {
      const all = await sandbox.getMetrics()
      return all.length > 0 && all
    }, { within: 30_000 })
    const [m] = measured
    assert.ok(m.timestamp instanceof Date && Math.abs(Date.now() - m.timestamp) < 120_000, `${m.timestamp}`)
    assert.ok(m.cpuCount >= 1 && m.cpuUsedPct >= 0)
    assert.ok(m.memUsed > 0 && m.memUsed <= m.memTotal, `${m.memUsed} of ${m.memTotal}`)
    assert.ok(m.diskUsed >= 0 && m.diskUsed <= m.diskTotal, `${m.diskUsed} of ${m.diskTotal}`)
    await sandbox.pause()
    assert.ok((await Sandbox.getMetrics(sandbox.sandboxId)).length >= measured.length)
    assert.deepEqual(await sandbox.getMetrics({ start: new Date(0), end: new Date(1000) }), [])
    assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused')
  })
})
