"""What needs no server: frames and events, however they are cut up."""

from __future__ import annotations

import json

import pytest

from drowse import SandboxInterruptedError, models
from drowse._errors import from_rpc
from drowse._wire import EventLines, Frames, decode, encode, frame


def test_frames() -> None:
    messages = [{"n": n, "text": "ö" * n} for n in range(50)]
    stream = b"".join(frame(m) for m in messages) + b"\x02\0\0\0\x02{}"
    for size in (1, 2, 3, 7, 4096):
        frames = Frames()
        got = [m for at in range(0, len(stream), size) for m in frames.feed(stream[at : at + size])]
        assert got == [(False, m) for m in messages] + [(True, {})]
    for hostile in (b"\0\xff\xff\xff\xff", b"\x01\0\0\0\0"):
        with pytest.raises(SandboxInterruptedError):
            list(Frames().feed(hostile))


def test_events() -> None:
    text = json.dumps({"detail": "a\x85b\u2028c\x1cd"}, ensure_ascii=False)
    stream = f": hello\n\nretry: 1\nid: 7\n\nid: 8\nevent: paused\ndata: {text}\n\nid: 9\r\ndata: {{}}\r\n\r\n".encode()
    for size in (1, 2, 5, 4096):
        lines = EventLines()
        got = [e for at in range(0, len(stream), size) for e in lines.feed(stream[at : at + size])]
        assert got == [(None, ""), (7, ""), (8, text), (9, "{}")]


@pytest.mark.parametrize("code", ["unavailable", "aborted"])
def test_cut_streams(code: str) -> None:
    """The server ends a stream with one of two codes, after E2B's SDKs. Here both are the same."""
    cut = from_rpc({"code": code, "message": "the sandbox ended: OutOfMemory"}, 7)
    assert isinstance(cut, SandboxInterruptedError)
    assert (cut.reason, cut.pid) == ("the sandbox ended: OutOfMemory", 7)


def test_models() -> None:
    """A server of another version has fields more, and fields less."""
    hold = decode(models.Hold, {"id": "h", "kind": "new kind", "since": "2026-11-24T03:00:00.123456789Z", "more": 1})
    assert (hold.kind, hold.until, hold.since.microsecond) == ("new kind", None, 123456)
    assert decode(models.SandboxInfo, {"id": "i"}).metadata == {}
    service = models.Service(name="a", command=["b"], env={"max_backoff": "c"}, ready=models.ServiceReady(interval=1))
    assert encode(service) == {"name": "a", "command": ["b"], "env": {"max_backoff": "c"}, "ready": {"intervalSeconds": 1}}
