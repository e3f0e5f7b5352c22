import re

from e2b import Sandbox

from support import marker, near, seconds_until


def test_defaults_id_info_and_running():
    sandbox = Sandbox.create()
    try:
        assert re.fullmatch(r"[a-z0-9]+", sandbox.sandbox_id)
        assert sandbox.is_running() is True

        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id
        assert info.template_id
        assert info.name in (None, "base")
        assert info.metadata == {}
        assert info.state.value == "running"
        assert re.fullmatch(r"\d+\.\d+\.\d+", info.envd_version)
        assert info.cpu_count >= 1
        assert info.memory_mb >= 128
        assert info.lifecycle == {"on_timeout": "kill", "auto_resume": False}
        assert -seconds_until(info.started_at) == near(0, 30)
        assert (info.end_at - info.started_at).total_seconds() == near(300, 10)
    finally:
        sandbox.kill()


def test_named_template(new):
    sandbox = new(template="base")
    assert sandbox.commands.run("echo hello").stdout == "hello\n"


def test_metadata(new):
    metadata = {"run": marker(), "odd key": "a b&c=d%é", "empty": ""}
    assert new(metadata=metadata).get_info().metadata == metadata


def test_envs(new):
    odd = "a \"b\" 'c' $d \\ é\nnext"
    sandbox = new(envs={"PLAIN": "value", "ODD": odd})
    assert sandbox.commands.run('printf %s "$PLAIN"').stdout == "value"
    assert sandbox.commands.run('printf %s "$ODD"').stdout == odd


def test_sandbox_knows_its_own_id(new):
    sandbox = new()
    assert (
        sandbox.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID"').stdout
        == f"true {sandbox.sandbox_id}\n"
    )


def test_timeout(new):
    assert seconds_until(new(timeout=42).get_info().end_at) == near(42, 8)


def test_lifecycle(new):
    sandbox = new(lifecycle={"on_timeout": "pause", "auto_resume": True})
    assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}


def test_second_client_connects(new):
    sandbox = new()
    sandbox.files.write("/tmp/note", "from the first")
    second = Sandbox.connect(sandbox.sandbox_id)
    assert second.sandbox_id == sandbox.sandbox_id
    assert second.files.read("/tmp/note") == "from the first"


def test_killed_sandbox_is_not_running(new):
    sandbox = new()
    assert sandbox.kill() is True
    assert sandbox.is_running() is False


def test_context_manager_kills():
    with Sandbox.create(timeout=60) as sandbox:
        assert sandbox.is_running() is True
    assert sandbox.is_running() is False
