import contextlib
import os
import time
import uuid
import urllib.error
import urllib.request

import pytest
from cubesandbox import (
    NEVER_TIMEOUT,
    ApiError,
    Config,
    CubeSandboxError,
    FilesystemNotFoundError,
    PtySize,
    Sandbox,
    SandboxNotFoundError,
    Template,
    TemplateNotFoundError,
    Volume,
    VolumeMount,
    VolumeNotFoundError,
)
from cubesandbox._exceptions import AuthenticationError

# A sandbox left behind by a killed test run disappears by itself.
LEFTOVER = 300


@contextlib.contextmanager
def create(**options):
    sandbox = Sandbox.create(**{"timeout": LEFTOVER, **options})
    try:
        yield sandbox
    finally:
        with contextlib.suppress(SandboxNotFoundError):
            sandbox.kill()


@pytest.fixture(scope="module")
def box():
    with create(env_vars={"GREETING": "hello"}, metadata={"of": "cube"}, lifecycle={"on_timeout": "pause", "auto_resume": True}) as sandbox:
        yield sandbox


def refused(call, status, name=""):
    """Wants an ApiError: the others say that something is not there."""
    with pytest.raises(ApiError) as caught:
        call()
    assert caught.value.status_code == status
    assert name in str(caught.value)


def seconds_left(sandbox):
    return sandbox.get_info().end_at.timestamp() - time.time()


def test_health():
    assert Sandbox.health()["status"] == "ok"


def test_info_and_lists(box):
    info = box.get_info()
    assert (info["sandboxID"], info["state"], info["metadata"]) == (box.sandbox_id, "running", {"of": "cube"})
    assert box.sandbox_id in [s["sandboxID"] for s in Sandbox.list()]
    assert box.sandbox_id in [s["sandboxID"] for s in Sandbox.list_v2()]
    assert "base" in [t.name for t in Template.list()]


def test_commands(box):
    result = box.commands.run("echo $GREETING; id -un; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("hello\nroot\n", "err\n", 0)
    assert box.commands.run("exit 3").exit_code == 3


def test_files(box):
    path = f"/tmp/t-{uuid.uuid4()}"
    box.files.write(path, "one")
    assert box.files.read(path) == "one"
    assert path.rpartition("/")[2] in [e["name"] for e in box.files.list("/tmp")]
    box.files.remove(path)
    assert box.files.exists(path) is False
    with pytest.raises(FilesystemNotFoundError):
        box.files.stat(path)
    with pytest.raises(OSError, match="does not exist"):
        box.files.read(path)


def test_code(box):
    assert box.run_code("x = 41\nprint(x)").logs.stdout == ["41\n"]
    assert box.run_code("x + 1").text == "42"
    assert box.run_code("1/0").error.name == "ZeroDivisionError"


def test_pause_and_what_wakes(box):
    box.run_code("kept = 42")
    box.pause()
    assert box.get_info()["state"] == "paused"
    assert box.run_code("kept").text == "42"
    box.pause()
    assert box.commands.run("echo awake").stdout == "awake\n"
    box.pause()
    other = Sandbox.connect(box.sandbox_id)
    assert other.run_code("kept").text == "42"
    box.pause()
    box.resume()
    assert box.get_info()["state"] == "running"
    refused(box.resume, 409, "running")


def test_timeouts(box):
    box.set_timeout(LEFTOVER + 300)
    assert LEFTOVER + 200 < seconds_left(box) <= LEFTOVER + 300
    Sandbox.connect(box.sandbox_id)  # says nothing of the timeout, and changes nothing
    assert LEFTOVER + 200 < seconds_left(box) <= LEFTOVER + 300
    # This server has a longest timeout, and never shortens what is asked for.
    refused(lambda: box.set_timeout(NEVER_TIMEOUT), 400, "no limit")
    refused(lambda: Sandbox.create(timeout=NEVER_TIMEOUT), 400, "no limit")


def test_volumes_are_named_by_their_ids():
    volume = Volume.create(f"cube-{uuid.uuid4()}")
    try:
        assert volume.volume_id in [v.volume_id for v in Volume.list()]
        with create(volume_mounts={"/mnt/v": volume}) as one, create(volume_mounts={"/mnt/v": volume.volume_id}) as two:
            assert one.commands.run("echo shared >/mnt/v/a").exit_code == 0
            assert two.commands.run("cat /mnt/v/a").stdout == "shared\n"
        refused(lambda: Sandbox.create(volume_mounts={"/mnt/v": VolumeMount(volume, read_only=True)}), 400, "readOnly")
    finally:
        destroyed(volume)
    with pytest.raises(VolumeNotFoundError):
        Volume.connect(volume.volume_id)


def destroyed(volume, within=30):
    deadline = time.monotonic() + within
    while True:
        try:
            return Volume.destroy(volume.volume_id)
        except ApiError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_private_ports():
    with create(network={"allow_public_traffic": False}) as sandbox:
        assert sandbox.traffic_access_token
        # The SDK sends the token with what it asks of a port.
        assert sandbox.run_code("6*7").text == "42"
        assert by_hand(sandbox, 49999, "/health", {}) == 403
        assert by_hand(sandbox, 49999, "/health", {"e2b-traffic-access-token": sandbox.traffic_access_token}) == 200


def by_hand(sandbox, port, path, headers):
    """The status of a request that is no SDK's."""
    url = f"http://{os.environ['CUBE_PROXY_NODE_IP']}:{os.environ['CUBE_PROXY_PORT_HTTP']}{path}"
    request = urllib.request.Request(url, headers={"Host": sandbox.get_host(port), **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_network(box):
    box.update_network({"allow_internet_access": False})
    assert box.get_info()["allowInternetAccess"] is False
    box.update_network({"allow_out": ["192.0.2.1"], "deny_out": ["0.0.0.0/0"]})


def test_what_has_ended():
    with create() as sandbox:
        sandbox.kill()
        for call in (sandbox.kill, sandbox.get_info, sandbox.pause, lambda: sandbox.set_timeout(60), lambda: Sandbox.connect(sandbox.sandbox_id)):
            with pytest.raises(SandboxNotFoundError):
                call()
        with pytest.raises(RuntimeError, match="502.*was not found"):
            sandbox.commands.run("true")


def test_what_cannot_be_asked_for(box):
    with pytest.raises(AuthenticationError):
        Sandbox.list(config=Config(api_key="e2b_" + "0" * 40))
    with pytest.raises(TemplateNotFoundError):
        Sandbox.create("nonesuch")
    refused(lambda: Sandbox.create(distribution_scope=["a"]), 400, "distributionScope")
    refused(lambda: Sandbox.create(network={"rules": [{"match": {"host": "a.test"}, "action": {"allow": True}}]}), 400, "rules")


def test_snapshots_and_rollback(box):
    path = f"/tmp/t-{uuid.uuid4()}"
    box.files.write(path, "before")
    box.run_code("kept = 'before'")
    snapshot = box.create_snapshot()
    try:
        assert snapshot.snapshot_id in [s.snapshot_id for s in Sandbox.list_snapshots(sandbox_id=box.sandbox_id)[0]]
        for change in ("one", "two"):
            box.files.write(path, change)
            box.run_code(f"kept = {change!r}")
            assert box.rollback(snapshot.snapshot_id) == {"sandboxID": box.sandbox_id, "snapshotID": snapshot.snapshot_id, "status": "success"}
            assert box.files.read(path) == "before"
            assert box.run_code("kept").text == "before"
        with Sandbox.create(snapshot.snapshot_id, timeout=LEFTOVER) as other:
            assert other.files.read(path) == "before"
            refused(lambda: other.rollback(snapshot.snapshot_id), 400, "its own")
    finally:
        Sandbox.delete_snapshot(snapshot.snapshot_id)
    refused(lambda: box.rollback(snapshot.snapshot_id), 400, "no such snapshot")
    assert box.get_info()["state"] == "running"


def test_terminal(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), envs={"PS1": "$ "})
    got = []
    terminal.resize(PtySize(rows=50, cols=120))
    terminal.send_stdin("stty size; echo a$((40 + 2))z; exit 7\n")
    with pytest.raises(CubeSandboxError, match="exit status 7"):
        terminal.wait(on_data=got.append)
    assert b"50 120" in b"".join(got) and b"a42z" in b"".join(got)
