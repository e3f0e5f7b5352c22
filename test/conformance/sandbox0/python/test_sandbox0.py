import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import os
import time
import urllib.error
import urllib.request
import uuid

import pytest
from sandbox0 import Client
from sandbox0.apispec.models.create_cmd_context_request import CreateCMDContextRequest
from sandbox0.apispec.models.create_context_request import CreateContextRequest
from sandbox0.apispec.models.create_repl_context_request import CreateREPLContextRequest
from sandbox0.apispec.models.create_sandbox_root_fs_snapshot_request import CreateSandboxRootFSSnapshotRequest
from sandbox0.apispec.models.fork_sandbox_config import ForkSandboxConfig
from sandbox0.apispec.models.fork_sandbox_request import ForkSandboxRequest
from sandbox0.apispec.models.network_egress_policy import NetworkEgressPolicy
from sandbox0.apispec.models.process_type import ProcessType
from sandbox0.apispec.models.pty_size import PTYSize
from sandbox0.apispec.models.restore_sandbox_root_fs_request import RestoreSandboxRootFSRequest
from sandbox0.apispec.models.sandbox_app_service import SandboxAppService
from sandbox0.apispec.models.sandbox_app_service_ingress import SandboxAppServiceIngress
from sandbox0.apispec.models.sandbox_app_service_route import SandboxAppServiceRoute
from sandbox0.apispec.models.sandbox_app_service_route_auth import SandboxAppServiceRouteAuth
from sandbox0.apispec.models.sandbox_app_service_route_auth_mode import SandboxAppServiceRouteAuthMode
from sandbox0.apispec.models.sandbox_app_service_route_rate_limit import SandboxAppServiceRouteRateLimit
from sandbox0.apispec.models.sandbox_app_service_runtime import SandboxAppServiceRuntime
from sandbox0.apispec.models.sandbox_app_service_runtime_type import SandboxAppServiceRuntimeType
from sandbox0.apispec.models.sandbox_config import SandboxConfig
from sandbox0.apispec.models.sandbox_config_env_vars import SandboxConfigEnvVars
from sandbox0.apispec.models.sandbox_function import SandboxFunction
from sandbox0.apispec.models.sandbox_function_runtime import SandboxFunctionRuntime
from sandbox0.apispec.models.sandbox_function_source import SandboxFunctionSource
from sandbox0.apispec.models.sandbox_function_source_type import SandboxFunctionSourceType
from sandbox0.apispec.models.sandbox_network_policy import SandboxNetworkPolicy
from sandbox0.apispec.models.sandbox_network_policy_mode import SandboxNetworkPolicyMode
from sandbox0.apispec.models.sandbox_refresh_request import SandboxRefreshRequest
from sandbox0.apispec.models.sandbox_update_config import SandboxUpdateConfig
from sandbox0.apispec.models.sandbox_update_request import SandboxUpdateRequest
from sandbox0.errors import APIError
from sandbox0.sandbox import CmdOptions

# A sandbox left behind by a killed test run disappears by itself.
LEFTOVER = 600

OLD = importlib.metadata.version("sandbox0").startswith("0.9.")
NEVER = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc) if OLD else None


def connect(**options):
    base = os.environ["SANDBOX0_BASE_URL"] + ("/sandbox0/0.9" if OLD else "")
    return Client(**{"token": os.environ["SANDBOX0_TOKEN"], "base_url": base, "timeout": 60, **options})


@pytest.fixture(scope="module")
def client():
    with connect() as client:
        yield client


@contextlib.contextmanager
def claim(client, template="base", **config):
    sandbox = client.sandboxes.claim(template, config=SandboxConfig(**{"ttl": LEFTOVER, "hard_ttl": LEFTOVER, **config}))
    try:
        yield sandbox
    finally:
        with contextlib.suppress(APIError):
            client.sandboxes.delete(sandbox.id)


@pytest.fixture(scope="module")
def box(client):
    env = SandboxConfigEnvVars()
    env["GREETING"] = "hello"
    with claim(client, env_vars=env) as sandbox:
        yield sandbox


def refused(call, status, *words):
    with pytest.raises(APIError) as caught:
        call()
    assert caught.value.status_code == status
    for word in words:
        assert word in str(caught.value)
    return caught.value


def sh(script, **options):
    return "sh", CmdOptions(command=["sh", "-c", script], **options)


def scratch():
    return f"/tmp/t-{uuid.uuid4()}"


def seconds_left(when):
    return (when - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


def test_claim_and_look(client, box):
    info = client.sandboxes.get(box.id)
    assert (info.id, info.template_id, info.status.value, info.paused, info.auto_resume) == (box.id, "base", "running", False, True)
    assert info.runtime_generation >= 1
    assert LEFTOVER - 100 < seconds_left(info.hard_expires_at) <= LEFTOVER
    status = client.sandboxes.status(box.id)
    assert (status.sandbox_id, status.status) == (box.id, "running")
    assert box.id in [s.id for s in client.sandboxes.list(status="running")]
    assert box.id in [s.id for s in client.sandboxes.list(template_id="base", paused=False)]
    assert box.id not in [s.id for s in client.sandboxes.list(paused=True)]
    assert [t.template_id for t in client.list_templates()]


def test_commands(box):
    result = box.cmd(*sh("echo $GREETING; echo err >&2; exit 3"))
    assert (result.stdout, result.stderr, result.exit_code, result.state) == ("hello\n", "err\n", 3, "crashed")
    assert sorted(result.output_raw.split()) == ["err", "hello"]
    assert box.cmd("pwd", CmdOptions(cwd="/usr", env_vars={"A": "b"})).stdout == "/usr\n"
    assert box.cmd(*sh("sleep 60", ttl_sec=1)).state == "killed"
    refused(lambda: box.cmd("/no/such/program"), 400, "no/such/program")


def test_command_streams(box):
    stream = box.cmd_stream(*sh("echo one; read x; echo got $x; exit 4"))
    stream.send_input("two\n")
    assert "".join(o.data for o in stream.iter_outputs()) == "one\ngot two\n"
    done = stream.wait()
    assert (done.exit_code, done.state) == (4, "crashed")


def test_terminals(box):
    stream = box.cmd_stream(*sh("stty size; read x; stty size", pty_rows=30, pty_cols=100))
    outputs = stream.iter_outputs()
    first = next(outputs)
    assert (first.source, first.data) == ("pty", "30 100\r\n")
    stream.send_resize(40, 120)
    stream.send_input("\n")
    assert "40 120" in "".join(o.data for o in outputs)


def test_contexts(box):
    request = CreateContextRequest(type_=ProcessType.CMD, cmd=CreateCMDContextRequest(command=["sh", "-c", "trap 'exit 7' INT; while read x; do echo got $x; done"]))
    ctx = box.create_context(request)
    assert ctx.running and ctx.id in [c.id for c in box.list_contexts()]
    box.context_input(ctx.id, "one\n")
    wait_for(lambda: "got one" in box.get_context(ctx.id).stdout)
    refused(lambda: box.context_resize(ctx.id, 3, 3), 409, "pty_unavailable")
    box.context_signal(ctx.id, "SIGINT")
    wait_for(lambda: not box.get_context(ctx.id).running)
    assert box.get_context(ctx.id).exit_code == 7
    refused(lambda: box.context_input(ctx.id, "x"), 410, "process_finished")
    assert box.restart_context(ctx.id).running
    box.delete_context(ctx.id)
    refused(lambda: box.get_context(ctx.id), 404, "context_not_found")


def wait_for(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_repls_keep_their_state(box):
    assert box.run("python", "x = 41\nprint('set')").output_raw == "set\n"
    assert box.run("python", "x + 1").output_raw == "42\n"
    assert "ZeroDivisionError" in box.run("python", "1/0").output_raw
    box.run("bash", "cd /usr && v=kept")
    assert box.run("bash", "echo $v in $PWD").output_raw == "kept in /usr\n"
    ctx = box.create_context(CreateContextRequest(type_=ProcessType.REPL, repl=CreateREPLContextRequest(alias="python")))
    stream = box.connect_ws_context(ctx.id)
    stream.send_input("print(6 * 7)", "r1")
    assert next(stream.iter_outputs()).data == "42\n"
    stream.close()
    box.delete_context(ctx.id)


def test_files(box):
    at = scratch()
    content = bytes(range(256)) * 1000
    box.mkdir(f"{at}/a/b", recursive=True)
    refused(lambda: box.mkdir(f"{at}/a"), 409, "path_exists")
    refused(lambda: box.mkdir(f"{at}/x/y"), 404, "directory_not_found")
    box.write_file(f"{at}/new/f ü.bin", content)
    assert box.read_file(f"{at}/new/f ü.bin") == content
    box.write_file(f"{at}/empty", b"")
    assert box.read_file(f"{at}/empty") == b""
    info = box.stat_file(f"{at}/new/f ü.bin")
    assert (info.name, info.type_.value, info.size, info.is_link) == ("f ü.bin", "file", len(content), False)
    assert sorted(e.name for e in box.list_files(at)) == ["a", "empty", "new"]
    box.move_file(f"{at}/empty", f"{at}/moved")
    refused(lambda: box.stat_file(f"{at}/empty"), 404, "file_not_found")
    refused(lambda: box.read_file(f"{at}/empty"), 404, "file_not_found")
    refused(lambda: box.list_files(f"{at}/moved"), 409, "path_not_directory")
    box.delete_file(at)
    refused(lambda: box.delete_file(at), 404, "file_not_found")


def test_watch(box):
    at = scratch()
    box.mkdir(at)
    watch = box.watch_files(at, recursive=True)
    box.write_file(f"{at}/seen", b"x")
    event = next(watch.iter_events())
    assert (event.type, event.event, event.path) == ("event", "create", f"{at}/seen")
    watch.unsubscribe()
    refused(lambda: box.watch_files("/nowhere"), 0, "does not exist")


def test_pause_and_what_wakes(client):
    with claim(client) as box:
        box.run("python", "kept = 42")
        box.write_file("/tmp/kept", b"kept")
        ctx = box.create_context(CreateContextRequest(type_=ProcessType.CMD, cmd=CreateCMDContextRequest(command=["sh", "-c", "while read x; do echo got $x; done"])))
        for generation, wake in enumerate([
            lambda: box.run("python", "kept").output_raw == "42\n",
            lambda: box.read_file("/tmp/kept") == b"kept",
            lambda: box.cmd("echo awake").stdout == "awake\n",
            lambda: box.context_input(ctx.id, "one\n").success,
        ], 2):
            assert pause(client, box.id).paused
            info = client.sandboxes.get(box.id)
            assert (info.status.value, info.expires_at) == ("paused", NEVER)
            assert client.sandboxes.status(box.id).status == "paused"  # looking wakes nothing
            assert wake()
            info = client.sandboxes.get(box.id)
            assert (info.status.value, info.runtime_generation) == ("running", generation)
        wait_for(lambda: "got one" in box.get_context(ctx.id).stdout)
        pause(client, box.id)
        pause(client, box.id)  # again is no error
        before = client.sandboxes.get(box.id)
        after = resume(client, box.id)
        assert (after.status.value, after.runtime_generation) == ("running", before.runtime_generation + 1)
        client.sandboxes.resume(box.id)
        assert client.sandboxes.get(box.id).runtime_generation == after.runtime_generation


def pause(client, id):
    if OLD:
        client.sandboxes.pause(id)
        return client.sandboxes.get(id)
    return client.sandboxes.pause_and_wait(id)


def resume(client, id):
    if OLD:
        client.sandboxes.resume(id)
        return client.sandboxes.get(id)
    return client.sandboxes.resume_and_wait(id)


def test_without_auto_resume(client):
    with claim(client, auto_resume=False) as box:
        pause(client, box.id)
        refused(lambda: box.cmd("true"), 503, "autoResume is off")
        refused(lambda: box.read_file("/etc/passwd"), 503, "autoResume is off")
        assert client.sandboxes.get(box.id).paused
        resume(client, box.id)
        assert box.cmd("echo up").stdout == "up\n"


def app(id, runtime=None, public=True, routes=(), **fields):
    routes = [SandboxAppServiceRoute(**{"resume": False, **r}) for r in routes]
    ingress = SandboxAppServiceIngress(public=public, routes=routes)
    if runtime:
        fields["runtime"] = SandboxAppServiceRuntime(**runtime)
    return SandboxAppService(id=id, ingress=ingress, **fields)


def ask(url, path="/", **headers):
    """Asks a service and returns the status and what it says."""
    request = urllib.request.Request(url.rstrip("/") + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


WEB = {"type_": SandboxAppServiceRuntimeType.CMD, "command": ["python3", "-m", "http.server", "8000"], "cwd": "/srv/site"}
CODE = """
import base64, json, os
calls = 0
def handler(request):
    global calls
    calls += 1
    said = base64.b64decode(request["body_base64"]).decode()
    return {"status": 201, "headers": {"x-made-by": "function"}, "body": {"calls": calls, "at": request["path"], "said": said, "id": os.environ["SANDBOX0_SERVICE_ID"]}}
"""


def function(**fields):
    source = SandboxFunctionSource(type_=SandboxFunctionSourceType.INLINE, code=CODE)
    return {"type_": SandboxAppServiceRuntimeType.FUNCTION, "function": SandboxFunction(runtime=SandboxFunctionRuntime.PYTHON, source=source, **fields)}


def test_services(client):
    with claim(client) as box:
        box.write_file("/srv/site/open.txt", b"open")
        box.write_file("/srv/site/closed/x.txt", b"closed")
        assert box.get_services().services == []
        digest = hashlib.sha256(b"key").hexdigest()
        auth = SandboxAppServiceRouteAuth(mode=SandboxAppServiceRouteAuthMode.BEARER, bearer_token_sha256=digest)
        got = box.update_services([
            app("web", WEB, port=8000, display_name="The site", routes=[
                {"id": "root", "path_prefix": "/", "methods": ["GET"], "resume": True},
                {"id": "closed", "path_prefix": "/closed", "auth": auth},
            ]),
            app("inside", {**WEB, "command": ["python3", "-m", "http.server", "8001"]}, port=8001, public=False),
            app("call", function(max_concurrency=2)),
        ])
        web, inside, call = got.services
        assert (web.id, web.port, web.publishable, web.display_name, web.runtime.type_.value) == ("web", 8000, True, "The site", "cmd")
        assert (inside.publishable, inside.publish_blockers, bool(inside.public_url)) == (False, ["not_public"], False)
        assert call.runtime.function.source.code == CODE and call.runtime.function.max_concurrency == 2
        assert [s.id for s in client.sandboxes.get(box.id).services] == ["web", "inside", "call"]
        assert ask(web.public_url, "/open.txt") == (200, "open")
        assert ask(web.public_url, "/closed/x.txt")[0] == 401
        assert ask(web.public_url, "/closed/x.txt", Authorization="Bearer key") == (200, "closed")
        assert ask(web.public_url, "/x/../closed/x.txt")[0] == 400
        assert ask(web.public_url.replace("8000", "8001", 1), "/open.txt")[0] == 403
        status, text = ask(call.public_url, "/a%20b?c=d")
        assert (status, json.loads(text)) == (201, {"calls": 1, "at": "/a b", "said": "", "id": "call"})
        assert json.loads(ask(call.public_url)[1])["calls"] == 2
        # A pause without memory, where this generation has it: the service is started again.
        generation = client.sandboxes.get(box.id).runtime_generation
        pause(client, box.id)
        assert ask(web.public_url, "/closed/x.txt")[0] == 401
        assert client.sandboxes.get(box.id).paused
        assert ask(web.public_url, "/open.txt") == (200, "open")
        assert client.sandboxes.get(box.id).runtime_generation == generation + 1
        assert json.loads(ask(call.public_url)[1])["calls"] == (3 if OLD else 1)
        # What was got can be put back; then all of them go.
        again = box.update_services([SandboxAppService.from_dict(s.to_dict()) for s in box.get_services().services])
        assert [(s.id, s.port) for s in again.services] == [("web", 8000), ("inside", 8001), ("call", call.port)]
        assert box.clear_services().services == []
        assert ask(web.public_url, "/open.txt")[0] == 502


def test_services_that_cannot_be(client):
    with claim(client, services=[app("hand", port=9000)], auto_resume=False) as box:
        (hand,) = box.get_services().services
        assert (hand.runtime.type_.value, hand.publish_blockers) == ("manual", ["manual_runtime"])
        box.cmd(*sh("cd /tmp && (setsid python3 -m http.server 9000 >/dev/null 2>&1 &)"))
        wait_for(lambda: ask(hand.public_url)[0] == 200)
        route = {"id": "r", "path_prefix": "/", "resume": True}
        refused(lambda: box.update_services([app("web", WEB, port=8000, routes=[route])]), 400, "auto_resume is off")
        refused(lambda: box.update_services([app("web", WEB, port=8000), app("other", WEB, port=8000)]), 400, "8000")
        limit = SandboxAppServiceRouteRateLimit(rps=1, burst=1)
        refused(lambda: box.update_services([app("web", WEB, port=8000, routes=[{**route, "rate_limit": limit}])]), 400, "rate_limit")
        assert [s.id for s in box.get_services().services] == ["hand"]


def test_update_and_refresh(client, box):
    info = client.sandboxes.update(box.id, SandboxUpdateRequest(config=SandboxUpdateConfig(ttl=300, auto_resume=False)))
    assert 200 < seconds_left(info.expires_at) <= 300 and info.auto_resume is False
    hard = info.hard_expires_at
    refreshed = client.sandboxes.refresh(box.id, SandboxRefreshRequest(duration=500))
    assert 400 < seconds_left(refreshed.expires_at) <= 500 and refreshed.hard_expires_at == hard
    client.sandboxes.refresh(box.id)
    info = client.sandboxes.update(box.id, SandboxUpdateRequest(config=SandboxUpdateConfig(auto_resume=True)))
    assert info.auto_resume is True
    error = refused(lambda: client.sandboxes.update(box.id, SandboxUpdateRequest(config=SandboxUpdateConfig(ttl=LEFTOVER, hard_ttl=1))), 400, "hard_ttl")
    assert error.code == "bad_request"


def test_clocks(client):
    with claim(client, ttl=2) as box:
        wait_for(lambda: client.sandboxes.get(box.id).paused)
        assert box.cmd("echo woken").stdout == "woken\n"
        client.sandboxes.pause(box.id)
        age = datetime.datetime.now(datetime.timezone.utc) - client.sandboxes.get(box.id).created_at
        with contextlib.suppress(APIError):  # on a slow machine it has ended by then
            client.sandboxes.update(box.id, SandboxUpdateRequest(config=SandboxUpdateConfig(hard_ttl=int(age.total_seconds()) + 3)))
        wait_for(lambda: has_ended(client, box.id))


def has_ended(client, id):
    try:
        client.sandboxes.get(id)
        return False
    except APIError as error:
        assert (error.status_code, error.code) == (404, "not_found")
        assert "MaxLifetime" in str(error)
        return True


def test_network(client):
    policy = SandboxNetworkPolicy(mode=SandboxNetworkPolicyMode.BLOCK_ALL, egress=NetworkEgressPolicy(allowed_cidrs=["203.0.113.0/24"], allowed_domains=["example.com"]))
    with claim(client, network=policy) as box:
        got = box.get_network_policy()
        assert (got.mode.value, got.egress.allowed_cidrs, got.egress.allowed_domains) == ("block-all", ["203.0.113.0/24"], ["example.com"])
        policy = SandboxNetworkPolicy(mode=SandboxNetworkPolicyMode.ALLOW_ALL, egress=NetworkEgressPolicy(denied_cidrs=["203.0.113.9/32"]))
        assert box.update_network_policy(policy).egress.denied_cidrs == ["203.0.113.9/32"]
        policy.egress.denied_domains = ["example.com"]
        refused(lambda: box.update_network_policy(policy), 400, "deniedDomains")


def test_snapshots(client):
    with claim(client) as box:
        box.write_file("/root/kept", b"before")
        snap = client.sandboxes.create_rootfs_snapshot(box.id, CreateSandboxRootFSSnapshotRequest(name=f"s-{uuid.uuid4()}"))
        try:
            assert client.sandboxes.get_rootfs_snapshot(snap.id).sandbox_id == box.id
            assert [s.id for s in client.sandboxes.list_rootfs_snapshots(box.id)] == [snap.id]
            box.write_file("/root/kept", b"after")
            error = refused(lambda: client.sandboxes.restore_rootfs(box.id, RestoreSandboxRootFSRequest(snapshot_id=snap.id)), 409, "pause")
            assert error.code == "conflict"
            pause(client, box.id)
            assert client.sandboxes.restore_rootfs(box.id, RestoreSandboxRootFSRequest(snapshot_id=snap.id)).status.value == "paused"
            resume(client, box.id)
            assert box.read_file("/root/kept") == b"before"
        finally:
            client.sandboxes.delete_rootfs_snapshot(snap.id)
        refused(lambda: client.sandboxes.get_rootfs_snapshot(snap.id), 404, "snapshot")


def test_fork(client, box):
    box.write_file("/root/inherited", b"yes")
    answer = client.sandboxes.fork(box.id, ForkSandboxRequest(config=ForkSandboxConfig(ttl=LEFTOVER, hard_ttl=LEFTOVER)))
    child = client.sandboxes.sandbox(answer.sandbox.id) if hasattr(client.sandboxes, "sandbox") else client.sandbox(answer.sandbox.id)
    try:
        assert answer.source_sandbox_id == box.id and answer.sandbox.paused
        assert child.read_file("/root/inherited") == b"yes"
        assert client.sandboxes.get(box.id).status.value == "running"
    finally:
        client.sandboxes.delete(child.id)
    if not OLD:  # its key is not remembered, so that a second request would be a second child
        refused(lambda: client.sandboxes.fork(box.id, ForkSandboxRequest(memory=True), idempotency_key="k"), 400, "Idempotency-Key")


@pytest.mark.skipif(not OLD, reason="0.10 has no volumes")
def test_volumes(client):
    from sandbox0.apispec.models.claim_mount_request import ClaimMountRequest
    from sandbox0.apispec.models.create_sandbox_volume_request import CreateSandboxVolumeRequest

    volume = client.volumes.create(CreateSandboxVolumeRequest())
    try:
        assert client.volumes.get(volume.id).id == volume.id
        assert volume.id in [v.id for v in client.volumes.list()]
        mounts = [ClaimMountRequest(sandboxvolume_id=volume.id, mount_point="/mnt/data")]
        ids = []
        for word in ("one", "two"):
            box = client.sandboxes.claim("base", config=SandboxConfig(hard_ttl=LEFTOVER), mounts=mounts)
            ids.append(box.id)
            assert [(m.sandboxvolume_id, m.state.value) for m in box.bootstrap_mounts] == [(volume.id, "mounted")]
            box.cmd(*sh(f"echo {word} >> /mnt/data/log"))
        assert box.read_file("/mnt/data/log") == b"one\ntwo\n"
        refused(lambda: client.volumes.delete(volume.id), 409)
        for id in ids:
            client.sandboxes.delete(id)
        refused(lambda: client.volumes.read_file(volume.id, "/log"), 501)
    finally:
        client.volumes.delete(volume.id)
    refused(lambda: client.volumes.get(volume.id), 404)


def test_errors(client, box):
    error = refused(lambda: client.sandboxes.get("inosuchsandbox"), 404, "inosuchsandbox")
    assert error.code == "not_found"
    refused(lambda: client.sandboxes.claim("nowhere"), 404, "nowhere", "not_found")
    assert refused(lambda: client.sandboxes.claim("base", config=SandboxConfig(ttl=-1)), 400, "ttl").code == "bad_request"
    refused(lambda: box.list_sessions() if hasattr(box, "list_sessions") else box.list_services(), 501)
    with connect(token="e2b_" + "0" * 40) as stranger:
        refused(lambda: stranger.sandboxes.get(box.id), 401, "unauthorized")
        refused(lambda: stranger.sandbox(box.id).cmd("true"), 401)


def test_delete(client):
    with claim(client, template="default") as box:
        client.sandboxes.delete(box.id)
        assert refused(lambda: client.sandboxes.get(box.id), 404, "ended").code == "not_found"
        refused(lambda: box.cmd("true"), 404, "ended")
