"""A sandbox."""

from __future__ import annotations

import uuid
from builtins import list as List  # noqa: N812 - there are methods called list
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import httpx

from .. import models
from .._background import AsyncBackground, AsyncStop
from .._config import below, sandbox_path
from .._errors import APIError, DrowseError, ForkError, NotFoundError, NotRunningError, make
from .._wire import decode, options, seconds
from ._client import AsyncClient
from ._commands import AsyncCommands
from ._files import AsyncFiles
from ._inside import AsyncInside
from ._services import AsyncServices

Mode = Literal["memory", "filesystem"]


class AsyncSandbox:
    """A sandbox: a handle that stays valid while the sandbox sleeps and wakes.

    Used as a context manager, it kills the sandbox that it has created at the end, and leaves one
    that it has found.
    """

    def __init__(self, client: AsyncClient, answer: Mapping[str, Any], *, created: bool = False, owns: bool = False) -> None:
        """For the package's own use: see create, get and connect."""
        self.id: str = answer["id"]
        self.template: str = answer.get("alias") or answer["template"]
        self._client = client
        self._created = created
        self._owns = owns
        self._path = sandbox_path(self.id)
        self._inside = AsyncInside(client, self.id, answer.get("token") or "", answer.get("trafficToken") or "")
        self.commands = AsyncCommands(self._inside)
        self.files = AsyncFiles(self._inside)
        self.services = AsyncServices(client, self._path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    # Getting one

    @classmethod
    async def create(
        cls,
        template: str | None = None,
        *,
        client: AsyncClient | None = None,
        idempotency_key: str | None = None,
        **create: Unpack[models.CreateOptions],
    ) -> Self:
        """Makes a sandbox, which runs when this returns. The options are those of
        models.CreateOptions.

        A create whose answer is lost is made again, and still makes one sandbox. To have that over
        the end of this process too, give an ``idempotency_key`` of your own.
        """
        body = options(create)
        if template is not None:
            body["template"] = template
        head = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return await cls._of(client, "POST", "/v1/sandboxes", body, head, created=True)

    @classmethod
    async def get(cls, sandbox: str, *, client: AsyncClient | None = None) -> Self:
        """A handle to a sandbox that exists. It is left as it is, asleep or not."""
        return await cls._of(client, "GET", sandbox_path(sandbox))

    @classmethod
    async def named(cls, name: str, *, client: AsyncClient | None = None) -> Self:
        """A handle to the sandbox that was given a name at create, by the same API key. It is left
        as it is."""
        of = client or AsyncClient()
        try:
            found = await cls.list(name=name, client=of)
            if not found:
                raise make(
                    f"this API key has no sandbox of the name {name!r}",
                    404,
                    "sandbox_not_found",
                    "create one with this name, or look it up by id: with another key, the name says nothing",
                )
            answer = await of.request("GET", sandbox_path(found[0].id))
            return cls(of, answer, owns=client is None)
        except BaseException:
            if client is None:
                await of.close()
            raise

    @classmethod
    async def connect(
        cls, sandbox: str, *, timeout: float | timedelta | None = None, client: AsyncClient | None = None
    ) -> Self:
        """A handle to a sandbox that exists, which is woken if it sleeps. See wake."""
        body = options({"timeout": timeout})
        return await cls._of(client, "POST", sandbox_path(sandbox) + "/resume", body)

    @classmethod
    async def _of(
        cls,
        client: AsyncClient | None,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        created: bool = False,
    ) -> Self:
        of = client or AsyncClient()
        try:
            answer = await of.request(method, path, body=body, headers=headers, again=True)
            if answer.get("tombstone"):
                raise _ended(answer)
            return cls(of, answer, created=created, owns=client is None)
        except BaseException:
            if client is None:
                await of.close()
            raise

    @classmethod
    async def list(
        cls,
        *,
        state: Literal["pending", "running", "paused", "terminated"] | None = None,
        metadata: Mapping[str, str] | None = None,
        template: str | None = None,
        name: str | None = None,
        client: AsyncClient | None = None,
    ) -> List[models.SandboxInfo]:
        """The sandboxes that have not ended, or those in a state, newest first."""
        query: dict[str, Any] = {}
        if state is not None:
            query["state"] = state
        if template is not None:
            query["template"] = template
        if name is not None:
            query["name"] = name
        for name in metadata or {}:
            if "=" in name:
                raise DrowseError(f"the metadata key {name!r} has a =, and cannot be asked for")
        if metadata:
            query["metadata"] = [f"{k}={v}" for k, v in metadata.items()]
        of = client or AsyncClient()
        found = []
        try:
            while True:
                page = await of.request("GET", "/v1/sandboxes", query=query)
                found += [decode(models.SandboxInfo, one) for one in page["sandboxes"]]
                if not page["next"]:
                    return found
                query["after"] = page["next"]
        finally:
            if client is None:
                await of.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._created:
                with suppress(NotFoundError):
                    await self.kill()
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes the connections of the handle. The sandbox goes on as it is."""
        if self._owns:
            await self._client.close()

    # Its life

    async def info(self) -> models.SandboxInfo:
        """What the server says of it, also after its end. It neither wakes it nor moves a deadline."""
        return decode(models.SandboxInfo, await self._client.request("GET", self._path))

    async def why(self) -> models.Explanation:
        """Why it is as it is, and what happens next: ``why().next.text`` says it in words."""
        return decode(models.Explanation, await self._client.request("GET", self._path + "/lifecycle"))

    async def pause(self, mode: Mode | None = None) -> models.SandboxInfo:
        """Puts it to sleep. It is asleep when this returns, with its memory, processes and files;
        with mode filesystem, with its files alone. ConflictError: it sleeps already."""
        body = options({"mode": mode})
        return decode(models.SandboxInfo, await self._client.request("POST", self._path + "/pause", body=body))

    async def wake(self, timeout: float | timedelta | None = None) -> models.SandboxInfo:
        """Wakes it if it sleeps. ``timeout`` is how long it then runs at least; 0 is without end, and
        what is not said is its own."""
        body = options({"timeout": timeout})
        path = self._path + "/resume"
        return decode(models.SandboxInfo, await self._client.request("POST", path, body=body, again=True))

    async def kill(self) -> None:
        """Ends it, running or asleep, and deletes what it held."""
        await self._client.request("DELETE", self._path)

    async def set_timeout(self, timeout: float | timedelta | None) -> models.SandboxInfo:
        """Moves its deadline to so many seconds from now; None takes it away, and 0 is now."""
        body: dict[str, Any] = {"timeoutSeconds": "none" if timeout is None else seconds(timeout) or "now"}
        path = self._path + "/timeout"
        return decode(models.SandboxInfo, await self._client.request("POST", path, body=body, again=True))

    async def change(self, **change: Unpack[models.ChangeOptions]) -> models.SandboxInfo:
        """Changes its settings, running or asleep."""
        return decode(models.SandboxInfo, await self._client.request("PATCH", self._path, body=options(change)))

    def hold(self, reason: str, *, seconds: float = 60.0) -> AsyncHold:
        """Keeps it awake for as long as a block of code runs::

            with sandbox.hold("training"):
                ...

        The hold is renewed all the while. If this process dies, it ends after ``seconds``.
        """
        return AsyncHold(self._client, self._path, reason, seconds)

    async def holds(self) -> List[models.Hold]:
        """What keeps it awake, those that count first."""
        answer = await self._client.request("GET", self._path + "/holds")
        return [decode(models.Hold, one) for one in answer["holds"]]

    async def events(
        self, *, after: int | Literal["now"] | None = None, follow: bool = True
    ) -> AsyncGenerator[models.Event, None]:
        """What has happened to it, and then what happens, each once and in order, until it ends.

        ``after`` is the id of an event to go on from, or ``"now"``. Without ``follow`` it ends where
        the log does. A connection that breaks is taken up again where it broke off.
        """
        async for event in self._client._events(self._path + "/events", after, follow):
            yield event
            if event.type == "terminated":
                return

    # Others like it

    async def fork(self, count: int = 1, *, timeout: float | timedelta | None = None) -> List[Self]:
        """Starts sandboxes that go on from what this one is now: its memory, processes and files.
        ForkError: some did not start."""
        body = {"count": count, **options({"timeout": timeout})}
        answer = await self._client.request("POST", self._path + "/fork", body=body)
        children: List[Self] = []
        failed: List[APIError] = []
        for child in answer["children"]:
            if child.get("sandbox"):
                client = self._client._another() if self._owns else self._client
                children.append(type(self)(client, child["sandbox"], created=True, owns=self._owns))
            else:
                e = child.get("error") or {}
                failed.append(
                    make(
                        e.get("message", "a child did not start"),
                        child.get("status", 500),
                        e.get("code", ""),
                        e.get("remediation", ""),
                        e.get("cause", ""),
                        e.get("context"),
                    )
                )
        if failed:
            raise ForkError(children, failed)
        return children

    async def snapshot(self, name: str | None = None, **snapshot: Unpack[models.SnapshotOptions]) -> models.Snapshot:
        """Keeps what it is now: others can start from it, and it can go back to it. The options are
        those of models.SnapshotOptions."""
        body = options({"name": name, **snapshot})
        return decode(models.Snapshot, await self._client.request("POST", self._path + "/snapshots", body=body))

    async def snapshots(self) -> List[models.Snapshot]:
        """Its snapshots, newest first."""
        answer = await self._client.request("GET", self._path + "/snapshots")
        return [decode(models.Snapshot, one) for one in answer["snapshots"]]

    async def restore(self, snapshot: str | None = None, *, mode: Mode | None = None, discard: bool = False) -> str | None:
        """Takes it back to one of its snapshots, by id or name; without one, to what it was before
        the last restore. Returns the id of the snapshot that keeps what it was, unless ``discard``."""
        body: dict[str, Any] = {"snapshot": snapshot} if snapshot is not None else {"undo": True}
        body |= options({"mode": mode})
        if discard:
            body["discard"] = True
        answer = await self._client.request("POST", self._path + "/restore", body=body)
        undo: str | None = answer["undo"]
        return undo

    # Its ports

    async def request(
        self,
        port: int,
        path: str = "/",
        *,
        method: str = "GET",
        content: bytes | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Asks a server in the sandbox, and returns what it answers, whatever the status. It wakes
        the sandbox where traffic may."""
        if not path.startswith("/"):
            raise DrowseError(f"the path {path[:100]!r} does not begin with /")
        response = await self._inside.send(
            method, path, port=port, content=content, query=query, headers=headers, timeout=timeout
        )
        await response.aread()
        return response

    async def preview(self, port: int, **preview: Unpack[models.PreviewOptions]) -> models.Preview:
        """Makes a link to a port, for people who have no key. Its url is shown now and never again."""
        body = options({"port": port, **preview})
        return decode(models.Preview, await self._client.request("POST", self._path + "/previews", body=body))

    async def previews(self) -> List[models.Preview]:
        """The links that are good, oldest first."""
        answer = await self._client.request("GET", self._path + "/previews")
        return [decode(models.Preview, one) for one in answer["previews"]]

    async def revoke_preview(self, preview: str) -> None:
        """Makes a link worthless before its time."""
        await self._client.request("DELETE", below(self._path + "/previews", preview))


def _ended(answer: Mapping[str, Any]) -> APIError:
    tombstone = answer["tombstone"]
    detail = f" ({tombstone['detail']})" if tombstone.get("detail") else ""
    return make(
        f"the sandbox ended at {tombstone['at']}: {tombstone['reason']}{detail}",
        404,
        tombstone.get("code") or "sandbox_terminated",
        tombstone.get("remediation") or "",
        tombstone["reason"],
        {"sandbox": answer["id"], "state": "terminated", "reason": tombstone["reason"], "endedAt": tombstone["at"]},
    )


class AsyncHold:
    """Evidence of work in progress: while it is there, the sandbox is not idle."""

    def __init__(self, client: AsyncClient, path: str, reason: str, length: float) -> None:
        self.id = "sdk-" + uuid.uuid4().hex
        self.reason = reason
        self._client = client
        self._path = path + "/holds"
        self._length = length
        self._renewing: AsyncBackground | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.reason!r}>"

    async def __aenter__(self) -> Self:
        try:
            await self._renew()
        except DrowseError:
            raise
        except BaseException:
            # Interrupted or cancelled: it may be there all the same.
            with suppress(Exception):
                await self._client.request("DELETE", below(self._path, self.id))
            raise
        self._renewing = AsyncBackground(self._keep)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._renewing:
            await self._renewing.stop()
        try:
            await self._client.request("DELETE", below(self._path, self.id))
        except (NotFoundError, NotRunningError):
            pass  # the sandbox has ended, or the hold went with its sleep
        except DrowseError:
            if error is None:
                raise

    async def _renew(self) -> None:
        # With an id of its own it is the same hold however often it is asked for.
        body = {"id": self.id, "reason": self.reason, "seconds": self._length}
        await self._client.request("POST", self._path, body=body, again=True)

    async def _keep(self, stop: AsyncStop) -> None:
        while not await stop.wait(self._length / 3):
            try:
                await self._renew()
            except NotRunningError:
                continue  # it may wake again
            except APIError as e:
                if e.status < 500 and e.status != 429:
                    return
            except DrowseError:
                continue
