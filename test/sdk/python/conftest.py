"""What the cases share. They run against the server that DROWSE_URL names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drowse import Client, Sandbox

#: For what should come at once, on a machine that does much else.
PATIENCE = 60.0


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with Client() as client:
        yield client


@pytest.fixture(scope="module")
def shared(client: Client) -> Iterator[Sandbox]:
    """A sandbox that no case pauses or ends."""
    with Sandbox.create(client=client) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(client: Client) -> Iterator[Sandbox]:
    """A sandbox of a case's own, which traffic wakes."""
    with Sandbox.create(client=client, idle_timeout=3600, on_idle="pause", auto_resume=True) as sandbox:
        yield sandbox
