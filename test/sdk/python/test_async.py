"""The asynchronous half. It is the same code, so what is tried here is what is
different: many at once, cancelling, and the end of a loop."""

from __future__ import annotations

import asyncio

import pytest

import drowse
from drowse import (
    AsyncClient,
    AsyncSandbox,
    CommandTimeoutError,
    NotRunningError,
    SandboxInterruptedError,
    Service,
)


async def test_all_of_it() -> None:
    async with await AsyncSandbox.create(idle_timeout=3600, on_idle="pause", auto_resume=True) as sandbox:
        assert (await sandbox.commands.run("cat; echo err >&2", stdin="größe")).stdout == "größe"
        await sandbox.files.write("/tmp/x", bytes(range(256)))
        assert await sandbox.files.read("/tmp/x") == bytes(range(256))
        assert [f.name for f in await sandbox.files.list("/tmp") if f.type == "file"] == ["x"]
        async with sandbox.hold("why") as hold:
            assert [h.detail for h in await sandbox.holds() if h.id == hold.id] == ["why"]
        process = await sandbox.commands.start("while echo on; do sleep 0.1; done")
        with pytest.raises(SandboxInterruptedError, match="put to sleep"):
            async for piece in process:
                assert piece.text.startswith("on\n")
                if (await sandbox.info()).state == "running":
                    await sandbox.pause()
        assert (await sandbox.why()).next.waits_for == "traffic"
        assert (await sandbox.wake()).state == "running"
        async with await sandbox.commands.attach(process.pid) as again:
            assert await again.kill()
            assert (await again.wait()).status == "signal: killed"
        with pytest.raises(CommandTimeoutError):
            await sandbox.commands.run("sleep 1000", timeout=0.5)
        (child,) = await sandbox.fork()
        async with child:
            assert await child.files.read("/tmp/x") == bytes(range(256))
        await sandbox.services.set(Service(name="web", command="exec python3 -m http.server 8000", port=8000))
        assert (await sandbox.request(8000)).status_code == 200
        types = [e.type async for e in sandbox.events(follow=False)]
        assert types[:2] == ["created", "running"] and "resumed" in types


async def test_many_at_once() -> None:
    async with AsyncClient() as client, await AsyncSandbox.create(client=client) as sandbox:
        results = await asyncio.gather(*(sandbox.commands.run(f"sleep 0.2; echo {n}") for n in range(48)))
        assert [r.stdout for r in results] == [f"{n}\n" for n in range(48)]
        assert sandbox.id in [s.id for s in await AsyncSandbox.list(client=client)]


async def test_cancelled() -> None:
    async with await AsyncSandbox.create() as sandbox:
        for stdin in (None, b"x" * 1_000_000):
            heard = asyncio.Event()
            running = asyncio.create_task(
                sandbox.commands.run("echo on; exec -a cancelled sleep 1000", stdin=stdin, on_stdout=lambda _: heard.set())
            )
            await asyncio.wait_for(heard.wait(), 60)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert "cancelled" not in (await sandbox.commands.run("ps ax")).stdout, "it took its command with it"
        held = asyncio.Event()

        async def hold() -> None:
            async with sandbox.hold("cancelled"):
                held.set()
                await asyncio.sleep(1000)

        holding = asyncio.create_task(hold())
        await asyncio.wait_for(held.wait(), 60)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert "cancelled" not in [h.detail for h in await sandbox.holds()]

        async def follow() -> list[str]:
            return [event.type async for event in sandbox.events(after="now")]

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.5)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    with pytest.raises(drowse.DrowseError, match="closed"):
        await sandbox.info()


async def test_asleep() -> None:
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.pause()
        with pytest.raises(NotRunningError) as refused:
            await sandbox.commands.run("true")
        assert refused.value.state == "paused" and refused.value.remediation


def test_a_loop_after_another() -> None:
    async def once() -> str:
        async with await AsyncSandbox.create() as sandbox:
            return (await sandbox.commands.run("echo once")).stdout

    assert [asyncio.run(once()) for _ in range(2)] == ["once\n"] * 2
