import asyncio
import contextlib
import os
import re
import time
import uuid

import httpx
import mitos
import mitos.aio
import mitos.e2b
import pytest
from mitos import (
    AgentRunError,
    ExecutionDeadlineError,
    IdleTimeoutError,
    NotFoundError,
    SandboxServer,
    TimeoutTooLargeError,
    UnauthorizedError,
)

BASE = os.environ["MITOS_BASE_URL"]
KEY = os.environ["MITOS_API_KEY"]
PATIENCE = 30 * int(os.environ.get("DROWSE_TEST_PATIENCE", 1))


@pytest.fixture(scope="module")
def box():
    with create() as sandbox:
        yield sandbox


@contextlib.contextmanager
def create(*args, **options):
    sandbox = mitos.create(*args, **options)
    try:
        # One left behind by a killed test run disappears by itself.
        sandbox.set_timeout(600)
        yield sandbox
    finally:
        rest("DELETE", f"/v1/sandboxes/{sandbox.id}")


def rest(method, path, base=BASE, sandbox="", **options):
    """What no method of the SDK asks for."""
    headers = {"Authorization": f"Bearer {KEY}", "X-Sandbox-Id": sandbox}
    return httpx.request(method, base + path, headers=headers, timeout=PATIENCE, **options)


def listed(sandbox):
    return next((s for s in SandboxServer.from_auth().list_sandboxes() if s["id"] == sandbox.id), None)


def scratch():
    return f"/tmp/t-{uuid.uuid4()}"


def until(condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")


@contextlib.contextmanager
def refused(code, status, *words):
    with pytest.raises(AgentRunError) as caught:
        yield
    assert (caught.value.code, caught.value.status) == (code, status)
    for word in words:
        assert word in str(caught.value)


def test_create_and_list(box):
    server = SandboxServer.from_auth()
    assert box.id.startswith("sandbox-")
    assert (box.template, box.endpoint) == ("python", "")
    assert box.fork_time_ms > 0
    health = server.health()
    assert health["status"] == "ok" and health["sandboxes"] >= 1
    assert "base" in [t["id"] for t in server.list_templates()]
    got = listed(box)
    assert (got["state"], got["paused"]) == ("running", False)
    assert got["deadline_unix"] > time.time()


def test_exec(box):
    got = box.exec("echo out; echo err >&2; exit 3")
    assert (got.stdout, got.stderr, got.exit_code) == ("out\n", "err\n", 3)
    assert got.exec_time_ms > 0
    assert box.exec(["printf", "%s|", "a b", "'", "$HOME"]).stdout == "a b|'|$HOME|"
    assert len(box.exec("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000
    assert box.exec("kill -9 $$").exit_code == 137


def test_exec_past_its_deadline(box):
    mark = f"1234.{uuid.uuid4().int % 10**6}"
    with pytest.raises(ExecutionDeadlineError) as caught:
        box.exec(f"sleep {mark}", timeout=1)
    assert caught.value.context["timeout_s"] == 1
    until(lambda: box.exec(f"pgrep -f '[s]leep {mark}'").exit_code == 1)


def test_exec_that_nobody_waits_for_is_killed(box):
    mark = f"2345.{uuid.uuid4().int % 10**6}"
    stream = httpx.stream("POST", BASE + "/sandbox.v1.Sandbox/ExecStream", content=frame(f'{{"command":"echo begun; sleep {mark}"}}'), timeout=PATIENCE, headers={
        "Authorization": f"Bearer {KEY}", "X-Sandbox-Id": box.id, "Content-Type": "application/connect+json"})
    with stream as response:
        chunks = response.iter_raw()  # forgetting it would close the connection
        next(chunks)
        until(lambda: listed(box)["active_streams"] == 1)
        until(lambda: box.exec(f"pgrep -f '[s]leep {mark}'").exit_code == 0)
    until(lambda: box.exec(f"pgrep -f '[s]leep {mark}'").exit_code == 1)
    until(lambda: listed(box)["active_streams"] == 0)


def frame(message):
    data = message.encode()
    return b"\0" + len(data).to_bytes(4, "big") + data


def test_files(box):
    here = scratch()
    data = os.urandom(5_000_000)
    box.files.write(f"{here}/deep/data", data)
    assert box.files.read_bytes(f"{here}/deep/data") == data
    box.files.write(f"{here}/text", "für ß")
    assert box.files.read(f"{here}/text") == "für ß"
    box.files.write(f"{here}/empty", b"")
    assert box.files.read_bytes(f"{here}/empty") == b""
    entries = {e.name: e for e in box.files.list(here)}
    assert set(entries) == {"deep", "text", "empty"}
    assert entries["deep"].is_dir and not entries["text"].is_dir
    assert (entries["text"].size, entries["text"].mode) == (7, 0o644)
    assert abs(int(entries["text"].modified_at) - time.time()) < PATIENCE
    box.files.write(f"{here}/run", "#!/bin/sh\necho ran", mode=0o755)
    assert box.exec(f"{here}/run").stdout == "ran\n"
    box.files.mkdir(f"{here}/a/b/c")
    box.files.mkdir(f"{here}/a/b/c")
    assert box.files.exists(f"{here}/a/b/c") and box.files.exists(f"{here}/text")
    with refused("directory_not_empty", 409, "rm -r"):
        box.files.remove(f"{here}/a")
    box.files.remove(f"{here}/a/b/c")
    box.files.remove(f"{here}/text")
    assert not box.files.exists(f"{here}/a/b/c") and not box.files.exists(f"{here}/text")
    for missing in (box.files.read, box.files.list, box.files.remove):
        with pytest.raises(NotFoundError):
            missing(f"{here}/text")


def test_run_code(box):
    heard = []
    got = box.run_code("import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)\nx + 1", on_stdout=heard.append)
    assert (got.text, got.error) == ("42", None)
    assert ("".join(got.logs["stdout"]), "".join(got.logs["stderr"])) == ("out\n", "err\n")
    assert "".join(heard) == "out\n"
    assert box.run_code("x").text == "41"
    rich = box.run_code("class H:\n  def _repr_html_(self): return '<b>ü</b>'\nH()")
    assert rich.results[0].data["text/html"] == "<b>ü</b>"
    failed = box.run_code("1/0")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert any("ZeroDivisionError" in line for line in failed.error.traceback)
    with pytest.raises(ExecutionDeadlineError):
        box.run_code("import time\ntime.sleep(60)", timeout=1)
    assert box.run_code("x").text == "41"
    with pytest.raises(AgentRunError):
        box.run_code("x", language="cobol")


def test_terminal(box):
    heard = bytearray()
    terminal = box.pty(heard.extend, cols=90, rows=31)
    terminal.send_input(b"stty size\n")
    until(lambda: b"31 90" in heard)
    terminal.resize(101, 33)
    terminal.send_input(b"stty size; cat /proc/$$/stat | head -c 20; exit 4\n")
    assert terminal.wait(PATIENCE) == 4
    assert b"33 101" in heard

    heard.clear()
    terminal = box.pty(heard.extend)
    terminal.send_input(b"echo shell=$$=\n")
    until(lambda: re.search(rb"shell=(\d+)=", heard))
    shell = re.search(rb"shell=(\d+)=", heard)[1].decode()
    assert box.exec(f"kill -0 {shell}").exit_code == 0
    terminal.kill()
    until(lambda: box.exec(f"kill -0 {shell}").exit_code != 0)


def test_pause_and_resume():
    with create() as sandbox:
        pid = sandbox.exec("sleep 10000 >/dev/null 2>&1 & echo $!").stdout.strip()
        sandbox.run_code("kept = 'in memory'")
        sandbox.files.write("/tmp/kept", "on disk")
        for _ in range(3):
            sandbox.pause()
            sandbox.pause()
            assert listed(sandbox)["paused"]
            with refused("not_resumable", 409, "call resume() first"):
                sandbox.exec("true")
            sandbox.resume()
            sandbox.resume()
            assert not listed(sandbox)["paused"]
            assert sandbox.exec(f"cat /proc/{pid}/comm").stdout == "sleep\n"
            assert sandbox.run_code("kept").text == "in memory"
            assert sandbox.files.read("/tmp/kept") == "on disk"

        # With auto-resume, for which mitos has no word, calls wake it.
        mine = rest("PATCH", f"/v1/sandboxes/{drowse_id(sandbox)}", base=BASE.removesuffix("/mitos"),
                    json={"idleTimeoutSeconds": 3600, "onIdle": "pause", "autoResume": True})
        assert mine.status_code == 200
        for call in (lambda: sandbox.exec("echo awake").stdout == "awake\n", lambda: sandbox.run_code("kept").text == "in memory",
                     lambda: sandbox.files.read("/tmp/kept") == "on disk"):
            sandbox.pause()
            assert call()
            assert listed(sandbox)["state"] == "running"


def drowse_id(sandbox):
    return sandbox.get_host(1).partition("/s/")[2].partition("/")[0] or sandbox.get_host(1).partition("-")[2].partition(".")[0]


def test_a_pause_ends_streams_and_says_why():
    with create() as sandbox:
        messages = sandbox._connect().server_stream("ExecStream", {"command": "echo begun; sleep 1000"}, timeout=PATIENCE)
        assert "stdout" in next(messages)
        other = mitos.DirectSandbox(sandbox.id, "", "", BASE, 0, KEY)
        other.pause()
        with pytest.raises(AgentRunError) as caught:
            list(messages)
        assert "sleep" in caught.value.cause or "paused" in caught.value.cause
        other.resume()


def test_set_timeout_and_expiry():
    with create() as sandbox:
        before = int(time.time())
        deadline = sandbox.set_timeout(300)
        assert before + 300 <= deadline <= time.time() + 300
        assert listed(sandbox)["deadline_unix"] == deadline
        with pytest.raises(TimeoutTooLargeError):
            sandbox.set_timeout(86401)
        for bad in (0, -1):
            with refused("invalid_input", 400, "timeout_seconds"):
                sandbox.set_timeout(bad)
        answer = rest("POST", "/v1/set_timeout", json={"sandbox": sandbox.id, "timeout_seconds": 86401}).json()["error"]
        assert answer["code"] == "timeout_too_large"
        assert answer["context"]["requested_s"] == 86401 and answer["context"]["max_timeout_s"] == 86400
        assert listed(sandbox)["deadline_unix"] == deadline
        sandbox.set_timeout(1)
        until(lambda: listed(sandbox) is None)
        for call in (lambda: sandbox.exec("true"), lambda: sandbox.files.read("/etc/hostname"), sandbox.pause, lambda: sandbox.set_timeout(60)):
            with pytest.raises(IdleTimeoutError) as caught:
                call()
            assert caught.value.remediation


def test_live_fork(box):
    box.run_code("forked = [1]")
    box.files.write("/tmp/forked", "parent")
    children = box.fork(2)
    try:
        assert len({box.id, *(c.id for c in children)}) == 3
        for n, child in enumerate(children):
            assert child.run_code(f"forked.append({n}); forked").text == f"[1, {n}]"
            child.files.write("/tmp/forked", str(n))
        assert box.run_code("forked").text == "[1]"
        assert box.files.read("/tmp/forked") == "parent"
        assert [c.files.read("/tmp/forked") for c in children] == ["0", "1"]
    finally:
        for child in children:
            child.terminate()


def test_ids_and_idempotency(box):
    name = f"box-{uuid.uuid4().hex[:8]}"
    with create(id=name) as sandbox:
        assert sandbox.id == name
        with refused("name_taken", 409, name):
            mitos.create(id=name)
        server, key = SandboxServer.from_auth(), uuid.uuid4().hex
        again = [server.fork("python", id=f"{name}-b", idempotency_key=key) for _ in range(2)]
        assert again[0].id == again[1].id == f"{name}-b"
        again[0].terminate()
    with create(id=name) as sandbox:
        assert sandbox.exec("echo new").stdout == "new\n"
    for bad in ("a b", "../x", "x" * 65, "-x"):
        with refused("invalid_input", 400):
            mitos.create(id=bad)


def test_errors(box):
    nowhere = mitos.DirectSandbox("sandbox-00000000", "", "", BASE, 0, KEY)
    for call in (lambda: nowhere.exec("true"), nowhere.pause, nowhere.resume, nowhere.fork, lambda: nowhere.files.list("/"), lambda: nowhere.get_host(80)):
        with pytest.raises(NotFoundError):
            call()
    stranger = mitos.DirectSandbox(box.id, "", "", BASE, 0, "e2b_" + "0" * 40)
    for call in (lambda: stranger.exec("true"), stranger.pause, lambda: stranger.files.read("/etc/hostname")):
        with pytest.raises(UnauthorizedError):
            call()
    box_after = mitos.create()
    rest("DELETE", f"/v1/sandboxes/{box_after.id}")
    with pytest.raises(NotFoundError) as caught:
        box_after.exec("true")
    assert "Killed" in caught.value.cause
    with refused("not_found", 404, "drowse template pull"):
        mitos.create("no-such-template")


def test_refused_by_name(box):
    for options, word in (({"workload": {"command": ["x"]}}, "workload"), ({"region": "fra"}, "region"),
                          ({"network": mitos.Network(allow_domains=["example.com:443"])}, "example.com"),
                          ({"network": mitos.Network(inbound="allow", inbound_cidrs=["203.0.113.0/24"])}, "inbound_cidrs")):
        with refused("unimplemented", 501, word):
            mitos.create(**options)
    for method in ("Watch", "Upload", "Vitals"):
        answer = rest("POST", f"/sandbox.v1.Sandbox/{method}", sandbox=box.id, json={})
        assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented")
        assert method in answer.json()["message"]


def test_network_and_preview():
    with create(network=mitos.Network(egress="allow"), resources={"mem_size_mib": 512}) as sandbox:
        native = rest("GET", f"/v1/sandboxes/{drowse_id(sandbox)}", base=BASE.removesuffix("/mitos")).json()
        assert (native["allowInternetAccess"], native["allowPublicTraffic"], native["limits"]["memoryMiB"]) == (True, False, 512)
        sandbox.exec("mkdir /tmp/www; echo served >/tmp/www/index.html; cd /tmp/www; nohup python3 -m http.server 8000 >/dev/null 2>&1 &")
        until(lambda: sandbox.exec("curl -s localhost:8000").stdout == "served\n")
        url = sandbox.get_host(8000)
        # By host name, the link sets a cookie and drops its token from the URL.
        assert httpx.get(url, follow_redirects=True).text == "served\n"
        assert httpx.get(url.partition("?")[0]).status_code == 403
    with create() as sandbox:
        native = rest("GET", f"/v1/sandboxes/{drowse_id(sandbox)}", base=BASE.removesuffix("/mitos")).json()
        assert (native["allowInternetAccess"], native["allowPublicTraffic"]) == (False, False)


def test_e2b_shim():
    sandbox = mitos.e2b.Sandbox.create(timeout=600)
    try:
        assert sandbox.commands.run("echo hi").stdout == "hi\n"
        sandbox.files.make_dir("/tmp/shim")
        sandbox.files.write("/tmp/shim/a", "b")
        again = mitos.e2b.Sandbox.connect(sandbox.sandbox_id)
        assert again.files.read("/tmp/shim/a") == "b"
        assert sandbox.sandbox_id in [s.sandbox_id for s in mitos.e2b.Sandbox.list()]
    finally:
        sandbox.kill()
    with pytest.raises(NotFoundError):
        mitos.e2b.Sandbox.connect(sandbox.sandbox_id)


def test_async(box):
    async def all_of_it():
        sandbox = await mitos.aio.create(image="python")
        try:
            assert (await sandbox.exec("echo hi")).stdout == "hi\n"
            await sandbox.files.write("/tmp/async", "x")
            assert await sandbox.files.read("/tmp/async") == "x"
            assert (await sandbox.run_code("6*7")).text == "42"
            # The class with these three needs Kubernetes only to find its sandbox.
            handle = mitos.AsyncSandbox(sandbox.id, BASE, KEY)
            assert await handle.set_timeout(300) > time.time()
            await handle.pause()
            await handle.resume()
            got = await handle.exec("pwd; echo $A", working_dir="/tmp", env={"A": "b c"})
            assert got.stdout == "/tmp\nb c\n"
            await handle.aclose()
            (child,) = await sandbox.fork()
            assert await child.files.read("/tmp/async") == "x"
            await child.terminate()
        finally:
            await sandbox.terminate()

    asyncio.run(all_of_it())
