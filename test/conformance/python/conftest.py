import contextlib
import os

import pytest

import surface
from support import API_URL, LEFTOVER


def pytest_configure(config):
    if not os.environ.get("E2B_API_KEY") or not API_URL:
        pytest.exit(
            "E2B_API_KEY, and E2B_DOMAIN or E2B_API_URL and E2B_SANDBOX_URL, are not set: "
            "these tests need a running drowse server",
            returncode=2,
        )
    surface.watch()
    surface.offer()


def pytest_report_header():
    from importlib.metadata import version

    return f"e2b {version('e2b')} against {API_URL}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with surface.record(item.path.stem.removeprefix("test_"), item.name):
        return (yield)


@pytest.fixture
def new():
    """Creates sandboxes that are killed when the test ends, passed or failed."""
    from e2b import Sandbox

    with contextlib.ExitStack() as stack:

        def create(kind=Sandbox, **opts):
            sandbox = kind.create(**{"timeout": LEFTOVER, **opts})
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


@pytest.fixture(params=["sync", "async"])
async def either(request, new, anew):
    """Creates a sandbox of either class. What its methods return goes through
    support.done."""

    async def create(**opts):
        return new(**opts) if request.param == "sync" else await anew(**opts)

    return create
