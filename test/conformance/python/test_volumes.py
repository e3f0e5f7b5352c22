import os
import uuid

import e2b
import pytest
from e2b import (
    SandboxException,
    VolumeException,
    VolumeNotFoundException,
    VolumePathNotFoundException,
)

from support import done, raises_exactly


@pytest.fixture(params=["sync", "async"])
def Volume(request):
    """The class of either kind. What its methods return goes through done."""
    return e2b.Volume if request.param == "sync" else e2b.AsyncVolume


@pytest.fixture
async def volume(Volume):
    volume = await done(Volume.create(f"py-{uuid.uuid4()}"))
    yield volume
    await done(Volume.destroy(volume.volume_id))


async def test_create_list_connect_and_destroy(Volume):
    name = f"py-{uuid.uuid4()}"
    volume = await done(Volume.create(name))
    try:
        assert volume.name == name
        assert volume.token
        assert (volume.volume_id, name) in [(v.volume_id, v.name) for v in await done(Volume.list())]
        info = await done(Volume.get_info(volume.volume_id))
        assert (info.name, info.token) == (name, volume.token)
        again = await done(Volume.connect(volume.volume_id))
        await done(volume.write_file("/a", "text"))
        assert (await done(again.read_file("/a"))) == "text"
        for taken in (name, "no name", "a/b"):
            with raises_exactly(VolumeException) as caught:
                await done(Volume.create(taken))
            assert str(caught.value).startswith("400: ")
    finally:
        assert (await done(Volume.destroy(volume.volume_id))) is True
    assert (await done(Volume.destroy(volume.volume_id))) is False
    for call in (Volume.get_info, Volume.connect):
        with raises_exactly(VolumeNotFoundException):
            await done(call(volume.volume_id))


async def test_files(volume):
    made = await done(volume.make_dir("/d", mode=0o750))
    assert (made.path, made.type.value, made.mode) == ("/d", "directory", 0o750)
    with raises_exactly(VolumeException):
        await done(volume.make_dir("/d"))
    with raises_exactly(VolumePathNotFoundException):
        await done(volume.make_dir("/x/y"))
    assert (await done(volume.make_dir("/x/y", force=True))).path == "/x/y"

    data = os.urandom(3 << 20)
    entry = await done(volume.write_file("/d/f", data, mode=0o600))
    assert (entry.name, entry.path, entry.type.value) == ("f", "/d/f", "file")
    assert (entry.size, entry.mode, entry.uid, entry.gid) == (len(data), 0o600, 1000, 1000)
    assert (await done(volume.read_file("/d/f", format="bytes"))) == data
    parts = await done(volume.read_file("/d/f", format="stream"))
    assert b"".join([part async for part in parts] if hasattr(parts, "__aiter__") else parts) == data
    await done(volume.write_file("/d/f", "é"))
    assert (await done(volume.read_file("/d/f"))) == "é"
    with raises_exactly(VolumePathNotFoundException):
        await done(volume.write_file("/none/f", ""))
    await done(volume.write_file("/none/f", "", force=True))

    assert [e.path for e in await done(volume.list("/"))] == ["/d", "/none", "/x"]
    assert [e.path for e in await done(volume.list("/", depth=2))] == ["/d", "/d/f", "/none", "/none/f", "/x", "/x/y"]
    changed = await done(volume.update_metadata("/d/f", uid=0, gid=0, mode=0o644))
    assert (changed.uid, changed.gid, changed.mode) == (0, 0, 0o644)
    assert (await done(volume.get_info("/d/f"))).mtime == changed.mtime

    assert (await done(volume.exists("/d/f"))) is True
    await done(volume.remove("/d"))
    assert (await done(volume.exists("/d/f"))) is False
    for call in (volume.get_info, volume.read_file, volume.list, volume.remove):
        with raises_exactly(VolumePathNotFoundException):
            await done(call("/d/f"))
    for path in ("/../../etc/passwd", "/proc/self/environ"):
        with raises_exactly(VolumePathNotFoundException):
            await done(volume.read_file(path))


async def test_sandboxes_share_a_volume(new, Volume, volume):
    first = new(volume_mounts={"/mnt/data": volume if Volume is e2b.Volume else volume.name})
    second = new(volume_mounts={"/mnt/data": volume.name})
    await done(volume.write_file("/in", "from outside"))
    assert first.files.read("/mnt/data/in") == "from outside"
    first.files.write("/mnt/data/out", "from inside")
    assert second.commands.run("cat /mnt/data/out; id -un; touch /mnt/data/mine").stdout == "from insideuser\n"
    assert (await done(volume.read_file("/out"))) == "from inside"

    mounts = first.get_info().volume_mounts
    assert [(m["name"], m["path"]) if isinstance(m, dict) else (m.name, m.path) for m in mounts] == [(volume.name, "/mnt/data")]
    with raises_exactly(VolumeException) as caught:
        await done(Volume.destroy(volume.volume_id))
    assert first.sandbox_id in str(caught.value) and second.sandbox_id in str(caught.value)

    first.pause()
    await done(volume.write_file("/in", "changed"))
    second.kill()
    first = first.connect()
    assert first.commands.run("cat /mnt/data/in").stdout == "changed"
    first.kill()
    assert (await done(volume.read_file("/out"))) == "from inside"


@pytest.mark.parametrize("mounts", [{"/mnt": "no-such-volume"}, {"mnt": None}, {"/proc": None}, {"/": None}, {"/mnt/a": None, "/mnt/a/": None}])
async def test_mounts_that_are_refused(new, volume, mounts):
    with raises_exactly(SandboxException) as caught:
        new(volume_mounts={path: name or volume.name for path, name in mounts.items()})
    assert str(caught.value).startswith("400: ")
