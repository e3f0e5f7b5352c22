import asyncio
import contextlib
import re
import threading
import time

import pytest
from e2b import AsyncSandbox, CommandExitException, NotFoundException, PtySize

from support import done, raises_exactly


class Terminal:
    """A shell in a terminal, and what it has shown so far. What is typed is
    shown, too, so commands are written so that their output differs from
    themselves."""

    def __init__(self, sandbox):
        self.sandbox, self.output, self.reader = sandbox, b"", None

    async def create(self, rows=24, cols=80, read=True, **opts):
        size, opts = PtySize(rows=rows, cols=cols), {"timeout": 0, **opts}
        if isinstance(self.sandbox, AsyncSandbox):
            self.handle = await self.sandbox.pty.create(size, self.show, **opts)
        else:
            self.handle = self.sandbox.pty.create(size, **opts)
            if read:
                self.read(self.handle)
        return self

    async def connect(self, pid):
        if isinstance(self.sandbox, AsyncSandbox):
            return await self.sandbox.pty.connect(pid, self.show)
        handle = self.sandbox.pty.connect(pid)
        self.read(handle)
        return handle

    def read(self, handle):
        """The sync SDK shows output only to who waits for the end."""

        def wait():
            with contextlib.suppress(Exception):
                handle.wait(on_pty=self.show)

        self.reader = threading.Thread(target=wait, daemon=True)
        self.reader.start()

    def show(self, data):
        self.output += data

    async def type(self, line):
        await done(self.sandbox.pty.send_stdin(self.handle.pid, f"{line}\n".encode()))

    async def shows(self, what):
        deadline = time.monotonic() + 30
        while not re.search(what, self.output):
            assert time.monotonic() < deadline, f"{what} is not shown in {self.output}"
            await asyncio.sleep(0.05)


@pytest.fixture
def terminal(either):
    async def create(**opts):
        return await Terminal(await either()).create(**opts)

    return create


async def test_a_shell_has_a_terminal_of_the_size_asked_for_which_can_change(terminal):
    shell = await terminal(rows=31, cols=101)
    await shell.type('echo "size=$(stty size)"')
    await shell.shows(rb"size=31 101")
    await done(shell.sandbox.pty.resize(shell.handle.pid, PtySize(rows=22, cols=77)))
    await shell.type('echo "size=$(stty size)"')
    await shell.shows(rb"size=22 77")


async def test_user_directory_and_environment(terminal):
    shell = await terminal(user="root", cwd="/usr", envs={"LOCAL": "é"})
    await shell.type('echo "is=$(id -un)=$PWD=$LOCAL=$TERM"')
    await shell.shows("is=root=/usr=é=xterm-256color".encode())


async def test_keys_that_are_signals(terminal):
    shell = await terminal()
    await shell.type("sleep 300")
    while not (await done(shell.sandbox.commands.run('pgrep -f "^sleep 300" || true'))).stdout:
        await asyncio.sleep(0.1)
    await done(shell.sandbox.pty.send_stdin(shell.handle.pid, b"\x03"))
    await shell.type('echo "code=$?"')
    await shell.shows(rb"code=130")


async def test_exit_ends_it(terminal):
    shell = await terminal()
    await shell.type("exit 3")
    if shell.reader:
        await asyncio.to_thread(shell.reader.join)
    with raises_exactly(CommandExitException) as caught:
        await done(shell.handle.wait())
    assert caught.value.exit_code == 3
    with raises_exactly(NotFoundException):
        await shell.type("")


async def test_a_second_client_connects_to_it_after_the_first_has_gone(terminal):
    shell = await terminal(read=False)  # what is being read cannot be disconnected
    await shell.type("kept=state")
    await done(shell.handle.disconnect())
    assert (await shell.connect(shell.handle.pid)).pid == shell.handle.pid
    await shell.type('echo "kept=<$kept>"')
    await shell.shows(rb"kept=<state>")


async def test_input_as_one_stream(terminal):
    """As in test_commands; older SDKs have no call for it."""
    shell = await terminal()
    pty, lines = shell.sandbox.pty, [b"n=0\n", b"n=$((n+1))\n", b'echo "n=<$n>"\n']
    if not hasattr(pty, "stream_input"):
        for line in lines:
            await done(pty.send_stdin(shell.handle.pid, line))
    elif isinstance(shell.sandbox, AsyncSandbox):
        async with pty.stream_input(shell.handle.pid) as stream:
            for line in lines:
                await stream.send(line)
    else:
        pty.stream_input(shell.handle.pid, iter(lines), timeout=15)
    await shell.shows(rb"n=<1>")


async def test_kill_true_then_false(terminal):
    shell = await terminal()
    assert await done(shell.sandbox.pty.kill(shell.handle.pid)) is True
    assert await done(shell.sandbox.pty.kill(shell.handle.pid)) is False
