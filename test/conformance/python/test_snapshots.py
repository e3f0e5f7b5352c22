"""Snapshots and forks: what goes on in another sandbox, and what is its own."""

import uuid

import pytest
from e2b import AsyncSandbox, Sandbox, SandboxException, SandboxNotFoundException
from e2b.sandbox import sandbox_api

from support import BOOT_ID, LEFTOVER, UNKNOWN, Counter, done, near, seconds_until


@pytest.fixture
def taken():
    """Takes snapshots that are deleted when the test ends."""
    ids = []

    def take(sandbox, *args, **opts):
        snapshot = sandbox.create_snapshot(*args, **opts)
        ids.append(snapshot.snapshot_id)
        return snapshot

    yield take
    for snapshot_id in ids:
        Sandbox.delete_snapshot(snapshot_id)


async def everything(paginator):
    found = []
    while paginator.has_next:
        found += await done(paginator.next_items())
    return [snapshot.snapshot_id for snapshot in found]


def test_a_sandbox_goes_on_from_one(new, taken):
    source = new(metadata={"of": "the source"}, envs={"OF": "source"})
    counter = Counter(source)
    source.files.write("/tmp/file", "before")
    end_at = source.get_info().end_at
    snapshot = taken(source)
    assert snapshot.names == []
    assert source.get_info().end_at == end_at
    counter.runs(source)
    source.files.write("/tmp/file", "after")
    source.kill()
    for opts in ({"metadata": {"of": "its own"}, "envs": {"OF": "its own"}}, {}):
        child = new(template=snapshot.snapshot_id, **opts)
        assert child.sandbox_id != source.sandbox_id
        assert child.get_info().metadata == opts.get("metadata", {})
        assert child.files.read("/tmp/file") == "before"
        counter.runs(child)
        assert child.commands.run("echo $OF").stdout == ("its own\n" if opts else "source\n")
        child.files.write("/tmp/file", "of the child")


@pytest.mark.skipif(not hasattr(sandbox_api, "SnapshotMode"), reason="this SDK takes all snapshots with memory")
def test_without_memory_a_sandbox_boots(new, taken):
    source = new()
    counter = Counter(source)
    source.files.write("/home/user/file", "kept")
    snapshot = taken(source, mode="filesystem")
    counter.runs(source)
    child = new(template=snapshot.snapshot_id)
    assert child.files.read("/home/user/file") == "kept"
    assert child.files.exists(counter.file) is False  # it was in memory
    assert child.files.read(BOOT_ID) != source.files.read(BOOT_ID)


def test_a_name_is_found_and_passes_to_the_next(new, taken):
    name = f"own-{uuid.uuid4()}"
    source = new()
    source.files.write("/tmp/file", "first")
    first = source.create_snapshot(name)
    assert any(name in n for n in first.names) and name in first.snapshot_id
    source.files.write("/tmp/file", "second")
    assert taken(source, name=name).snapshot_id == first.snapshot_id
    assert new(template=name).files.read("/tmp/file") == "second"


async def test_they_are_listed(new, taken):
    one, other = new(), new()
    want = [taken(source).snapshot_id for source in (one, other, one)][::-1]
    for kind in (Sandbox, AsyncSandbox):
        listed = await everything(kind.list_snapshots())
        assert [i for i in listed if i in want] == want
        assert await everything(kind.list_snapshots(sandbox_id=one.sandbox_id, limit=1)) == [want[0], want[2]]
        assert await everything(kind.list_snapshots(sandbox_id=UNKNOWN)) == []
    assert await everything(other.list_snapshots()) == [want[1]]


async def test_one_that_is_deleted_is_gone(either):
    sandbox = await either()
    snapshot = await done(sandbox.create_snapshot())
    assert await done(sandbox.delete_snapshot(snapshot.snapshot_id)) is True
    assert await done(type(sandbox).delete_snapshot(snapshot.snapshot_id)) is False
    with pytest.raises(SandboxException):
        await either(template=snapshot.snapshot_id)
    assert await done(sandbox.is_running()) is True


async def test_of_no_sandbox_there_is_none(either):
    sandbox = await either()
    kind = type(sandbox)
    with pytest.raises(SandboxNotFoundException):
        await done(kind.create_snapshot(UNKNOWN))
    with pytest.raises(SandboxNotFoundException):
        await done(kind.fork(UNKNOWN))
    for name in ("a b", "of/another", "../x"):
        with pytest.raises(SandboxException, match="400"):
            await done(sandbox.create_snapshot(name=name))


async def test_each_fork_goes_on_by_itself(either, new):
    sandbox = await either(metadata={"of": "the source"})
    source = Sandbox.connect(sandbox.sandbox_id, timeout=LEFTOVER)
    counter = Counter(source)
    source.files.write("/tmp/file", "before")
    end_at = source.get_info().end_at
    children = await done(sandbox.fork(timeout=60, count=3))
    try:
        assert [type(child) for child in children] == [type(sandbox)] * 3
        source.files.write("/tmp/file", "after")
        assert source.get_info().end_at == end_at
        assert len({source.sandbox_id, *(child.sandbox_id for child in children)}) == 4
        random = set()
        for child in children:
            child = Sandbox.connect(child.sandbox_id)
            info = child.get_info()
            assert info.metadata == {"of": "the source"}
            assert child.files.read("/tmp/file") == "before"
            random.add(child.commands.run("head -c 16 /dev/urandom | od -An -tx1").stdout)
            counter.runs(child)
        assert len(random) == 3
        counter.runs(source)
    finally:
        for child in children:
            await done(child.kill())


def test_the_timeout_of_a_fork(new):
    (child,) = new().fork(timeout=77)
    try:
        assert seconds_until(child.get_info().end_at) == near(77, 30)
    finally:
        child.kill()


async def test_a_paused_one_must_be_resumed_first(either):
    sandbox = await either()
    await done(sandbox.pause())
    with pytest.raises(SandboxException, match="resume"):
        await done(sandbox.fork())


async def test_counts_that_cannot_be_meant(either):
    sandbox = await either()
    for count in (0, 101):
        with pytest.raises(SandboxException, match="400|count must be"):
            await done(sandbox.fork(count=count))
    assert await done(sandbox.is_running()) is True
