"""A smaller set for AsyncSandbox, whose streams and callbacks are code of their
own in the SDK."""

import asyncio
import os
import time

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    SandboxNotFoundException,
    SandboxQuery,
    TimeoutException,
)

from support import (
    UNKNOWN,
    NotRunning,
    http,
    marker,
    near,
    raises_exactly,
    scratch,
    seconds_until,
    sha256,
    wait_for,
)


async def eventually(what, probe, within=60.0, every=0.1):
    deadline = time.monotonic() + within
    while not await probe():
        assert time.monotonic() < deadline, f"{what}: not so after {within} s"
        await asyncio.sleep(every)


async def state_of(sandbox):
    return (await AsyncSandbox.get_info(sandbox.sandbox_id)).state.value


async def test_create_info_kill(anew):
    metadata = {"run": marker(), "odd": "a b&c=d%é"}
    sandbox = await anew(timeout=42, metadata=metadata, envs={"SET": "at create"})
    assert await sandbox.is_running() is True
    info = await sandbox.get_info()
    assert (info.sandbox_id, info.metadata, info.state.value) == (sandbox.sandbox_id, metadata, "running")
    assert seconds_until(info.end_at) == near(42, 8)
    assert (await sandbox.commands.run("echo $SET")).stdout == "at create\n"

    paginator = AsyncSandbox.list(query=SandboxQuery(metadata=metadata))
    assert [s.sandbox_id for s in await paginator.next_items()] == [sandbox.sandbox_id]
    assert paginator.has_next is False

    assert await sandbox.kill() is True
    assert await sandbox.kill() is False
    assert await sandbox.is_running() is False


@pytest.mark.parametrize("stream, redirect", [("stdout", ""), ("stderr", " >&2")])
async def test_output_arrives_while_the_command_is_running(anew, stream, redirect):
    sandbox = await anew()
    gate = scratch()
    events = []

    async def on_output(data):
        events.extend(data.strip().split("\n"))
        if len(events) == 1:
            events.append("gate opened")
            await sandbox.files.write(gate, "")

    result = await sandbox.commands.run(
        f"echo first{redirect}; {wait_for(gate)}; echo second{redirect}",
        timeout=20,
        **{f"on_{stream}": on_output},
    )
    assert events == ["first", "gate opened", "second"]
    assert getattr(result, stream) == "first\nsecond\n"


async def test_command_errors(anew):
    sandbox = await anew()
    with raises_exactly(CommandExitException) as caught:
        await sandbox.commands.run("echo out; echo err >&2; exit 7")
    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (7, "out\n", "err\n")
    with raises_exactly(TimeoutException):
        await sandbox.commands.run("sleep 60", timeout=1)
    with raises_exactly(AuthenticationException):
        await sandbox.commands.run("whoami", user="nobodyhere")
    with raises_exactly(InvalidArgumentException):
        await sandbox.commands.run("pwd", cwd="/no/such/dir")


async def test_stdin_data_then_end_of_file(anew):
    sandbox = await anew()
    seen = []
    handle = await sandbox.commands.run(
        "cat", background=True, stdin=True, timeout=20, on_stdout=seen.append
    )

    async def came_back(text):
        async def probe():
            return "".join(seen) == text

        await eventually(f"{text!r} comes back", probe)

    await handle.send_stdin("one é\n")
    await came_back("one é\n")
    await sandbox.commands.send_stdin(handle.pid, "two\n")
    await came_back("one é\ntwo\n")
    await sandbox.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "one é\ntwo\n"


async def test_stdin_as_one_stream(anew):
    """As in test_commands, with the input handle the async SDK has for it."""
    sandbox = await anew()
    handle = await sandbox.commands.run("cat", background=True, stdin=True, timeout=20)
    chunks = [f"{n} é\n" for n in range(100)]
    if hasattr(sandbox.commands, "stream_input"):
        async with sandbox.commands.stream_input(handle.pid) as stream:
            for chunk in chunks:
                await stream.send(chunk)
    else:
        for chunk in chunks:
            await handle.send_stdin(chunk)
    await handle.close_stdin()
    assert (await handle.wait()).stdout == "".join(chunks)


async def test_disconnect_connect_and_kill(anew):
    sandbox = await anew()
    gate = scratch()
    first = await sandbox.commands.run(
        f"echo before; {wait_for(gate)}; echo after; exec sleep 300", background=True, timeout=60
    )

    async def first_output():
        return first.stdout == "before\n"

    await eventually("first output", first_output)
    await first.disconnect()
    assert first.pid in [p.pid for p in await sandbox.commands.list()]

    late = []
    second = await sandbox.commands.connect(first.pid, on_stdout=late.append)
    await sandbox.files.write(gate, "")

    async def later_output():
        return late == ["after\n"]

    await eventually("later output", later_output)
    assert await second.kill() is True
    with raises_exactly(CommandExitException) as caught:
        await second.wait()
    assert caught.value.exit_code == -1
    assert await second.kill() is False
    assert await sandbox.commands.kill(second.pid) is False
    assert first.stdout == "before\n"


async def test_20_concurrent_commands(anew):
    sandbox = await anew()
    results = await asyncio.gather(
        *(sandbox.commands.run(f'for n in $(seq 100); do echo "{i}:$n"; done') for i in range(20))
    )
    assert [r.stdout for r in results] == ["".join(f"{i}:{n + 1}\n" for n in range(100)) for i in range(20)]


async def test_files(anew):
    sandbox = await anew()
    dir = scratch(" é")
    data = os.urandom(5 * 1024 * 1024)
    infos = await sandbox.files.write_files(
        [{"path": f"{dir}/a/text.txt", "data": "té\n"}, {"path": f"{dir}/bytes", "data": data}]
    )
    assert [i.path for i in infos] == [f"{dir}/a/text.txt", f"{dir}/bytes"]
    assert await sandbox.files.read(f"{dir}/a/text.txt") == "té\n"
    assert sha256(await sandbox.files.read(f"{dir}/bytes", format="bytes")) == sha256(data)
    streamed = b""
    async for chunk in await sandbox.files.read(f"{dir}/bytes", format="stream"):
        streamed += chunk
    assert sha256(streamed) == sha256(data)
    await sandbox.files.write(f"{dir}/gzip", data, gzip=True)
    assert sha256(await sandbox.files.read(f"{dir}/gzip", format="bytes", gzip=True)) == sha256(data)

    assert [e.path[len(dir) :] for e in await sandbox.files.list(dir, depth=2)] == [
        "/a", "/a/text.txt", "/bytes", "/gzip",
    ]  # fmt: skip
    assert (await sandbox.files.get_info(f"{dir}/bytes")).size == len(data)
    assert await sandbox.files.make_dir(f"{dir}/d") is True
    assert await sandbox.files.make_dir(f"{dir}/d") is False
    assert (await sandbox.files.rename(f"{dir}/bytes", f"{dir}/d/moved")).path == f"{dir}/d/moved"
    assert await sandbox.files.exists(f"{dir}/bytes") is False
    await sandbox.files.remove(dir)
    with raises_exactly(FileNotFoundException):
        await sandbox.files.read(f"{dir}/gzip")
    with raises_exactly(FileNotFoundException):
        await sandbox.files.list(dir)


async def test_signed_urls(anew):
    sandbox = await anew()
    path = scratch()
    status, _ = http(sandbox.upload_url(path), body=b"signed", content_type="application/octet-stream")
    assert status == 200
    assert http(sandbox.download_url(path)) == (200, b"signed")


async def test_pause_and_connect(anew):
    sandbox = await anew(envs={"KEPT": "kept"})
    gate = scratch()
    handle = await sandbox.commands.run(
        f"{wait_for(gate)}; echo after", background=True, timeout=0
    )
    await handle.disconnect()
    assert await sandbox.pause() is True
    assert await sandbox.pause() is False
    assert await sandbox.is_running() is False
    assert await state_of(sandbox) == "paused"
    with raises_exactly(NotRunning):
        await sandbox.commands.run("echo asleep")

    resumed = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert resumed.sandbox_id == sandbox.sandbox_id
    assert (await sandbox.commands.run("echo $KEPT")).stdout == "kept\n"
    again = await sandbox.commands.connect(handle.pid)
    await resumed.files.write(gate, "")
    assert (await again.wait()).stdout == "after\n"


async def test_auto_resume(anew):
    sandbox = await anew(timeout=3, lifecycle={"on_timeout": "pause", "auto_resume": True})

    async def paused():
        return await state_of(sandbox) == "paused"

    await eventually("paused", paused, within=30)
    assert (await sandbox.commands.run("echo awake")).stdout == "awake\n"
    assert await state_of(sandbox) == "running"


async def test_command_in_flight_ends_when_the_sandbox_is_killed(anew):
    sandbox = await anew()
    handle = await sandbox.commands.run("sleep 80", background=True)
    await sandbox.kill()
    with raises_exactly(NotRunning):
        await handle.wait()


async def test_unknown_sandbox():
    assert await AsyncSandbox.kill(UNKNOWN) is False
    for call in (AsyncSandbox.connect, AsyncSandbox.get_info, AsyncSandbox.pause):
        with raises_exactly(SandboxNotFoundException):
            await call(UNKNOWN)
    with raises_exactly(SandboxNotFoundException):
        await AsyncSandbox.set_timeout(UNKNOWN, 60)


async def test_five_sandboxes_at_once(anew):
    sandboxes = await asyncio.gather(*(anew(envs={"INDEX": str(i)}) for i in range(5)))
    outputs = await asyncio.gather(
        *(s.commands.run('echo "$INDEX $E2B_SANDBOX_ID"') for s in sandboxes)
    )
    assert [o.stdout for o in outputs] == [f"{i} {s.sandbox_id}\n" for i, s in enumerate(sandboxes)]
    assert await asyncio.gather(*(s.kill() for s in sandboxes)) == [True] * 5
