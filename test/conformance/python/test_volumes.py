import os
import uuid

import pytest
from e2b import (
    SandboxException,
    Secret,
    SecretException,
    Volume,
    VolumeException,
    VolumeNotFoundException,
    VolumePathNotFoundException,
)

from support import raises_exactly

# The files of volumes are where the rest of the server is.
os.environ["E2B_VOLUME_API_URL"] = os.environ["E2B_API_URL"]


@pytest.fixture
def volume():
    volume = Volume.create(f"py-{uuid.uuid4()}")
    yield volume
    Volume.destroy(volume.volume_id)


def test_create_list_connect_and_destroy():
    name = f"py-{uuid.uuid4()}"
    volume = Volume.create(name)
    try:
        assert volume.name == name
        assert volume.token
        assert (volume.volume_id, name) in [(v.volume_id, v.name) for v in Volume.list()]
        info = Volume.get_info(volume.volume_id)
        assert (info.name, info.token) == (name, volume.token)
        again = Volume.connect(volume.volume_id)
        volume.write_file("/a", "text")
        assert again.read_file("/a") == "text"
        for taken in (name, "no name", "a/b"):
            with raises_exactly(VolumeException) as caught:
                Volume.create(taken)
            assert str(caught.value).startswith("400: ")
    finally:
        assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    for call in (Volume.get_info, Volume.connect):
        with raises_exactly(VolumeNotFoundException):
            call(volume.volume_id)


def test_files(volume):
    made = volume.make_dir("/d", mode=0o750)
    assert (made.path, made.type.value, made.mode) == ("/d", "directory", 0o750)
    with raises_exactly(VolumeException):
        volume.make_dir("/d")
    with raises_exactly(VolumePathNotFoundException):
        volume.make_dir("/x/y")
    assert volume.make_dir("/x/y", force=True).path == "/x/y"

    data = os.urandom(3 << 20)
    entry = volume.write_file("/d/f", data, mode=0o600)
    assert (entry.name, entry.path, entry.type.value) == ("f", "/d/f", "file")
    assert (entry.size, entry.mode, entry.uid, entry.gid) == (len(data), 0o600, 1000, 1000)
    assert volume.read_file("/d/f", format="bytes") == data
    assert b"".join(volume.read_file("/d/f", format="stream")) == data
    volume.write_file("/d/f", "é")
    assert volume.read_file("/d/f") == "é"
    with raises_exactly(VolumePathNotFoundException):
        volume.write_file("/none/f", "")
    volume.write_file("/none/f", "", force=True)

    assert [e.path for e in volume.list("/")] == ["/d", "/none", "/x"]
    assert [e.path for e in volume.list("/", depth=2)] == ["/d", "/d/f", "/none", "/none/f", "/x", "/x/y"]
    changed = volume.update_metadata("/d/f", uid=0, gid=0, mode=0o644)
    assert (changed.uid, changed.gid, changed.mode) == (0, 0, 0o644)
    assert volume.get_info("/d/f").mtime == changed.mtime

    assert volume.exists("/d/f") is True
    volume.remove("/d")
    assert volume.exists("/d/f") is False
    for call in (volume.get_info, volume.read_file, volume.list, volume.remove):
        with raises_exactly(VolumePathNotFoundException):
            call("/d/f")
    for path in ("/../../etc/passwd", "/proc/self/environ"):
        with raises_exactly(VolumePathNotFoundException):
            volume.read_file(path)


def test_sandboxes_share_a_volume(new, volume):
    first = new(volume_mounts={"/mnt/data": volume})
    second = new(volume_mounts={"/mnt/data": volume.name})
    volume.write_file("/in", "from outside")
    assert first.files.read("/mnt/data/in") == "from outside"
    first.files.write("/mnt/data/out", "from inside")
    assert second.commands.run("cat /mnt/data/out; id -un; touch /mnt/data/mine").stdout == "from insideuser\n"
    assert volume.read_file("/out") == "from inside"

    mounts = first.get_info().volume_mounts
    assert [(m["name"], m["path"]) if isinstance(m, dict) else (m.name, m.path) for m in mounts] == [(volume.name, "/mnt/data")]
    with raises_exactly(VolumeException) as caught:
        Volume.destroy(volume.volume_id)
    assert first.sandbox_id in str(caught.value) and second.sandbox_id in str(caught.value)

    first.pause()
    volume.write_file("/in", "changed")
    second.kill()
    first = first.connect()
    assert first.commands.run("cat /mnt/data/in").stdout == "changed"
    first.kill()
    assert volume.read_file("/out") == "from inside"


@pytest.mark.parametrize("mounts", [{"/mnt": "no-such-volume"}, {"mnt": None}, {"/proc": None}, {"/": None}, {"/mnt/a": None, "/mnt/a/": None}])
def test_mounts_that_are_refused(new, volume, mounts):
    with raises_exactly(SandboxException) as caught:
        new(volume_mounts={path: name or volume.name for path, name in mounts.items()})
    assert str(caught.value).startswith("400: ")


def test_secrets_are_refused_as_such():
    for call in (
        lambda: Secret.create("name", "value"),
        lambda: Secret.update("name", "value"),
        lambda: Secret.get_info("name"),
        lambda: Secret.list().next_items(),
        lambda: Secret.destroy("name"),
    ):
        with raises_exactly(SecretException) as caught:
            call()
        assert str(caught.value).startswith("403: this server keeps no secrets")
