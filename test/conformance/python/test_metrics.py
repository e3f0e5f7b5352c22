import asyncio
from datetime import datetime, timezone

import e2b
from support import done


async def test_metrics_of_a_sandbox_that_runs_and_of_one_that_sleeps(either):
    sandbox = await either()
    for _ in range(300):
        if measured := await done(sandbox.get_metrics()):
            break
        await asyncio.sleep(0.1)
    m = measured[0]
    assert abs((datetime.now(timezone.utc) - m.timestamp).total_seconds()) < 120
    assert m.cpu_count >= 1 and m.cpu_used_pct >= 0
    assert 0 < m.mem_used <= m.mem_total
    assert 0 <= m.disk_used <= m.disk_total
    await done(sandbox.pause())
    assert len(await done(type(sandbox).get_metrics(sandbox.sandbox_id))) >= len(measured)
    early = datetime.fromtimestamp(0, timezone.utc), datetime.fromtimestamp(1, timezone.utc)
    assert await done(sandbox.get_metrics(start=early[0], end=early[1])) == []
    assert e2b.Sandbox.get_info(sandbox.sandbox_id).state == e2b.SandboxState.PAUSED
