"""Templates that are built of steps: by a build, by the next one, and what fails."""

import os
import re
import traceback
import uuid

import e2b
import pytest
from e2b import Sandbox, wait_for_file

from support import API_KEY, API_URL, done, http


@pytest.fixture(params=["sync", "async"])
def template(request):
    """The class in either kind."""
    return e2b.Template if request.param == "sync" else e2b.AsyncTemplate


def delete(name):
    return http(f"{API_URL}/templates/{name}", headers={"X-API-Key": API_KEY}, method="DELETE")[0]


@pytest.fixture
def name():
    """That of a template that is deleted when the test ends."""
    name = f"py-{uuid.uuid4()}"
    yield name
    delete(name)


async def build(template, steps, name, **opts):
    """Builds, and returns what the log says."""
    log = []
    await done(template.build(steps, name, on_build_logs=lambda entry: log.append(entry.message), **opts))
    return log


def cached(log):
    return sum(line.startswith("CACHED") for line in log)


async def test_steps_run_as_they_say_and_the_second_build_runs_none(template, name, new, tmp_path):
    for file, text in {"one.txt": "one", "src/a.txt": "a", "src/sub/b.txt": "b", "src/x.md": "x"}.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    steps = (
        template(file_context_path=str(tmp_path))
        .from_template("base")
        .run_cmd("id -un; pwd")
        .set_envs({"FIRST": "one", "SECOND": "$FIRST two"})
        .set_workdir("/srv/app")
        .copy("one.txt", "renamed.txt")
        .copy("src", "src", mode=0o700)
        .copy("src/*.md", "/srv/docs/", user="root")
        .copy("src/x.md", "/tmp/")
        .run_cmd('cat /tmp/x.md > /dev/null && echo "$SECOND" > envs; pwd')
        .run_cmd("id -un; touch /etc/by-root", user="root")
        .set_user("root")
    )
    first = await build(template, steps, name)
    for line in ("user", "/home/user", "/srv/app", "root"):
        assert line in first
    run = (
        "id -un; pwd; cat envs renamed.txt src/a.txt src/sub/b.txt; echo; "
        'stat -c "%a %U %n" src/a.txt /srv/docs/x.md /etc/by-root; echo $SECOND'
    )
    assert new(template=name).commands.run(run).stdout == (
        "root\n/srv/app\none two\noneab\n700 user src/a.txt\n644 root /srv/docs/x.md\n644 root /etc/by-root\none two\n"
    )
    second = await build(template, steps, name)
    assert "/srv/app" not in second
    assert cached(second) == 10
    (tmp_path / "one.txt").write_text("another")
    assert cached(await build(template, steps, name)) == 3
    sandbox = new(template=name)
    assert sandbox.files.read("/srv/app/renamed.txt") == "another"
    info = sandbox.get_info()
    assert info.name == name
    assert sandbox.commands.run("echo $E2B_TEMPLATE_ID").stdout.strip() == info.template_id


async def test_a_step_that_fails_is_told_by_its_line(template, name):
    steps = template().from_template("base").run_cmd("true").run_cmd("echo to be seen; exit 3")
    log = []
    with pytest.raises(e2b.BuildException, match="exit status 3") as failed:
        await done(template.build(steps, name, on_build_logs=lambda entry: log.append(entry.message)))
    assert any(os.path.samefile(frame.filename, __file__) for frame in traceback.extract_tb(failed.tb) if os.path.exists(frame.filename))
    assert "to be seen" in log
    with pytest.raises(e2b.SandboxException, match="not found"):
        Sandbox.create(name)
    with pytest.raises(e2b.BuildException, match="failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"):
        await done(template.build(template().from_template("base").run_cmd("whoami", user="root123"), name))
    with pytest.raises(e2b.BuildException, match="no-such-template"):
        await done(template.build(template().from_template("no-such-template").run_cmd("true"), name))
    with pytest.raises(e2b.BuildException, match="409"):
        await done(template.build(steps, "base"))


async def test_a_start_command_runs_in_every_sandbox(template, name, new):
    steps = template().from_base_image().set_start_cmd(
        "echo $RANDOM > /home/user/started; exec sleep 1000", wait_for_file("/home/user/started")
    )
    await build(template, steps, name)
    one, two = (new(template=name).commands.run("cat started; grep -lx sleep /proc/[0-9]*/comm").stdout for _ in "12")
    assert re.fullmatch(r"\d+\n/proc/\d+/comm\n", one)
    assert one == two  # it was started once, and goes on in each


async def test_a_build_in_the_background(template, name):
    steps = template().from_template("base").run_cmd("echo in the background")
    info = await done(template.build_in_background(steps, name))
    lines = []
    while True:
        status = await done(template.get_build_status(info, logs_offset=len(lines)))
        lines += [entry.message for entry in status.log_entries]
        if status.status.value not in ("waiting", "building") and not status.log_entries:
            break
    assert status.status.value == "ready"
    assert "in the background" in lines


async def test_a_template_on_another(template, name, new, tmp_path):
    (tmp_path / "file").write_text("copied\n")
    await build(template, template().from_template("base").run_cmd("echo below > /home/user/below"), name)
    on = f"{name}-on"
    try:
        steps = template(file_context_path=str(tmp_path)).from_template(name).copy("file", "file")
        await build(template, steps.run_cmd("cat below file > both"), on)
        assert new(template=on).files.read("/home/user/both") == "below\ncopied\n"
    finally:
        delete(on)


async def test_tags_name_results(template, name, new):
    def steps(text):
        return template().from_template("base").run_cmd(f"echo {text} > /home/user/file")

    def read(ref):
        return new(template=ref).files.read("/home/user/file")

    await build(template, steps("first"), f"{name}:v1", tags=["stable"])
    await build(template, steps("second"), f"{name}:v2")
    assert [read(f"{name}:{tag}") for tag in ("v1", "stable", "v2")] == ["first\n", "first\n", "second\n"]
    await done(template.assign_tags(f"{name}:v2", ["stable", "default"]))
    assert [read(ref) for ref in (f"{name}:stable", name)] == ["second\n", "second\n"]
    await done(template.remove_tags(name, "v1"))
    assert sorted(tag.tag for tag in await done(template.get_tags(name))) == ["default", "stable", "v2"]
    with pytest.raises(e2b.SandboxException, match="not found"):
        Sandbox.create(f"{name}:v1")
    assert await done(template.exists(name)) is True
    assert await done(template.exists(f"py-{uuid.uuid4()}")) is False
    assert await done(template.exists("base")) is True
    assert await done(template.alias_exists("base")) is True
    assert delete(name) == 204
    assert delete(name) == 404
    with pytest.raises(e2b.SandboxException, match="not found"):
        Sandbox.create(name)
