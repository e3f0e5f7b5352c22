from e2b import Sandbox, SandboxNotFoundException

from support import (
    UNKNOWN,
    NotRunning,
    eventually,
    is_gone,
    list_all,
    marker,
    near,
    raises_exactly,
    raw_info,
    seconds_until,
)


def test_set_timeout_extends_and_shortens(new):
    sandbox = new(timeout=100)
    for seconds in (600, 50, 3600):
        sandbox.set_timeout(seconds)
        assert seconds_until(sandbox.get_info().end_at) == near(seconds, 5)
    assert sandbox.is_running() is True


def test_set_timeout_0_ends_the_sandbox_now(new):
    sandbox = new()
    sandbox.set_timeout(0)
    eventually("not running", lambda: not sandbox.is_running())
    eventually("not found", lambda: is_gone(sandbox))


def test_sandbox_is_gone_at_its_timeout(new):
    metadata = {"run": marker()}
    sandbox = new(timeout=60, metadata=metadata)
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    sandbox.set_timeout(3)
    eventually("not running", lambda: not sandbox.is_running())
    eventually("not found", lambda: is_gone(sandbox))
    with raises_exactly(SandboxNotFoundException):
        sandbox.get_info()
    with raises_exactly(NotRunning):
        sandbox.commands.run("echo dead")
    with raises_exactly(NotRunning):
        sandbox.files.read("/etc/hostname")
    with raises_exactly(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    assert list_all(metadata=metadata) == []
    # A kill joins the end that is still under way, and says so.
    eventually("no more to kill", lambda: sandbox.kill() is False)


def test_command_in_flight_ends_when_the_sandbox_is_killed(new):
    sandbox = new()
    handle = sandbox.commands.run("sleep 80", background=True)
    sandbox.kill()
    with raises_exactly(NotRunning):
        handle.wait()


def test_connect_does_not_shorten(new):
    sandbox = new(timeout=600)
    end_at = raw_info(sandbox)["endAt"]
    for opts in ({"timeout": 10}, {}):
        Sandbox.connect(sandbox.sandbox_id, **opts)
        assert raw_info(sandbox)["endAt"] == end_at
    info = sandbox.get_info()
    sandbox.connect(timeout=1)
    assert sandbox.get_info().end_at == info.end_at


def test_connect_extends(new):
    sandbox = new(timeout=60)
    Sandbox.connect(sandbox.sandbox_id, timeout=900)
    assert seconds_until(sandbox.get_info().end_at) == near(900, 5)


def test_kill_true_then_false(new):
    sandbox = new()
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert Sandbox.kill(sandbox.sandbox_id) is False


def test_unknown_sandbox():
    assert Sandbox.kill(UNKNOWN) is False
    with raises_exactly(SandboxNotFoundException):
        Sandbox.connect(UNKNOWN)
    with raises_exactly(SandboxNotFoundException):
        Sandbox.set_timeout(UNKNOWN, 60)
    with raises_exactly(SandboxNotFoundException):
        Sandbox.get_info(UNKNOWN)
    with raises_exactly(SandboxNotFoundException):
        Sandbox.pause(UNKNOWN)
