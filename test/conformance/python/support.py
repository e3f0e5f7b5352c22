"""What all test modules share: the differences between the SDK versions, and
waiting for a condition with a deadline.

The tests talk to a drowse server that is already running. They create every
sandbox they look at and name it by a random metadata value, so other sandboxes
on the same server do not disturb them.
"""

import contextlib
import hashlib
import inspect
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from datetime import datetime, timezone

import e2b
import pytest
from e2b import Sandbox, SandboxNotFoundException, SandboxQuery

API_KEY = os.environ.get("E2B_API_KEY")
API_URL = os.environ.get("E2B_API_URL")
SANDBOX_URL = os.environ.get("E2B_SANDBOX_URL")
if not API_URL and os.environ.get("E2B_DOMAIN"):
    API_URL = f"https://api.{os.environ['E2B_DOMAIN']}"

UNKNOWN = "nonexistingsandbox"
BOOT_ID = "/proc/sys/kernel/random/boot_id"

# A sandbox left behind by a killed test run disappears by itself.
LEFTOVER = 150

# Older SDKs (2.45) create and connect through the v1 endpoints, and know one
# class for all the ways in which a sandbox does not answer.
OLD_SDK = not hasattr(e2b, "SandboxNotRunningException")
NotRunning = e2b.TimeoutException if OLD_SDK else e2b.SandboxNotRunningException


def scratch(suffix=""):
    """A path nobody else uses."""
    return f"/tmp/t-{uuid.uuid4()}{suffix}"


def marker():
    return f"py-{uuid.uuid4()}"


def sha256(data):
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def seconds_until(moment):
    """Compares with the clock of this host, which is the server's too."""
    return (moment - datetime.now(timezone.utc)).total_seconds()


def near(want, tolerance):
    return pytest.approx(want, abs=tolerance)


# Machines are busy: what is awaited may take so many times longer than it should.
PATIENCE = 6 * int(os.environ.get("DROWSE_TEST_PATIENCE", 1))


def eventually(what, probe, within=10.0, every=0.1):
    """Polls until probe returns something true and returns that."""
    within *= PATIENCE
    deadline = time.monotonic() + within
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not so after {within} s"
        time.sleep(every)


@contextlib.contextmanager
def raises_exactly(cls):
    """Wants an exception of this class, not of one derived from it."""
    with pytest.raises(cls) as caught:
        yield caught
    assert caught.type is cls


async def done(result):
    """What a method of Sandbox returns, or one of AsyncSandbox after a while."""
    return await result if inspect.isawaitable(result) else result


def list_all(paginator_class=Sandbox, order=None, limit=None, **query):
    paginator = paginator_class.list(
        query=SandboxQuery(**query) if query else None, order=order, limit=limit
    )
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return found


def ids(sandboxes):
    return [sandbox.sandbox_id for sandbox in sandboxes]


def state_of(sandbox):
    return Sandbox.get_info(sandbox.sandbox_id).state.value


def is_gone(sandbox):
    try:
        Sandbox.get_info(sandbox.sandbox_id)
    except SandboxNotFoundException:
        return True
    return False


def paused_within(sandbox, seconds):
    eventually("paused", lambda: state_of(sandbox) == "paused", within=seconds)


def wait_for(file):
    """Shell for: go on once the test has written the file."""
    return f"until [ -e {file} ]; do sleep 0.05; done"


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def http(url, headers=None, body=None, content_type=None, method=None):
    """One plain request; returns the status and the body."""
    headers = dict(headers or {})
    if content_type:
        headers["Content-Type"] = content_type
    req = urllib.request.Request(url, data=body, headers=headers, method=method)
    try:
        with _opener.open(req, timeout=30) as res:
            return res.status, res.read()
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read()


def request(sandbox, port, path, headers=None):
    """Reaches a port of the sandbox without the SDK."""
    if not SANDBOX_URL:
        return http(f"https://{sandbox.get_host(port)}{path}", headers)
    routing = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    return http(SANDBOX_URL + path, {**routing, **(headers or {})})


def preview(sandbox, port, headers=None):
    """Visits a port by the host name that the SDK has for it. Where nobody
    resolves that name, the server is told it."""
    if not SANDBOX_URL:
        return request(sandbox, port, "/", headers)
    return http(SANDBOX_URL + "/", {**(headers or {}), "Host": sandbox.get_host(port)})


def raw_info(sandbox):
    """The answer as it is on the wire."""
    status, body = http(
        f"{API_URL}/sandboxes/{sandbox.sandbox_id}",
        {"X-API-Key": API_KEY},
    )
    assert status == 200
    return json.loads(body)


def created_with(**options):
    """The ID of a new sandbox, by options that the SDK has no word for."""
    status, body = http(
        f"{API_URL}/sandboxes",
        {"X-API-Key": API_KEY},
        json.dumps({"templateID": "base", "timeout": LEFTOVER, "secure": True, **options}).encode(),
        "application/json",
    )
    assert status == 201, body
    return json.loads(body)["sandboxID"]


def v1(sandbox, path="", method="GET", **fields):
    """A call of the native API on a sandbox."""
    status, body = http(
        f"{API_URL}/v1/sandboxes/{sandbox.sandbox_id}{path}",
        {"X-API-Key": API_KEY},
        json.dumps(fields).encode() if fields else None,
        "application/json",
        method,
    )
    assert status == 200, body
    return json.loads(body)


class Counter:
    """A counter in the memory of a bash process, which appends "pid n" to a
    file: a restarted process would change the pid or begin at 1 again."""

    def __init__(self, sandbox):
        self.file = scratch(".counter")
        handle = sandbox.commands.run(
            f'n=0; while :; do n=$((n+1)); echo "$$ $n" >> {self.file}; sleep 0.1; done',
            background=True,
            timeout=0,
        )
        self.pid = handle.pid
        handle.disconnect()
        eventually("counter started", lambda: sandbox.files.exists(self.file))
        self.runs(sandbox)

    def read(self, sandbox):
        lines = sandbox.files.read(self.file).split("\n")[:-1]
        assert lines == [f"{self.pid} {n + 1}" for n in range(len(lines))], "the process was not continued"
        return len(lines)

    def runs(self, sandbox):
        """Wants the counter to go on from where it is now."""
        now = self.read(sandbox)
        eventually(f"counter past {now + 1}", lambda: self.read(sandbox) > now + 1)
