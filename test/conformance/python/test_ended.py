"""A command streams while its sandbox ends: the exception says of what. Only where
E2B's users expect its class for that do they get the SDK's advice about timeouts."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import AsyncSandbox, CommandExitException, Sandbox

from support import NotRunning, created_with

PRINTS = "while :; do echo tick; sleep 0.1; done"
# The largest process is ended before the sandbox's limit is hit: the command ends, and
# the sandbox goes on.
FILLS = """exec python3 -c 'x = b"x" * (4 << 30)'"""


@pytest.fixture
def small():
    sandbox_id = created_with(memoryMB=256)
    yield sandbox_id
    Sandbox.kill(sandbox_id)


def killed(err):
    assert type(err) is NotRunning, repr(err)
    assert "the sandbox ended at " in str(err) and ": Killed" in str(err), err
    assert "sandbox was killed or reached its end of life" in str(err), err
    assert "not found" not in str(err)


def out_of_memory(err):
    assert type(err) is CommandExitException, repr(err)
    assert "out of memory: process " in err.error and "was ended" in err.error, err
    assert "not found" not in str(err) and "timeout" not in str(err).lower(), err


def test_killed_by_another_client(new):
    sandbox = new()
    handle = sandbox.commands.run(PRINTS, background=True, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(handle.wait)
        assert Sandbox.kill(sandbox.sandbox_id) is True
        killed(ended.exception(timeout=30))


async def test_killed_by_another_async_client(anew):
    sandbox = await anew()
    handle = await sandbox.commands.run(PRINTS, background=True, timeout=0)
    ended = asyncio.create_task(handle.wait())
    assert await AsyncSandbox.kill(sandbox.sandbox_id) is True
    await asyncio.wait([ended], timeout=30)
    killed(ended.exception())


def test_out_of_memory(small):
    handle = Sandbox.connect(small).commands.run(FILLS, background=True, user="root", timeout=0)
    with pytest.raises(CommandExitException) as ended:
        handle.wait()
    out_of_memory(ended.value)


async def test_out_of_memory_async(small):
    sandbox = await AsyncSandbox.connect(small)
    handle = await sandbox.commands.run(FILLS, background=True, user="root", timeout=0)
    with pytest.raises(CommandExitException) as ended:
        await handle.wait()
    out_of_memory(ended.value)
