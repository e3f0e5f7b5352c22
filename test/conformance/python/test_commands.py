from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    SandboxException,
    TimeoutException,
)

from support import eventually, raises_exactly, scratch, sha256, wait_for


def alive(sandbox, pid):
    result = sandbox.commands.run(f"kill -0 {pid} 2>/dev/null && echo yes || echo no", user="root")
    return result.stdout == "yes\n"


def listed(sandbox, pid):
    return next((p for p in sandbox.commands.list() if p.pid == pid), None)


def test_stdout(sandbox):
    result = sandbox.commands.run("echo hello")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello\n", "")


def test_stdout_and_stderr_are_kept_apart(sandbox):
    out, err = [], []
    result = sandbox.commands.run("echo out; echo err >&2", on_stdout=out.append, on_stderr=err.append)
    assert result.stdout == "out\n"
    assert result.stderr == "err\n"
    assert "".join(out) == "out\n"
    assert "".join(err) == "err\n"


@pytest.mark.parametrize("stream, redirect", [("stdout", ""), ("stderr", " >&2")])
def test_output_arrives_while_the_command_is_running(sandbox, stream, redirect):
    gate = scratch()
    events = []

    def on_output(data):
        events.extend(data.strip().split("\n"))
        if len(events) == 1:
            events.append("gate opened")
            sandbox.files.write(gate, "")

    # The command cannot end before the test has seen its first line.
    result = sandbox.commands.run(
        f"echo first{redirect}; {wait_for(gate)}; echo second{redirect}",
        timeout=20,
        **{f"on_{stream}": on_output},
    )
    assert events == ["first", "gate opened", "second"]
    assert getattr(result, stream) == "first\nsecond\n"


def test_non_zero_exit_code_is_an_exception_with_the_output(sandbox):
    with raises_exactly(CommandExitException) as caught:
        sandbox.commands.run("echo out; echo err >&2; exit 7")
    assert isinstance(caught.value, SandboxException)
    assert caught.value.exit_code == 7
    assert caught.value.stdout == "out\n"
    assert caught.value.stderr == "err\n"
    assert caught.value.error == "exit status 7"


def test_unknown_program_exits_with_127(sandbox):
    with raises_exactly(CommandExitException) as caught:
        sandbox.commands.run("no-such-program")
    assert caught.value.exit_code == 127
    assert "not found" in caught.value.stderr


def test_envs_of_a_command_win_for_that_command(sandbox):
    show = 'echo "$GLOBAL, $BOTH, $LOCAL"'
    one = sandbox.commands.run(show, envs={"BOTH": "from run", "LOCAL": 'a "b" $c é'})
    assert one.stdout == 'from create, from run, a "b" $c é\n'
    assert sandbox.commands.run(show).stdout == "from create, from create, \n"


def test_cwd(sandbox):
    assert sandbox.commands.run("pwd").stdout == "/home/user\n"
    assert sandbox.commands.run("pwd", cwd="/usr/share").stdout == "/usr/share\n"
    sandbox.files.make_dir("/home/user/relative cwd")
    assert sandbox.commands.run("pwd", cwd="relative cwd").stdout == "/home/user/relative cwd\n"
    assert sandbox.commands.run("pwd", cwd="~").stdout == "/home/user\n"


def test_missing_cwd(sandbox):
    with raises_exactly(InvalidArgumentException) as caught:
        sandbox.commands.run("pwd", cwd="/no/such/dir")
    assert "cwd" in str(caught.value)


IDENTITY = "whoami; id -u; id -gn; echo $HOME; echo $USER; pwd"


def test_default_user(sandbox):
    assert sandbox.commands.run(IDENTITY).stdout.split() == [
        "user", "1000", "user", "/home/user", "user", "/home/user",
    ]  # fmt: skip


def test_user_root(sandbox):
    assert sandbox.commands.run(IDENTITY, user="root").stdout.split() == [
        "root", "0", "root", "/root", "root", "/root",
    ]  # fmt: skip


def test_sudo_needs_no_password(sandbox):
    assert sandbox.commands.run("sudo whoami").stdout == "root\n"


def test_unknown_user(sandbox):
    with raises_exactly(AuthenticationException):
        sandbox.commands.run("whoami", user="nobodyhere")


def test_20_mib_of_output_arrive_complete(sandbox):
    file = scratch()
    size = 20 * 1024 * 1024
    total = sandbox.commands.run(
        f"head -c {size // 4 * 3} /dev/urandom | base64 -w0 > {file} && sha256sum < {file}"
    )
    chunks = []
    result = sandbox.commands.run(f"cat {file}; rm {file}", on_stdout=lambda data: chunks.append(len(data)))
    assert len(result.stdout) == size
    assert sum(chunks) == size
    assert sha256(result.stdout) == total.stdout.split()[0]


def test_unicode_is_not_broken_where_the_output_is_split(sandbox):
    text = "é漢😀"
    result = sandbox.commands.run(f"yes '{text}' | head -n 60000 | tr -d '\\n'")
    assert sha256(result.stdout) == sha256(text * 60000)


def test_command_past_its_timeout_is_a_timeout_and_is_dead(sandbox):
    file = scratch()
    with raises_exactly(TimeoutException):
        sandbox.commands.run(f"echo $$ > {file}; exec sleep 300", timeout=1.5)
    pid = int(sandbox.files.read(file))
    eventually("process killed", lambda: not alive(sandbox, pid))


def test_without_stdin_a_command_reads_end_of_file(sandbox):
    assert sandbox.commands.run("cat; echo done", timeout=10).stdout == "done\n"


def test_stdin_data_then_end_of_file(sandbox):
    file = scratch()
    handle = sandbox.commands.run(f"tee {file}", background=True, stdin=True, timeout=20)
    handle.send_stdin("one é\n")
    eventually("the line is there", lambda: sandbox.files.exists(file) and sandbox.files.read(file) == "one é\n")
    sandbox.commands.send_stdin(handle.pid, b"two\n")
    eventually("the second line is there", lambda: sandbox.files.read(file) == "one é\ntwo\n")
    sandbox.commands.close_stdin(handle.pid)
    result = handle.wait()
    assert result.exit_code == 0
    assert result.stdout == "one é\ntwo\n"


def test_stdin_of_a_command_started_without_it_is_refused(sandbox):
    handle = sandbox.commands.run("sleep 60", background=True)
    try:
        with raises_exactly(SandboxException):
            handle.send_stdin("x")
    finally:
        handle.kill()


def test_stdin_as_one_stream(sandbox):
    """commands.stream_input sends everything in one client-streaming call;
    SDKs that do not have it get the same input in single calls."""
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=20)
    chunks = [f"{n} é\n" for n in range(100)]
    if hasattr(sandbox.commands, "stream_input"):
        sandbox.commands.stream_input(handle.pid, iter(chunks), timeout=15)
    else:
        for chunk in chunks:
            sandbox.commands.send_stdin(handle.pid, chunk)
    handle.close_stdin()
    assert handle.wait().stdout == "".join(chunks)


def test_disconnect_leaves_the_command_alive_and_connect_gets_its_later_output(sandbox):
    started, gate = scratch(), scratch()
    cmd = f"echo before; touch {started}; {wait_for(gate)}; echo after"
    first = sandbox.commands.run(
        cmd, background=True, timeout=30, cwd="/tmp", envs={"LISTED": "yes"}
    )
    early, _, _ = next(iter(first))
    assert early == "before\n"
    first.disconnect()
    eventually("started", lambda: sandbox.files.exists(started))

    assert alive(sandbox, first.pid)
    process = listed(sandbox, first.pid)
    assert (process.cmd, process.args) == ("/bin/bash", ["-l", "-c", cmd])
    assert (process.envs, process.cwd) == ({"LISTED": "yes"}, "/tmp")

    second = sandbox.commands.connect(first.pid)
    assert second.pid == first.pid
    sandbox.files.write(gate, "")
    result = second.wait()
    assert result.exit_code == 0
    assert result.stdout == "after\n"
    assert listed(sandbox, first.pid) is None


def test_two_clients_of_one_command_get_the_same_output(sandbox):
    gate = scratch()
    first = sandbox.commands.run(f"{wait_for(gate)}; echo for both; exit 3", background=True)
    second = sandbox.commands.connect(first.pid)
    sandbox.files.write(gate, "")
    for handle in (first, second):
        with raises_exactly(CommandExitException) as caught:
            handle.wait()
        assert (caught.value.exit_code, caught.value.stdout) == (3, "for both\n")


def test_kill_true_then_false(sandbox):
    handle = sandbox.commands.run("exec sleep 300", background=True)
    assert handle.kill() is True
    with raises_exactly(CommandExitException) as caught:
        handle.wait()
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")
    assert handle.kill() is False
    assert sandbox.commands.kill(handle.pid) is False
    assert listed(sandbox, handle.pid) is None


def test_20_concurrent_commands_keep_their_output_to_themselves(sandbox):
    def run(i):
        try:
            return sandbox.commands.run(
                f'for n in $(seq 100); do echo "{i}:$n"; echo "e{i}:$n" >&2; done; exit {i}'
            )
        except CommandExitException as err:
            return err

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(run, range(20)))
    for i, result in enumerate(results):
        assert result.exit_code == i
        assert result.stdout == "".join(f"{i}:{n + 1}\n" for n in range(100))
        assert result.stderr == "".join(f"e{i}:{n + 1}\n" for n in range(100))
