# Generated from _async/_commands.py. Do not edit.
"""Commands in a sandbox."""

from __future__ import annotations

import base64
import codecs
import uuid
from builtins import list as List  # noqa: N812 - there are methods called list
from collections.abc import Generator, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import httpx

from .._background import Background, Stop
from .._errors import CommandError, DrowseError, NotFoundError, SandboxInterruptedError
from .._results import Output, ProcessInfo, Result

if TYPE_CHECKING:
    from ._inside import Inside

_CHUNK = 64 << 10


class Commands:
    """Commands in a sandbox. A command is a line for a shell, or a program and its arguments."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> Result:
        """Runs a command to its end.

        A code other than 0 is in the result, and with ``check`` raises CommandError. After
        ``timeout`` seconds awake the command is killed, and CommandTimeoutError raised. A caller that
        is interrupted or cancelled kills the command too. If the sandbox is paused meanwhile,
        SandboxInterruptedError says so, and the command sleeps and wakes with it.
        """
        tag = "sdk-" + uuid.uuid4().hex
        message = _message(command, env, cwd, stdin=stdin is not None, tag=tag)
        process = feeder = None
        try:
            process = self._start(message, user, timeout)
            if stdin is not None:
                feeder = Background(process._feeding(stdin.encode() if isinstance(stdin, str) else stdin))
            result = process.wait(on_stdout=on_stdout, on_stderr=on_stderr)
        except DrowseError:
            raise  # it did not start, or has ended, or sleeps, and a signal might wake it
        except BaseException:
            # By its tag, because it may have started without a word of it being heard.
            with suppress(Exception):
                _signal(self._inside, {"tag": tag}, "SIGNAL_SIGKILL", timeout=5.0)
            raise
        finally:
            if feeder:
                feeder.leave()
            if process:
                process.close()
        if check and not result.ok:
            raise CommandError(command if isinstance(command, str) else " ".join(command), result)
        return result

    def start(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Process:
        """Starts a command, and returns once it runs.

        ``terminal`` is the columns and rows of a terminal to run it on. Closing what is returned lets
        the command run on.
        """
        return self._start(_message(command, env, cwd, stdin=stdin, terminal=terminal), user, timeout)

    def _start(self, message: dict[str, Any], user: str | None, timeout: float | None) -> Process:
        response = self._inside.open("process.Process/Start", message, user=user, timeout=timeout)
        return Process._begin(self._inside, response, user, "pty" in message)

    def attach(self, pid: int, *, terminal: bool = False, user: str | None = None) -> Process:
        """Takes up a command that runs: its output from now on; ``missed_bytes`` says how much nobody
        got before. ``terminal`` says whether it is on one."""
        message = {"process": {"pid": pid}}
        response = self._inside.open("process.Process/Connect", message, user=user)
        return Process._begin(self._inside, response, user, terminal)

    def list(self) -> List[ProcessInfo]:
        """The commands that run."""
        answer = self._inside.call("process.Process/List", {})
        return [ProcessInfo.of(one) for one in answer.get("processes", [])]

    def kill(self, pid: int) -> bool:
        """Kills a command. False: it had ended."""
        return _signal(self._inside, {"pid": pid}, "SIGNAL_SIGKILL")


def _message(
    command: str | Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    *,
    stdin: bool,
    terminal: tuple[int, int] | None = None,
    tag: str | None = None,
) -> dict[str, Any]:
    argv = ["/bin/bash", "-l", "-c", command] if isinstance(command, str) else list(command)
    if not argv or not argv[0]:
        raise DrowseError("there is no command to run")
    config: dict[str, Any] = {"cmd": argv[0], "args": argv[1:], "envs": dict(env or {})}
    if cwd is not None:
        config["cwd"] = cwd
    message: dict[str, Any] = {"process": config, "stdin": stdin or terminal is not None}
    if terminal:
        message["pty"] = {"size": {"cols": terminal[0], "rows": terminal[1]}}
        config["envs"] = {"TERM": "xterm-256color", **config["envs"]}
    if tag:
        message["tag"] = tag
    return message


def _signal(inside: Inside, process: Mapping[str, Any], signal: str, timeout: float | None = None) -> bool:
    message = {"process": process, "signal": signal}
    try:
        inside.call("process.Process/SendSignal", message, timeout=timeout)
    except NotFoundError as e:
        if e.code != "not_found":
            raise
        return False
    return True


class Process:
    """A command that runs. Its output is what one iterates over; ``wait`` returns how it ended."""

    def __init__(
        self,
        inside: Inside,
        response: httpx.Response,
        messages: Generator[dict[str, Any], None, None],
        pid: int,
        user: str | None,
        terminal: bool,
    ) -> None:
        self.pid = pid
        #: How many bytes of the output of a command that was attached to nobody has got, because
        #: no client was connected then. They are lost.
        self.missed_bytes = int(response.headers.get("Drowse-Missed-Bytes", "0"))
        self._inside = inside
        self._response = response
        self._messages = messages
        self._user = user
        self._terminal = terminal
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._end: dict[str, Any] | None = None
        self._input_error: Exception | None = None

    @classmethod
    def _begin(cls, inside: Inside, response: httpx.Response, user: str | None, terminal: bool) -> Self:
        messages = inside.messages(response)
        try:
            for message in messages:
                start = message.get("event", {}).get("start")
                if start is not None:
                    process = cls(inside, response, messages, int(start["pid"]), user, terminal)
                    return process
            raise SandboxInterruptedError("the stream ended before the command ran")
        except BaseException:
            response.close()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pid} in {self._inside.sandbox}>"

    def __iter__(self) -> Generator[Output, None, None]:
        """The output as it comes. Text is never cut inside of a character. Who leaves the loop may
        go on later."""
        if self._end is not None:
            return
        try:
            for message in self._messages:
                event = message.get("event", {})
                for stream, text in event.get("data", {}).items():
                    yield self._output(stream, base64.b64decode(text))
                if "end" in event:
                    self._end = event["end"]
                    self.close()
                    return
        except SandboxInterruptedError as e:
            self.close()
            raise SandboxInterruptedError(e.reason, self.pid) from e
        raise SandboxInterruptedError("the stream ended before the command did", self.pid)

    def _output(self, wire: str, data: bytes) -> Output:
        stream: Literal["stdout", "stderr", "terminal"] = (
            "stdout" if wire == "stdout" else "stderr" if wire == "stderr" else "terminal"
        )
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        return Output(stream=stream, data=data, text=decoder.decode(data))

    def wait(
        self,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> Result:
        """Waits for the end of the command. The result has the output that was not iterated over.
        What it prints on a terminal is in ``stdout``."""
        out, err = bytearray(), bytearray()
        for piece in self:
            (err if piece.stream == "stderr" else out).extend(piece.data)
            hear = on_stderr if piece.stream == "stderr" else on_stdout
            if hear and piece.text:
                hear(piece.text)
        end = self._end or {}
        result = Result(
            pid=self.pid,
            exit_code=int(end.get("exitCode", 0)),
            status=str(end.get("status", "")),
            reason=str(end.get("error") or "") if end.get("error") != end.get("status") else "",
            stdout_bytes=bytes(out),
            stderr_bytes=bytes(err),
        )
        if self._input_error and result.ok:
            raise self._input_error
        return result

    def send(self, data: str | bytes) -> None:
        """Gives the command input: what it reads, or what is typed on its terminal."""
        self._send(data.encode() if isinstance(data, str) else data)

    def _send(self, raw: bytes, stop: Stop | None = None) -> None:
        name = "pty" if self._terminal else "stdin"
        for at in range(0, len(raw), _CHUNK):
            if stop and stop.is_set():
                return  # its sandbox may sleep, and input would wake it
            text = base64.b64encode(raw[at : at + _CHUNK]).decode()
            message = {"process": {"pid": self.pid}, "input": {name: text}}
            self._inside.call("process.Process/SendInput", message, user=self._user, again=False)

    def close_input(self) -> None:
        """Says that there is no more input."""
        self._inside.call("process.Process/CloseStdin", {"process": {"pid": self.pid}}, user=self._user)

    def _feeding(self, data: bytes) -> Callable[[Stop], Any]:
        def feed(stop: Stop) -> None:
            try:
                self._send(data, stop)
                if not stop.is_set():
                    self.close_input()
            except DrowseError as e:
                # A command that has ended or closed its input wants no more, as with a pipe.
                if getattr(e, "code", "") not in ("not_found", "failed_precondition", "internal"):
                    self._input_error = e

        return feed

    def resize(self, columns: int, rows: int) -> None:
        """Tells its terminal the new size."""
        message = {"process": {"pid": self.pid}, "pty": {"size": {"cols": columns, "rows": rows}}}
        self._inside.call("process.Process/Update", message, user=self._user)

    def kill(self) -> bool:
        """Ends it with SIGKILL. False: it had ended."""
        return _signal(self._inside, {"pid": self.pid}, "SIGNAL_SIGKILL")

    def terminate(self) -> bool:
        """Asks it to end, with SIGTERM. False: it had ended."""
        return _signal(self._inside, {"pid": self.pid}, "SIGNAL_SIGTERM")

    def close(self) -> None:
        """Gives up its output and lets it run on."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
