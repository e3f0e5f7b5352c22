"""The whole surface, against real sandboxes."""

from __future__ import annotations

import io
import threading
import time
from datetime import timedelta

import pytest

import drowse
from drowse import (
    Client,
    CommandError,
    CommandTimeoutError,
    ConflictError,
    DrowseError,
    NotFoundError,
    NotRunningError,
    Sandbox,
    SandboxEndedError,
    SandboxInterruptedError,
    Service,
    UnavailableError,
)


def test_commands(shared: Sandbox) -> None:
    result = shared.commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("out\n", "err\n", 3, False)
    with pytest.raises(CommandError) as failed:
        shared.commands.run("echo why >&2; exit 3", check=True)
    assert failed.value.result.exit_code == 3 and "why" in str(failed.value)
    result = shared.commands.run(["printenv", "A"], env={"A": "b c"}, cwd="/")
    assert result.stdout == "b c\n"
    assert shared.commands.run("id -un; pwd", user="root", cwd="/tmp", check=True).stdout == "root\n/tmp\n"
    assert shared.commands.run("kill -9 $$").status == "signal: killed"


def test_input_and_output(shared: Sandbox) -> None:
    text = "größe 眠る 💤\n" * 40_000
    assert shared.commands.run("cat", stdin=text, check=True).stdout == text
    assert shared.commands.run(["true"], stdin=b"x" * 5_000_000).ok, "a command that reads nothing"
    pieces: list[str] = []
    result = shared.commands.run(
        "for b in 303 237 230 200; do printf \"\\\\$b\"; sleep 0.1; done; printf '\\377'", on_stdout=pieces.append
    )
    assert "".join(pieces) == "ß\ufffd\ufffd\ufffd" == result.stdout, pieces
    assert result.stdout_bytes == b"\xc3\x9f\x98\x80\xff"


def test_huge_output(shared: Sandbox) -> None:
    size = 24 << 20
    result = shared.commands.run(f"head -c {size} /dev/zero")
    assert len(result.stdout_bytes) == size and not result.stdout_bytes.strip(b"\0")


def test_processes(shared: Sandbox) -> None:
    with shared.commands.start("read line; echo got $line; sleep 1000", stdin=True) as process:
        assert process.pid in [p.pid for p in shared.commands.list()]
        process.send("it\n")
        for piece in process:
            assert (piece.stream, piece.text) == ("stdout", "got it\n")
            break
        assert process.kill()
        assert process.wait().exit_code == -1
        assert not process.kill()
    with pytest.raises(CommandTimeoutError):
        shared.commands.run("sleep 1000", timeout=0.5)
    with pytest.raises(NotFoundError):
        shared.commands.attach(99_999)
    with pytest.raises(ValueError, match="stop"):
        # A callback that raises ends the command.
        def raising(text: str) -> None:
            raise ValueError("stop")

        shared.commands.run("echo $$; exec -a unheard sleep 1000", on_stdout=raising)
    assert "unheard" not in shared.commands.run("ps ax").stdout


def test_terminal(shared: Sandbox) -> None:
    with shared.commands.start(["/bin/sh"], terminal=(99, 33)) as shell:
        shell.send("stty size\n")
        shown = ""
        for piece in shell:
            shown += piece.text
            if "33 99" in shown:
                break
        shell.resize(101, 35)
        shell.send("stty size; exit 4\n")
        result = shell.wait()
    assert (result.exit_code, piece.stream) == (4, "terminal") and "35 101" in result.stdout


def test_files(shared: Sandbox) -> None:
    every = bytes(range(256)) * 4096
    files = shared.files
    files.write("/tmp/d/ä b/x.bin", every)
    assert files.read("/tmp/d/ä b/x.bin") == every
    files.write("/tmp/d/from file", io.BytesIO(every * 3))
    assert b"".join(files.chunks("/tmp/d/from file")) == every * 3
    files.write("/tmp/d/text", "größe")
    assert files.read_text("/tmp/d/text") == "größe"
    assert {f.name: f.type for f in files.list("/tmp/d")} == {"ä b": "directory", "from file": "file", "text": "file"}
    assert len(files.list("/tmp/d", depth=2)) == 4
    entry = files.stat("/tmp/d/ä b/x.bin")
    assert entry.size == len(every) and entry.modified is not None
    files.make_dir("/tmp/d/new/er")
    files.make_dir("/tmp/d/new/er")
    assert files.rename("/tmp/d/text", "/tmp/d/new/er/text").path == "/tmp/d/new/er/text"
    files.write("/tmp/d/empty", b"")
    assert files.read("/tmp/d/empty") == b""
    files.remove("/tmp/d")
    files.remove("/tmp/d")
    assert not files.exists("/tmp/d")
    with pytest.raises(NotFoundError, match="does not exist"):
        files.read("/tmp/d/text")
    files.write("home", "x")
    assert files.exists("/home/user/home") and not files.exists("home", user="root")


def test_life(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo 1 >/dev/shm/a; sleep 1000 & echo $!").ok
    assert sandbox.info().state == "running"
    paused = sandbox.pause()
    assert paused.state == "paused" and paused.checkpoint and paused.checkpoint.mode == "memory"
    why = sandbox.why()
    assert why.state == "paused" and why.next.waits_for == "traffic" and "asleep" not in why.next.text
    with pytest.raises(ConflictError) as twice:
        sandbox.pause()
    assert (twice.value.code, twice.value.state) == ("already_paused", "paused")
    assert "Next step" in str(twice.value)
    with pytest.raises(NotRunningError) as asleep, sandbox.hold("too late"):
        pass
    assert asleep.value.state == "paused" and asleep.value.remediation
    assert sandbox.wake(timeout=timedelta(minutes=5)).end_at is not None
    assert sandbox.set_timeout(None).end_at is None
    sandbox.pause()
    assert sandbox.commands.run("cat /dev/shm/a; pgrep -c sleep").stdout == "1\n1\n", "a command wakes it"
    changed = sandbox.change(auto_resume=False, metadata={"k": "ö"}, max_lifetime=timedelta(hours=1))
    assert (changed.settings.auto_resume, changed.metadata, changed.settings.max_lifetime) == (False, {"k": "ö"}, 3600)
    sandbox.pause()
    with pytest.raises(NotRunningError) as refused:
        sandbox.files.read("/etc/hostname")
    assert refused.value.state == "paused" and refused.value.code == "not_resumable"
    with Sandbox.connect(sandbox.id) as other:
        assert other.info().state == "running"
    assert sandbox.info().state == "running", "a handle that found a sandbox leaves it"
    found = Sandbox.list(metadata={"k": "ö"})
    assert [f.id for f in found] == [sandbox.id]
    assert [e.type for e in sandbox.events(follow=False)][-1] == "resumed"


def test_hold(sandbox: Sandbox) -> None:
    with sandbox.hold("training", seconds=9) as hold:
        before = after = next(h for h in sandbox.holds() if h.id == hold.id)
        assert (before.kind, before.detail, before.counts) == ("lease", "training", True)
        assert sandbox.why().busy
        while after.until == before.until:
            time.sleep(0.2)
            after = next(h for h in sandbox.holds() if h.id == hold.id)
        assert before.until and after.until and after.until > before.until, "it is renewed"
    assert hold.id not in [h.id for h in sandbox.holds()]


def test_events(client: Client) -> None:
    with Sandbox.create(client=client) as sandbox:
        seen: list[str] = []
        ended = threading.Event()

        def follow() -> None:
            seen.extend(event.type for event in sandbox.events())
            ended.set()

        thread = threading.Thread(target=follow)
        thread.start()
        last = list(sandbox.events(follow=False))[-1]
        sandbox.pause()
        sandbox.wake()
        assert [e.type for e in sandbox.events(after=last.id, follow=False)] == ["pausing", "paused", "resuming", "resumed"]
        sandbox.kill()
        assert ended.wait(60), "the events end with the sandbox"
        thread.join()
        assert seen == ["created", "running", "pausing", "paused", "resuming", "resumed", "terminated"]
        with pytest.raises(SandboxEndedError) as over:
            sandbox.commands.run("true")
        assert over.value.reason == "Killed" and over.value.state == "terminated"
        with pytest.raises(SandboxEndedError, match="Killed"):
            Sandbox.get(sandbox.id, client=client)
        tombstone = sandbox.info().tombstone
        assert tombstone is not None and tombstone.reason == "Killed"


def test_stream_over_a_pause(sandbox: Sandbox) -> None:
    process = sandbox.commands.start("for i in $(seq 10000); do echo $i; sleep 0.05; done")
    seen = 0
    with pytest.raises(SandboxInterruptedError) as cut:
        for _ in process:
            seen += 1
            if seen == 3:
                sandbox.pause()
    assert cut.value.reason == "the sandbox was put to sleep" and cut.value.pid == process.pid
    sandbox.wake()
    with sandbox.commands.attach(process.pid) as again:
        for piece in again:
            assert int(piece.text.split()[0]) >= 3
            break
        again.terminate()
        assert again.wait().status == "signal: terminated"
    echo = sandbox.commands.start("while read -r _; do echo lost; done", stdin=True)
    assert echo.missed_bytes == 0
    echo.close()
    missed, end = 0, time.monotonic() + 60
    while not missed and time.monotonic() < end:
        for _ in range(5):  # that nobody listens any more shows when there is output
            echo.send("\n")
            time.sleep(0.05)
        with sandbox.commands.attach(echo.pid) as again:
            missed = again.missed_bytes
    assert missed % len("lost\n") == 0 and missed > 0
    echo.kill()


def test_fork_and_snapshots(client: Client, sandbox: Sandbox) -> None:
    sandbox.files.write("/tmp/who", "parent")
    one, two = sandbox.fork(2)
    with one, two:
        one.files.write("/tmp/who", "one")
        assert [s.files.read_text("/tmp/who") for s in (sandbox, one, two)] == ["parent", "one", "parent"]
    name = f"sdk-{sandbox.id}"
    snapshot = sandbox.snapshot(name, expires_in=timedelta(hours=1))
    try:
        assert [s.id for s in sandbox.snapshots()] == [snapshot.id] and client.snapshots.get(name).id == snapshot.id
        assert client.snapshots.change(name, pinned=True).pinned
        sandbox.files.write("/tmp/who", "later")
        undo = sandbox.restore(name)
        assert undo is not None and sandbox.files.read_text("/tmp/who") == "parent"
        sandbox.restore(discard=True)
        assert sandbox.files.read_text("/tmp/who") == "later"
        with Sandbox.create(snapshot=name, client=client) as third:
            assert third.files.read_text("/tmp/who") == "parent"
    finally:
        client.snapshots.remove(name)
    with pytest.raises(NotFoundError):
        client.snapshots.get(name)


def test_services(sandbox: Sandbox) -> None:
    web = Service(name="web", command=["python3", "-m", "http.server", "8000"], port=8000)
    assert sandbox.services.set(web).service.port == 8000
    assert "Directory listing" in sandbox.request(8000, "/").text
    assert sandbox.request(8000, "/nothing").status_code == 404, "an answer like any other"
    with pytest.raises(UnavailableError) as closed:
        sandbox.request(8001)
    assert closed.value.code == "port_closed"
    info = sandbox.services.get("web")
    assert info.status is not None and info.status.state == "ready" and info.status.pid
    sandbox.pause()
    (asleep,) = sandbox.services.list()
    assert asleep.status is None
    sandbox.wake()
    assert sandbox.services.restart("web").service.name == "web"
    assert any("GET /" in line.text for line in sandbox.services.log("web", lines=50))
    preview = sandbox.preview(8000, expires_in=60)
    assert preview.url and [p.id for p in sandbox.previews()] == [preview.id]
    sandbox.revoke_preview(preview.id)
    sandbox.services.remove("web")
    assert sandbox.services.list() == []


def test_secrets(client: Client) -> None:
    name = "sdk-test"
    secret = client.secrets.set(name, value="v1", hosts=["api.example.com"], headers={"Authorization": "Bearer {}"})
    try:
        assert (secret.env, secret.version) == ("SDK_TEST", 1)
        assert client.secrets.rotate(name, "v2").version == 2
        assert name in [s.name for s in client.secrets.list()] and client.secrets.get(name).id == secret.id
        with Sandbox.create(secrets=[name], client=client) as sandbox:
            value = sandbox.commands.run("printenv SDK_TEST", check=True).stdout.strip()
            assert value and value not in ("v1", "v2")
            assert [s.name for s in sandbox.info().secrets] == [name]
    finally:
        client.secrets.remove(name)


def test_once(client: Client) -> None:
    one = Sandbox.create(client=client, idempotency_key="sdk-once", metadata={"a": "b"})
    with one:
        assert Sandbox.create(client=client, idempotency_key="sdk-once", metadata={"a": "b"}).id == one.id
        with pytest.raises(ConflictError) as other:
            Sandbox.create(client=client, idempotency_key="sdk-once", metadata={"a": "c"})
        assert other.value.code == "idempotency_key_reused"


def test_names(client: Client) -> None:
    with Sandbox.create(client=client, name="sdk-py") as sandbox:
        assert Sandbox.named("sdk-py", client=client).id == sandbox.id
        assert sandbox.info().name == "sdk-py"
        with pytest.raises(DrowseError) as taken:
            Sandbox.create(client=client, name="sdk-py")
        assert isinstance(taken.value, ConflictError)
    with pytest.raises(NotFoundError, match="sdk-py"):
        Sandbox.named("sdk-py", client=client)


def test_end_in_mid_stream(client: Client) -> None:
    with Sandbox.create(client=client) as sandbox:
        process = sandbox.commands.start("echo on; exec sleep 1000")
        with pytest.raises(SandboxInterruptedError) as cut:
            for _ in process:
                sandbox.kill()
        assert "ended" in cut.value.reason or "killed" in cut.value.reason, cut.value.reason


def test_input_that_nobody_reads(shared: Sandbox) -> None:
    """What a command leaves behind may hold its input open."""
    result = shared.commands.run("sleep 1000 <&0 >/dev/null 2>&1 & echo $!", stdin=b"x" * 5_000_000)
    assert result.ok
    shared.commands.run(f"kill {result.stdout}", check=True)


def test_version() -> None:
    assert drowse.__version__.count(".") == 2
