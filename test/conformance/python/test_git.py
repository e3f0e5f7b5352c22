"""Git inside the sandbox: the SDK runs the sandbox's own git. The origin is a
bare repository in the sandbox, so that no network is needed."""

from e2b import CommandExitException

from support import done, raises_exactly, scratch


async def repository(sandbox):
    """An empty one, whose commits have an author."""
    path = scratch()
    await done(sandbox.git.init(path, initial_branch="main"))
    await done(sandbox.git.configure_user("Some One", "one@example.com", scope="local", path=path))
    return path


async def test_init_status_add_commit(either):
    sandbox = await either()
    git = sandbox.git
    path = await repository(sandbox)
    await done(sandbox.files.write(f"{path}/a.txt", "a"))
    before = await done(git.status(path))
    assert (before.current_branch, before.is_clean, before.untracked_count) == ("main", False, 1)
    assert before.file_status[0].name == "a.txt"
    await done(git.add(path, files=["a.txt"]))
    assert (await done(git.status(path))).staged_count == 1
    await done(git.commit(path, "the first"))
    assert (await done(git.status(path))).is_clean is True
    log = await done(sandbox.commands.run('git log --format="%an %ae %s"', cwd=path))
    assert log.stdout == "Some One one@example.com the first\n"
    with raises_exactly(CommandExitException):
        await done(git.commit(path, "nothing"))


async def test_branches_are_made_listed_changed_to_and_deleted(either):
    sandbox = await either()
    git = sandbox.git
    path = await repository(sandbox)
    await done(git.commit(path, "the first", allow_empty=True))
    await done(git.create_branch(path, "other"))
    found = await done(git.branches(path))
    assert (found.branches, found.current_branch) == (["main", "other"], "other")
    await done(git.checkout_branch(path, "main"))
    assert (await done(git.branches(path))).current_branch == "main"
    await done(git.delete_branch(path, "other"))
    assert (await done(git.branches(path))).branches == ["main"]


async def test_restore_and_reset(either):
    sandbox = await either()
    git, files = sandbox.git, sandbox.files
    path = await repository(sandbox)
    await done(files.write(f"{path}/f", "committed"))
    await done(git.add(path))
    await done(git.commit(path, "the first"))
    await done(files.write(f"{path}/f", "changed"))
    await done(git.restore(path, paths=["f"]))
    assert await done(files.read(f"{path}/f")) == "committed"
    await done(files.write(f"{path}/f", "changed again"))
    await done(git.add(path))
    await done(git.reset(path, mode="hard", target="HEAD"))
    assert await done(files.read(f"{path}/f")) == "committed"
    assert (await done(git.status(path))).is_clean is True


async def test_clone_push_and_pull(either):
    sandbox = await either()
    git = sandbox.git
    origin, one, two = scratch(".git"), await repository(sandbox), scratch()
    await done(git.init(origin, bare=True, initial_branch="main"))
    await done(git.remote_add(one, "origin", origin))
    assert await done(git.remote_get(one, "origin")) == origin
    assert await done(git.remote_get(one, "none")) is None
    await done(git.commit(one, "the first", allow_empty=True))
    await done(git.push(one, remote="origin", branch="main"))
    await done(git.clone(f"file://{origin}", path=two, depth=1))
    assert (await done(git.status(two))).upstream == "origin/main"

    await done(sandbox.files.write(f"{one}/f", "from one"))
    await done(git.add(one))
    await done(git.commit(one, "the second"))
    assert (await done(git.status(one))).ahead == 1
    await done(git.push(one))
    await done(git.pull(two))
    assert await done(sandbox.files.read(f"{two}/f")) == "from one"


async def test_settings(either):
    sandbox = await either()
    git = sandbox.git
    local = {"scope": "local", "path": await repository(sandbox)}
    await done(git.set_config("drowse.key", 'a "b" é', **local))
    assert await done(git.get_config("drowse.key", **local)) == 'a "b" é'
    assert await done(git.get_config("drowse.none", **local)) is None
    assert await done(git.get_config("user.name", **local)) == "Some One"


async def test_credentials_are_kept_for_later(either):
    sandbox = await either()
    await done(sandbox.git.dangerously_authenticate("someone", "secret", host="git.example.com"))
    filled = await done(
        sandbox.commands.run('printf "protocol=https\\nhost=git.example.com\\n\\n" | git credential fill')
    )
    assert "username=someone\npassword=secret\n" in filled.stdout
