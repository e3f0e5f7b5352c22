"""Processes that start with a sandbox."""

from __future__ import annotations

from builtins import list as List  # noqa: N812 - there are methods called list
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import models
from .._config import below
from .._wire import decode, encode

if TYPE_CHECKING:
    from ._client import AsyncClient


class AsyncServices:
    """Processes that start with a sandbox, and are started again when they end."""

    def __init__(self, client: AsyncClient, path: str) -> None:
        self._client = client
        self._path = path + "/services"

    async def list(self) -> List[models.ServiceInfo]:
        """All, and how they are. It wakes nothing."""
        answer = await self._client.request("GET", self._path)
        return [decode(models.ServiceInfo, one) for one in answer["services"]]

    async def get(self, name: str) -> models.ServiceInfo:
        return decode(models.ServiceInfo, await self._client.request("GET", below(self._path, name)))

    async def set(self, service: models.Service) -> models.ServiceInfo:
        """Adds one, or replaces the one of its name."""
        path = below(self._path, service.name)
        return decode(models.ServiceInfo, await self._client.request("PUT", path, body=encode(service)))

    async def set_all(self, services: Sequence[models.Service]) -> None:
        """Makes these all services of the sandbox. Those that are as before run on."""
        await self._client.request("PUT", self._path, body={"services": encode(list(services))})

    async def remove(self, name: str) -> None:
        """Ends one, and removes it."""
        await self._client.request("DELETE", below(self._path, name))

    async def restart(self, name: str) -> models.ServiceInfo:
        """Ends what runs of one, and starts it at once."""
        return decode(models.ServiceInfo, await self._client.request("POST", below(self._path, name, "restart")))

    async def log(self, name: str, *, after: int = 0, lines: int | None = None) -> List[models.LogLine]:
        """The last lines that one has written since the sandbox booted."""
        query = {"after": str(after)} if after else {}
        if lines is not None:
            query["lines"] = str(lines)
        answer = await self._client.request("GET", below(self._path, name, "log"), query=query)
        return [decode(models.LogLine, one) for one in answer["lines"]]
