"""Files in a sandbox."""

from __future__ import annotations

from builtins import list as List  # noqa: N812 - there are methods called list
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, BinaryIO

import httpx

from .._errors import ConflictError, NotFoundError, SandboxInterruptedError
from .._results import FileInfo

if TYPE_CHECKING:
    from ._inside import AsyncInside


class AsyncFiles:
    """Files in a sandbox. A relative path is below the home directory of the user."""

    def __init__(self, inside: AsyncInside) -> None:
        self._inside = inside

    def _query(self, path: str, user: str | None) -> dict[str, str]:
        return {"path": path, "username": user} if user else {"path": path}

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """The bytes of a file."""
        parts = [part async for part in self.chunks(path, user=user)]
        return b"".join(parts)

    async def read_text(self, path: str, *, encoding: str = "utf-8", user: str | None = None) -> str:
        """A file as text."""
        return (await self.read(path, user=user)).decode(encoding)

    async def chunks(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a file as they come, for large ones."""
        response = await self._inside.send("GET", "/files", query=self._query(path, user), again=True, stream=True)
        try:
            async for part in response.aiter_bytes():
                yield part
        except httpx.TransportError as e:
            raise SandboxInterruptedError(f"the connection to the sandbox broke while {path} was read") from e
        finally:
            await response.aclose()

    async def write(self, path: str, data: str | bytes | BinaryIO, *, user: str | None = None) -> None:
        """Makes a file or replaces it, with the directories on the way."""
        content = data.encode() if isinstance(data, str) else data
        head = {"Content-Type": "application/octet-stream"}
        again = isinstance(content, bytes)
        response = await self._inside.send(
            "POST", "/files", query=self._query(path, user), content=content, headers=head, again=again
        )
        await response.aclose()

    async def list(self, path: str = ".", *, depth: int = 1, user: str | None = None) -> List[FileInfo]:
        """What is in a directory, so many levels down. Links are not followed."""
        answer = await self._inside.call("filesystem.Filesystem/ListDir", {"path": path, "depth": depth}, user=user)
        return [FileInfo.of(one) for one in answer.get("entries", [])]

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        answer = await self._inside.call("filesystem.Filesystem/Stat", {"path": path}, user=user)
        return FileInfo.of(answer["entry"])

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        try:
            await self.stat(path, user=user)
        except NotFoundError as e:
            if e.code != "not_found":
                raise
            return False
        return True

    async def make_dir(self, path: str, *, user: str | None = None) -> None:
        """Makes a directory, with those on the way. One that is there is no error."""
        try:
            await self._inside.call("filesystem.Filesystem/MakeDir", {"path": path}, user=user)
        except ConflictError:
            if (await self.stat(path, user=user)).type != "directory":
                raise

    async def rename(self, path: str, to: str, *, user: str | None = None) -> FileInfo:
        message = {"source": path, "destination": to}
        answer = await self._inside.call("filesystem.Filesystem/Move", message, user=user, again=False)
        return FileInfo.of(answer["entry"])

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Deletes a file, or a directory with all that is in it. What is not there is no error."""
        await self._inside.call("filesystem.Filesystem/Remove", {"path": path}, user=user)
