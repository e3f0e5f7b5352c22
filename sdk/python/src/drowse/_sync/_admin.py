# Generated from _async/_admin.py. Do not edit.
"""What belongs to an API key, and to no sandbox: snapshots and secrets."""

from __future__ import annotations

from builtins import list as List  # noqa: N812 - there are methods called list
from typing import TYPE_CHECKING, Unpack

from .. import models
from .._config import below
from .._wire import decode, options

if TYPE_CHECKING:
    from ._client import Client


class Snapshots:
    """Checkpoints that sandboxes can start from: ``create(snapshot="name")``. A snapshot is
    named by its id or name."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> List[models.Snapshot]:
        """All, newest first."""
        answer = self._client.request("GET", "/v1/snapshots")
        return [decode(models.Snapshot, one) for one in answer["snapshots"]]

    def get(self, snapshot: str) -> models.Snapshot:
        return decode(models.Snapshot, self._client.request("GET", below("/v1/snapshots", snapshot)))

    def change(self, snapshot: str, **change: Unpack[models.SnapshotChange]) -> models.Snapshot:
        """Changes how long it is kept."""
        body = options(change)
        return decode(models.Snapshot, self._client.request("PATCH", below("/v1/snapshots", snapshot), body=body))

    def remove(self, snapshot: str) -> None:
        """Deletes it. Sandboxes that started from it are kept."""
        self._client.request("DELETE", below("/v1/snapshots", snapshot))


class Secrets:
    """Values that sandboxes use without having them: the server puts them into requests to
    their hosts. ``create(secrets=["name"])`` gives a sandbox the use of one."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def set(self, name: str, **secret: Unpack[models.SecretOptions]) -> models.Secret:
        """Makes a secret, or replaces the one of that name."""
        body = options(secret)
        return decode(models.Secret, self._client.request("PUT", below("/v1/secrets", name), body=body))

    def rotate(self, name: str, value: str) -> models.Secret:
        """Replaces the value, also for sandboxes that run or sleep."""
        path = below("/v1/secrets", name, "rotate")
        return decode(models.Secret, self._client.request("POST", path, body={"value": value}))

    def list(self) -> List[models.Secret]:
        """All, oldest first, without their values."""
        answer = self._client.request("GET", "/v1/secrets")
        return [decode(models.Secret, one) for one in answer["secrets"]]

    def get(self, name: str) -> models.Secret:
        return decode(models.Secret, self._client.request("GET", below("/v1/secrets", name)))

    def remove(self, name: str) -> None:
        """Makes it worthless at once, also for sandboxes that run."""
        self._client.request("DELETE", below("/v1/secrets", name))
