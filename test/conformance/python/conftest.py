import contextlib
import os

import pytest

from support import LEFTOVER


def pytest_configure(config):
    missing = [n for n in ("E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL") if not os.environ.get(n)]
    if missing:
        pytest.exit(
            f"{', '.join(missing)} not set: these tests need a running drowse server and its API key",
            returncode=2,
        )


def pytest_report_header():
    from importlib.metadata import version

    return f"e2b {version('e2b')} against {os.environ['E2B_API_URL']}"


@pytest.fixture
def new():
    """Creates sandboxes that are killed when the test ends, passed or failed."""
    from e2b import Sandbox

    with contextlib.ExitStack() as stack:

        def create(**opts):
            sandbox = Sandbox.create(**{"timeout": LEFTOVER, **opts})
            stack.callback(Sandbox.kill, sandbox.sandbox_id)
            return sandbox

        yield create


@pytest.fixture(scope="module")
def sandbox():
    """One sandbox for the tests of a module. They keep apart by using paths of
    their own, see scratch."""
    from e2b import Sandbox

    sandbox = Sandbox.create(timeout=600, envs={"GLOBAL": "from create", "BOTH": "from create"})
    yield sandbox
    sandbox.kill()


@pytest.fixture
async def anew():
    """As new, for AsyncSandbox."""
    from e2b import AsyncSandbox

    async with contextlib.AsyncExitStack() as stack:

        async def create(**opts):
            sandbox = await AsyncSandbox.create(**{"timeout": LEFTOVER, **opts})
            stack.push_async_callback(AsyncSandbox.kill, sandbox.sandbox_id)
            return sandbox

        yield create
