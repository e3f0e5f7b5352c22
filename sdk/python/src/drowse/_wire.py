"""Between the wire and Python's types: JSON of the API, the frames of the Connect
protocol, and server-sent events. Nothing here does I/O."""

from __future__ import annotations

import dataclasses
import json
import struct
import types
import typing
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any, TypeVar

from . import models
from ._errors import DrowseError, SandboxInterruptedError

T = TypeVar("T")


def wire_name(name: str) -> str:
    return models.WIRE_NAMES.get(name, name)


def encode(value: Any) -> Any:
    """A value as JSON has it. Keys of mappings are the caller's own."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {wire_name(name): encode(v) for name, v in fields if v is not None}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(v) for v in value]
    return value


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request, of keyword arguments. None is what was not said."""
    return {wire_name(name): encode(v) for name, v in given.items() if v is not None}


@cache
def _fields(of: type) -> dict[str, tuple[str, Any]]:
    hints = typing.get_type_hints(of)
    return {f.name: (wire_name(f.name), hints[f.name]) for f in dataclasses.fields(of)}


def decode(of: type[T], value: Any) -> T:
    """An object of the API as the dataclass that describes it. Fields that it does not
    have are ignored, and those that are missing are None, or empty."""
    if not isinstance(value, dict):
        raise DrowseError(f"the server answered {json.dumps(value)[:100]} where a {of.__name__} was expected")
    return of(**{name: _decode(hint, value.get(key)) for name, (key, hint) in _fields(typing.cast(Any, of)).items()})


def _decode(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return origin() if origin in (list, dict) else None
    if origin in (types.UnionType, typing.Union):
        fitting = [a for a in args if a is not type(None)]
        return _decode(fitting[0], value) if len(fitting) == 1 else value
    if origin is list:
        return [_decode(args[0], v) for v in value]
    if hint is datetime:
        return datetime.fromisoformat(value)
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast("type[Any]", hint), value)
    return value


def seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


_LARGEST = 64 << 20  # of a frame; the agent's are small


def frame(message: Any) -> bytes:
    """A message as a stream of the Connect protocol has it."""
    body = json.dumps(message).encode()
    return struct.pack(">BI", 0, len(body)) + body


class Frames:
    """Takes a stream of the Connect protocol apart, however it was cut up."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bool, dict[str, Any]]]:
        """The messages that are complete now, and whether each is the last one."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= 5:
                flags, size = struct.unpack_from(">BI", self._buffer, start)
                if flags & 1 or size > _LARGEST:
                    raise SandboxInterruptedError("the sandbox sent something that is no stream")
                if len(self._buffer) - start - 5 < size:
                    break
                message = json.loads(self._buffer[start + 5 : start + 5 + size] or b"{}")
                start += 5 + size
                yield bool(flags & 2), message
        finally:
            del self._buffer[:start]


class EventLines:
    """Takes server-sent events apart, however they were cut up. Only a line feed ends a line: what
    a sandbox says of itself may have other characters that Python takes for ends."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []
        self._id = ""

    def feed(self, data: bytes) -> Iterator[tuple[int | None, str]]:
        """The id and the data of the events that are complete now. One without data says where the
        stream is."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").decode("utf-8", "replace").partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
            elif not name and not value:
                text, self._data = "\n".join(self._data), []
                yield int(self._id) if self._id.isdecimal() else None, text
