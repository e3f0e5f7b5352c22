"""A pause holds while a client is attached. Every stream that the SDK can hold
is cut by each kind of pause; then the SDK sends what it sends by itself, and
the sandbox sleeps on."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import Sandbox, TimeoutException
from e2b_code_interpreter import AsyncSandbox as AsyncInterpreter
from e2b_code_interpreter import Sandbox as Interpreter

from support import LEFTOVER, PATIENCE, NotRunning, eventually, v1

LIFECYCLE = {"on_timeout": "pause", "auto_resume": True}
WATCHED = "/tmp"

CELL = "import time; print('begun', flush=True); time.sleep(600)"


# Each opens a stream, says so once the SDK knows, and waits for its end.
def _command_open(sandbox, opened):
    command = sandbox.commands.run("sleep 600", background=True, timeout=0)
    opened.set()
    command.wait()


def _pty_open(sandbox, opened):
    pty = sandbox.pty.create(_size(), timeout=0)
    opened.set()
    pty.wait()


def _run_code_open(sandbox, opened):
    sandbox.run_code(CELL, timeout=0, on_stdout=lambda _: opened.set())


STREAMS = {"command": _command_open, "pty": _pty_open, "run_code": _run_code_open}


async def _command(sandbox, opened):
    command = await sandbox.commands.run("sleep 600", background=True, timeout=0)
    opened.set()
    await command.wait()


async def _pty(sandbox, opened):
    pty = await sandbox.pty.create(_size(), on_data=lambda _: None, timeout=0)
    opened.set()
    await pty.wait()


async def _run_code(sandbox, opened):
    await sandbox.run_code(CELL, timeout=0, on_stdout=lambda _: opened.set())


async def _watch(sandbox, opened):
    ended = asyncio.get_running_loop().create_future()
    await sandbox.files.watch_dir(
        WATCHED, on_event=lambda _: None, on_exit=lambda err: ended.done() or ended.set_result(err), timeout=0
    )
    opened.set()
    raise (await ended) or AssertionError("the watch ended cleanly")


ASYNC_STREAMS = {"command": _command, "pty": _pty, "run_code": _run_code, "watch": _watch}

if not os.environ.get("DROWSE_TEST_ALL"):  # one of each client
    STREAMS = {"command": STREAMS["command"]}
    ASYNC_STREAMS = {"watch": ASYNC_STREAMS["watch"]}

PAUSES = ["same client", "another client", "timeout", "idle"]


def _size():
    from e2b import PtySize

    return PtySize(rows=24, cols=80)


def fall_asleep(sandbox, pause):
    """Pauses, or lets time do it. Work that stands still is no work after a while."""
    if pause == "same client":
        sandbox.pause()
    elif pause == "another client":
        Sandbox.beta_pause(sandbox.sandbox_id)
    elif pause == "timeout":
        Sandbox.set_timeout(sandbox.sandbox_id, 1)
    else:
        v1(sandbox, method="PATCH", idleTimeoutSeconds=1, onIdle="pause", stallAfterSeconds=1)


def is_open(sandbox):
    eventually("open", lambda: v1(sandbox)["openStreams"] > 0, within=60)


def says_why(stream, err):
    assert isinstance(err, (TimeoutException, NotRunning)), repr(err)
    # The answer of a cell has no message that could say why.
    assert stream == "run_code" or "the sandbox was put to sleep" in str(err), err


def stays_asleep(sandbox):
    def lifecycle():
        return v1(sandbox, "/lifecycle")

    eventually("paused", lambda: lifecycle()["state"] == "paused", within=60)
    for _ in range(5 if os.environ.get("DROWSE_TEST_ALL") else 2):
        time.sleep(1)
        now = lifecycle()
        assert (now["state"], now["phase"], now["generation"]) == ("paused", None, 1), now["transitions"]


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("stream", STREAMS)
def test_asleep_with_a_client_attached(new, stream, pause):
    sandbox = new(Interpreter, lifecycle=LIFECYCLE)
    with ThreadPoolExecutor(1) as pool:
        opened = threading.Event()
        ended = pool.submit(STREAMS[stream], sandbox, opened)
        assert opened.wait(60 * PATIENCE)
        is_open(sandbox)
        fall_asleep(sandbox, pause)
        err = ended.exception(timeout=60 * PATIENCE)
    says_why(stream, err)
    assert sandbox.is_running() is False
    stays_asleep(sandbox)


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("stream", ASYNC_STREAMS)
async def test_asleep_with_an_async_client_attached(stream, pause):
    sandbox = await AsyncInterpreter.create(timeout=LEFTOVER, lifecycle=LIFECYCLE)
    try:
        opened = asyncio.Event()
        ended = asyncio.create_task(ASYNC_STREAMS[stream](sandbox, opened))
        await asyncio.wait_for(opened.wait(), 60 * PATIENCE)
        await asyncio.to_thread(is_open, sandbox)
        if pause == "same client":
            await sandbox.pause()
        else:
            await asyncio.to_thread(fall_asleep, sandbox, pause)
        await asyncio.wait([ended], timeout=60 * PATIENCE)
        says_why(stream, ended.exception())
        assert await sandbox.is_running() is False
        await asyncio.to_thread(stays_asleep, sandbox)
    finally:
        await sandbox.kill()
