# Generated from _async/_services.py. Do not edit.
"""Processes that start with a sandbox."""

from __future__ import annotations

from builtins import list as List  # noqa: N812 - there are methods called list
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import models
from .._config import below
from .._wire import decode, encode

if TYPE_CHECKING:
    from ._client import Client


class Services:
    """Processes that start with a sandbox, and are started again when they end."""

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._path = path + "/services"

    def list(self) -> List[models.ServiceInfo]:
        """All, and how they are. It wakes nothing."""
        answer = self._client.request("GET", self._path)
        return [decode(models.ServiceInfo, one) for one in answer["services"]]

    def get(self, name: str) -> models.ServiceInfo:
        return decode(models.ServiceInfo, self._client.request("GET", below(self._path, name)))

    def set(self, service: models.Service) -> models.ServiceInfo:
        """Adds one, or replaces the one of its name."""
        path = below(self._path, service.name)
        return decode(models.ServiceInfo, self._client.request("PUT", path, body=encode(service)))

    def set_all(self, services: Sequence[models.Service]) -> None:
        """Makes these all services of the sandbox. Those that are as before run on."""
        self._client.request("PUT", self._path, body={"services": encode(list(services))})

    def remove(self, name: str) -> None:
        """Ends one, and removes it."""
        self._client.request("DELETE", below(self._path, name))

    def restart(self, name: str) -> models.ServiceInfo:
        """Ends what runs of one, and starts it at once."""
        return decode(models.ServiceInfo, self._client.request("POST", below(self._path, name, "restart")))

    def log(self, name: str, *, after: int = 0, lines: int | None = None) -> List[models.LogLine]:
        """The last lines that one has written since the sandbox booted."""
        query = {"after": str(after)} if after else {}
        if lines is not None:
            query["lines"] = str(lines)
        answer = self._client.request("GET", below(self._path, name, "log"), query=query)
        return [decode(models.LogLine, one) for one in answer["lines"]]
