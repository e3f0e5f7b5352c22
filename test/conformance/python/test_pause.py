import json
from datetime import datetime, timezone

from e2b import CommandExitException, Sandbox, SandboxNotFoundException

from support import (
    API_KEY,
    API_URL,
    BOOT_ID,
    Counter,
    NotRunning,
    done,
    eventually,
    http,
    list_all,
    marker,
    near,
    paused_within,
    raises_exactly,
    request,
    scratch,
    seconds_until,
    state_of,
    wait_for,
)


def test_true_then_false_not_running_and_shown_as_paused(new):
    metadata = {"run": marker()}
    sandbox = new(metadata=metadata)
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert sandbox.is_running() is False
    info = sandbox.get_info()
    assert (info.state.value, info.metadata) == ("paused", metadata)
    assert [(s.sandbox_id, s.state.value) for s in list_all(metadata=metadata)] == [
        (sandbox.sandbox_id, "paused")
    ]
    with raises_exactly(SandboxNotFoundException):
        sandbox.set_timeout(60)


async def test_by_its_former_name(either):
    sandbox = await either()
    assert await done(sandbox.beta_pause()) is True
    assert await done(type(sandbox).beta_pause(sandbox.sandbox_id)) is False


def test_connect_brings_back_processes_memory_files_and_envs(new):
    sandbox = new(envs={"KEPT": "kept"})
    path = scratch()
    sandbox.files.write(path, "still here")
    boot_id = sandbox.files.read(BOOT_ID)
    counter = Counter(sandbox)

    sandbox.pause()
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=100)

    assert resumed.sandbox_id == sandbox.sandbox_id
    assert resumed.is_running() is True
    info = resumed.get_info()
    assert info.state.value == "running"
    assert seconds_until(info.end_at) == near(100, 8)
    assert resumed.files.read(path) == "still here"
    assert resumed.files.read(BOOT_ID) == boot_id
    assert resumed.commands.run("echo $KEPT").stdout == "kept\n"
    counter.runs(resumed)
    assert counter.pid in [p.pid for p in resumed.commands.list()]
    resumed.commands.run(f"kill -0 {counter.pid}")


def test_object_from_before_the_pause_keeps_working(new):
    sandbox = new()
    sandbox.pause()
    sandbox.connect()
    assert sandbox.commands.run("echo again").stdout == "again\n"
    sandbox.files.write("/tmp/again", "written")
    assert sandbox.files.read("/tmp/again") == "written"
    second = Sandbox.connect(sandbox.sandbox_id)
    assert second._envd_access_token == sandbox._envd_access_token


def test_background_command_is_reached_again_by_its_pid(new):
    sandbox = new()
    gate = scratch()
    first = sandbox.commands.run(f"{wait_for(gate)}; echo after; exit 5", background=True, timeout=0)
    first.disconnect()
    sandbox.pause()
    sandbox.connect()
    second = sandbox.commands.connect(first.pid)
    sandbox.files.write(gate, "")
    with raises_exactly(CommandExitException) as caught:
        second.wait()
    assert (caught.value.exit_code, caught.value.stdout) == (5, "after\n")


def test_command_in_flight_ends_and_nothing_hangs(new):
    sandbox = new()
    handle = sandbox.commands.run("sleep 80", background=True)
    sandbox.pause()
    with raises_exactly(NotRunning):
        handle.wait()


def test_three_cycles(new):
    sandbox = new()
    counter = Counter(sandbox)
    for cycle in (1, 2, 3):
        sandbox.files.write(f"/tmp/cycle-{cycle}", str(cycle))
        assert sandbox.pause() is True
        assert state_of(sandbox) == "paused"
        sandbox.connect()
        counter.runs(sandbox)
    assert sandbox.commands.run("cat /tmp/cycle-1 /tmp/cycle-2 /tmp/cycle-3").stdout == "123"

    # As pause(strict=True) and connect(on_resume="reboot") of the newest SDK say it.
    def call(path, **body):
        headers = {"X-API-Key": API_KEY}
        return http(f"{API_URL}{path}", headers, json.dumps(body).encode(), "application/json", "POST")[0]

    sandbox.files.write("/home/user/kept", "kept")
    assert call(f"/sandboxes/{sandbox.sandbox_id}/pause", requireHealthyGuest=True) == 204
    assert call(f"/v2/sandboxes/{sandbox.sandbox_id}/connect", memory=False) == 201
    assert sandbox.files.read("/home/user/kept") == "kept"
    assert not sandbox.files.exists("/tmp/cycle-1")


def test_paused_sandbox_can_be_killed(new):
    sandbox = new()
    sandbox.pause()
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    with raises_exactly(SandboxNotFoundException):
        sandbox.get_info()
    with raises_exactly(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_on_timeout_pause_and_connect_resumes(new):
    sandbox = new(lifecycle={"on_timeout": "pause"})
    sandbox.files.write("/tmp/kept", "kept")
    sandbox.set_timeout(1)
    paused_within(sandbox, 30)
    assert sandbox.is_running() is False
    sandbox.connect()
    assert state_of(sandbox) == "running"
    assert sandbox.files.read("/tmp/kept") == "kept"


def test_auto_resume_command_wakes_the_sandbox(new):
    sandbox = new(lifecycle={"on_timeout": "pause", "auto_resume": True})
    counter = Counter(sandbox)
    sandbox.set_timeout(1)
    paused_within(sandbox, 30)
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    info = sandbox.get_info()
    assert info.state.value == "running"
    assert seconds_until(info.end_at) == near(300, 15)
    counter.runs(sandbox)


def test_auto_resume_plain_request_to_a_port_wakes_the_sandbox(new):
    sandbox = new(lifecycle={"on_timeout": "pause", "auto_resume": True})
    server = sandbox.commands.run(
        "python3 -m http.server 8000", background=True, timeout=0, cwd="/usr/share"
    )
    server.disconnect()
    eventually("server reachable", lambda: request(sandbox, 8000, "/")[0] == 200)
    sandbox.pause()
    assert state_of(sandbox) == "paused"
    assert request(sandbox, 8000, "/")[0] == 200
    assert state_of(sandbox) == "running"


def test_auto_resume_is_running_reads_and_does_not_wake_the_sandbox(new):
    sandbox = new(lifecycle={"on_timeout": "pause", "auto_resume": True})
    assert sandbox.is_running() is True
    sandbox.pause()
    assert sandbox.is_running() is False
    assert state_of(sandbox) == "paused"


def test_auto_resume_off_traffic_fails_and_the_sandbox_stays_paused(new):
    sandbox = new(timeout=3, lifecycle={"on_timeout": "pause", "auto_resume": False})
    paused_within(sandbox, 30)
    with raises_exactly(NotRunning):
        sandbox.commands.run("echo asleep")
    with raises_exactly(NotRunning):
        sandbox.files.read("/etc/hostname")
    assert sandbox.is_running() is False
    status, body = request(sandbox, 8000, "/")
    assert status == 502
    answer = json.loads(body)
    assert (answer["sandboxId"], answer["code"], answer["error_code"]) == (sandbox.sandbox_id, 502, "not_resumable")
    assert answer["reason"] == "timeout"
    assert datetime.fromisoformat(answer["pausedAt"]) <= datetime.now(timezone.utc)
    assert answer["message"].startswith("The sandbox was not found running, because it is asleep: ")
    assert state_of(sandbox) == "paused"
