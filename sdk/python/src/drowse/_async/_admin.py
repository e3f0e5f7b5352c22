"""What belongs to an API key, and to no sandbox: snapshots and secrets."""

from __future__ import annotations

from builtins import list as List  # noqa: N812 - there are methods called list
from typing import TYPE_CHECKING, Unpack

from .. import models
from .._config import below
from .._wire import decode, options

if TYPE_CHECKING:
    from ._client import AsyncClient


class AsyncSnapshots:
    """Checkpoints that sandboxes can start from: ``create(snapshot="name")``. A snapshot is
    named by its id or name."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> List[models.Snapshot]:
        """All, newest first."""
        answer = await self._client.request("GET", "/v1/snapshots")
        return [decode(models.Snapshot, one) for one in answer["snapshots"]]

    async def get(self, snapshot: str) -> models.Snapshot:
        return decode(models.Snapshot, await self._client.request("GET", below("/v1/snapshots", snapshot)))

    async def change(self, snapshot: str, **change: Unpack[models.SnapshotChange]) -> models.Snapshot:
        """Changes how long it is kept."""
        body = options(change)
        return decode(models.Snapshot, await self._client.request("PATCH", below("/v1/snapshots", snapshot), body=body))

    async def remove(self, snapshot: str) -> None:
        """Deletes it. Sandboxes that started from it are kept."""
        await self._client.request("DELETE", below("/v1/snapshots", snapshot))


class AsyncSecrets:
    """Values that sandboxes use without having them: the server puts them into requests to
    their hosts. ``create(secrets=["name"])`` gives a sandbox the use of one."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def set(self, name: str, **secret: Unpack[models.SecretOptions]) -> models.Secret:
        """Makes a secret, or replaces the one of that name."""
        body = options(secret)
        return decode(models.Secret, await self._client.request("PUT", below("/v1/secrets", name), body=body))

    async def rotate(self, name: str, value: str) -> models.Secret:
        """Replaces the value, also for sandboxes that run or sleep."""
        path = below("/v1/secrets", name, "rotate")
        return decode(models.Secret, await self._client.request("POST", path, body={"value": value}))

    async def list(self) -> List[models.Secret]:
        """All, oldest first, without their values."""
        answer = await self._client.request("GET", "/v1/secrets")
        return [decode(models.Secret, one) for one in answer["secrets"]]

    async def get(self, name: str) -> models.Secret:
        return decode(models.Secret, await self._client.request("GET", below("/v1/secrets", name)))

    async def remove(self, name: str) -> None:
        """Makes it worthless at once, also for sandboxes that run."""
        await self._client.request("DELETE", below("/v1/secrets", name))
