"""What comes out of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended, and what it printed."""

    pid: int
    exit_code: int
    """-1 if a signal ended it."""
    status: str
    """Such as "exit status 2" or "signal: killed"."""
    reason: str = ""
    """Why the sandbox ended the command, such as for want of memory; empty if it did not."""
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether it ended with success."""
        return self.exit_code == 0

    @property
    def stdout(self) -> str:
        """As text; bytes that are none are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a command prints."""

    stream: Literal["stdout", "stderr", "terminal"]
    text: str
    """A character that is not complete yet is in the next piece."""
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A command that runs."""

    pid: int
    command: list[str]
    env: dict[str, str]
    cwd: str | None

    @classmethod
    def of(cls, wire: dict[str, Any]) -> ProcessInfo:
        config = wire.get("config", {})
        return cls(
            pid=int(wire["pid"]),
            command=[config.get("cmd", ""), *config.get("args", [])],
            env=config.get("envs", {}),
            cwd=config.get("cwd"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file or directory."""

    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    """Of a link that of what it leads to; symlink if it leads nowhere."""
    size: int
    mode: int
    permissions: str
    """As ls -l prints them."""
    owner: str
    group: str
    modified: datetime | None
    target: str | None
    """Of a symbolic link."""

    @classmethod
    def of(cls, wire: dict[str, Any]) -> FileInfo:
        kinds: dict[str, Literal["file", "directory", "symlink"]] = {
            "FILE_TYPE_FILE": "file",
            "FILE_TYPE_DIRECTORY": "directory",
            "FILE_TYPE_SYMLINK": "symlink",
        }
        modified = wire.get("modifiedTime")
        return cls(
            name=wire.get("name", ""),
            path=wire.get("path", ""),
            type=kinds.get(wire.get("type", ""), "other"),
            size=int(wire.get("size", 0)),
            mode=int(wire.get("mode", 0)),
            permissions=wire.get("permissions", ""),
            owner=wire.get("owner", ""),
            group=wire.get("group", ""),
            modified=datetime.fromisoformat(modified) if modified else None,
            target=wire.get("symlinkTarget"),
        )
