import io
import os
import re

import pytest
from e2b import (
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
)

from support import BOOT_ID, near, raises_exactly, scratch, seconds_until, sha256

EVERY_BYTE = bytes(range(256))


def stat(sandbox, path):
    return sandbox.commands.run(f"stat -c '%U:%G %a' '{path}'").stdout.strip()


def read_stream(sandbox, path):
    return b"".join(sandbox.files.read(path, format="stream"))


def test_text_there_and_back(sandbox):
    path = scratch(".txt")
    info = sandbox.files.write(path, "héllo 漢字 😀\n")
    assert (info.path, info.name) == (path, path[len("/tmp/") :])
    assert info.type == FileType.FILE
    assert info.metadata is None
    assert sandbox.files.read(path) == "héllo 漢字 😀\n"
    assert sandbox.commands.run(f"cat {path}").stdout == "héllo 漢字 😀\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: EVERY_BYTE, id="bytes"),
        pytest.param(lambda: io.BytesIO(EVERY_BYTE), id="file object"),
    ],
)
def test_bytes_read_in_every_format(sandbox, data):
    path = scratch()
    assert sandbox.files.write(path, data()).path == path
    assert bytes(sandbox.files.read(path, format="bytes")) == EVERY_BYTE
    assert read_stream(sandbox, path) == EVERY_BYTE


def test_bytes_sent_as_an_octet_stream(sandbox):
    path = scratch()
    info = sandbox.files.write(path, EVERY_BYTE, use_octet_stream=True)
    assert (info.path, info.type) == (path, FileType.FILE)
    assert bytes(sandbox.files.read(path, format="bytes")) == EVERY_BYTE


def test_empty_file_in_every_format(sandbox):
    path = scratch()
    sandbox.files.write(path, "")
    assert sandbox.files.read(path) == ""
    assert sandbox.files.read(path, format="bytes") == bytearray()
    assert read_stream(sandbox, path) == b""
    assert sandbox.files.get_info(path).size == 0


def test_50_mib_there_and_back(sandbox):
    path = scratch()
    data = os.urandom(50 * 1024 * 1024)
    sandbox.files.write(path, data)
    assert sandbox.commands.run(f"sha256sum < {path}").stdout.split()[0] == sha256(data)
    back = sandbox.files.read(path, format="bytes")
    assert len(back) == len(data)
    assert sha256(back) == sha256(data)
    sandbox.files.remove(path)


def test_20_mib_streamed_there_and_back(sandbox):
    path = scratch()
    data = os.urandom(20 * 1024 * 1024)
    sandbox.files.write(path, io.BytesIO(data))
    assert sandbox.files.get_info(path).size == len(data)
    assert sha256(read_stream(sandbox, path)) == sha256(data)
    sandbox.files.remove(path)


def test_several_files_in_one_call_in_order(sandbox):
    dir = scratch()
    infos = sandbox.files.write_files(
        [
            {"path": f"{dir}/b.txt", "data": "b"},
            {"path": f"{dir}/deep/er/a.txt", "data": "a"},
            {"path": f"{dir}/with space é.bin", "data": EVERY_BYTE},
            {"path": "several-relative.txt", "data": ""},
        ]
    )
    assert [info.path for info in infos] == [
        f"{dir}/b.txt",
        f"{dir}/deep/er/a.txt",
        f"{dir}/with space é.bin",
        "/home/user/several-relative.txt",
    ]
    assert [info.name for info in infos] == ["b.txt", "a.txt", "with space é.bin", "several-relative.txt"]
    assert sandbox.files.read(f"{dir}/b.txt") == "b"
    assert sandbox.files.read(f"{dir}/deep/er/a.txt") == "a"
    assert bytes(sandbox.files.read(f"{dir}/with space é.bin", format="bytes")) == EVERY_BYTE
    assert sandbox.files.read("several-relative.txt") == ""


def test_missing_parents_are_created(sandbox):
    dir = scratch()
    sandbox.files.write(f"{dir}/x/y/z.txt", "deep")
    assert sandbox.files.read(f"{dir}/x/y/z.txt") == "deep"
    assert stat(sandbox, f"{dir}/x") == "user:user 755"


def test_shorter_text_replaces_a_longer_one(sandbox):
    path = scratch()
    sandbox.files.write(path, "the longer text")
    sandbox.files.write(path, "short")
    assert sandbox.files.read(path) == "short"


def test_files_belong_to_the_user_they_are_written_as(sandbox):
    mine, roots = scratch(), scratch()
    sandbox.files.write(mine, "")
    assert stat(sandbox, mine) == "user:user 644"
    sandbox.files.write(roots, "", user="root")
    assert stat(sandbox, roots) == "root:root 644"


def test_list_with_depth(sandbox):
    dir = scratch()
    sandbox.files.write_files(
        [
            {"path": f"{dir}/a/inner/leaf.txt", "data": "12345"},
            {"path": f"{dir}/a/one.txt", "data": "1"},
            {"path": f"{dir}/b.txt", "data": ""},
        ]
    )

    def paths(**opts):
        return [entry.path[len(dir) :] for entry in sandbox.files.list(dir, **opts)]

    assert paths() == ["/a", "/b.txt"]
    assert paths(depth=2) == ["/a", "/a/inner", "/a/one.txt", "/b.txt"]
    assert paths(depth=3) == ["/a", "/a/inner", "/a/inner/leaf.txt", "/a/one.txt", "/b.txt"]
    entries = sandbox.files.list(dir, depth=3)
    assert [(e.name, e.type.value) for e in entries] == [
        ("a", "dir"),
        ("inner", "dir"),
        ("leaf.txt", "file"),
        ("one.txt", "file"),
        ("b.txt", "file"),
    ]
    assert entries[2].size == 5


def test_list_of_an_empty_directory(sandbox):
    dir = scratch()
    sandbox.files.make_dir(dir)
    assert sandbox.files.list(dir) == []


def test_exists(sandbox):
    dir = scratch()
    assert sandbox.files.exists(dir) is False
    sandbox.files.write(f"{dir}/f", "")
    assert sandbox.files.exists(dir) is True
    assert sandbox.files.exists(f"{dir}/f") is True
    assert sandbox.files.exists(f"{dir}/g") is False


def test_get_info_of_a_file(sandbox):
    path = scratch(".txt")
    sandbox.files.write(path, "12345")
    info = sandbox.files.get_info(path)
    assert (info.name, info.path, info.type) == (path[len("/tmp/") :], path, FileType.FILE)
    assert (info.size, info.mode, info.permissions) == (5, 0o644, "-rw-r--r--")
    assert (info.owner, info.group) == ("user", "user")
    assert (info.symlink_target, info.metadata) == (None, None)
    assert seconds_until(info.modified_time) == near(0, 30)


def test_get_info_of_a_directory_and_of_a_symlink(sandbox):
    dir = scratch()
    sandbox.files.write(f"{dir}/target.txt", "x")
    sandbox.commands.run(f"ln -s target.txt {dir}/link")
    info = sandbox.files.get_info(dir)
    assert (info.type, info.permissions) == (FileType.DIR, "drwxr-xr-x")
    link = sandbox.files.get_info(f"{dir}/link")
    assert (link.path, link.symlink_target) == (f"{dir}/link", f"{dir}/target.txt")
    assert sandbox.files.read(f"{dir}/link") == "x"


def test_rename(sandbox):
    dir = scratch()
    sandbox.files.write(f"{dir}/old.txt", "content")
    info = sandbox.files.rename(f"{dir}/old.txt", f"{dir}/sub/new.txt")
    assert (info.path, info.name, info.type) == (f"{dir}/sub/new.txt", "new.txt", FileType.FILE)
    assert sandbox.files.exists(f"{dir}/old.txt") is False
    assert sandbox.files.read(f"{dir}/sub/new.txt") == "content"
    with raises_exactly(FileNotFoundException):
        sandbox.files.rename(f"{dir}/old.txt", f"{dir}/x")


def test_remove_a_file_a_tree_and_what_is_not_there(sandbox):
    dir = scratch()
    sandbox.files.write(f"{dir}/a/b.txt", "")
    sandbox.files.write(f"{dir}/c.txt", "")
    sandbox.files.remove(f"{dir}/c.txt")
    assert sandbox.files.exists(f"{dir}/c.txt") is False
    sandbox.files.remove(dir)
    assert sandbox.files.exists(dir) is False
    sandbox.files.remove(dir)


def test_make_dir_true_then_false(sandbox):
    dir = scratch()
    assert sandbox.files.make_dir(f"{dir}/a/b") is True
    assert sandbox.files.make_dir(f"{dir}/a/b") is False
    assert stat(sandbox, f"{dir}/a/b") == "user:user 755"
    sandbox.files.write(f"{dir}/file", "")
    with raises_exactly(InvalidArgumentException):
        sandbox.files.make_dir(f"{dir}/file")


def test_what_is_missing(sandbox):
    path = scratch()
    with raises_exactly(FileNotFoundException) as caught:
        sandbox.files.read(path)
    assert isinstance(caught.value, NotFoundException)
    with raises_exactly(FileNotFoundException):
        sandbox.files.read(path, format="stream")
    with raises_exactly(FileNotFoundException):
        sandbox.files.list(path)
    with raises_exactly(FileNotFoundException):
        sandbox.files.get_info(path)


def test_directory_is_not_read_file_is_not_listed_directory_is_not_overwritten(sandbox):
    dir = scratch()
    sandbox.files.write(f"{dir}/f", "")
    with raises_exactly(InvalidArgumentException):
        sandbox.files.read(dir)
    with raises_exactly(InvalidArgumentException):
        sandbox.files.list(f"{dir}/f")
    with raises_exactly(InvalidArgumentException):
        sandbox.files.write(dir, "x")


def test_relative_and_tilde_paths_begin_at_the_home_of_the_user(sandbox):
    assert sandbox.files.write("relative/r.txt", "r").path == "/home/user/relative/r.txt"
    assert sandbox.files.read("~/relative/r.txt") == "r"
    assert sandbox.files.read("/home/user/relative/r.txt") == "r"
    assert [e.path for e in sandbox.files.list("relative")] == ["/home/user/relative/r.txt"]
    assert sandbox.files.write("~/tilde.txt", "t").path == "/home/user/tilde.txt"
    assert sandbox.files.write("rooted.txt", "r", user="root").path == "/root/rooted.txt"
    assert sandbox.files.read("/root/rooted.txt", user="root") == "r"


def test_spaces_and_unicode_in_paths(sandbox):
    dir = scratch(" with space")
    name = "žluťoučký 漢字 😀 & %41+100% #1?.txt"
    path = f"{dir}/{name}"
    info = sandbox.files.write(path, name)
    assert (info.path, info.name) == (path, name)
    assert sandbox.files.read(path) == name
    assert [e.name for e in sandbox.files.list(dir)] == [name]
    assert sandbox.files.exists(path) is True
    two = sandbox.files.write_files(
        [{"path": f"{path}.1", "data": "1"}, {"path": f"{path}.2", "data": "2"}]
    )
    assert [i.path for i in two] == [f"{path}.1", f"{path}.2"]
    assert sandbox.files.read(f"{path}.2") == "2"


def test_file_that_does_not_know_its_size(sandbox):
    text = sandbox.files.read(BOOT_ID)
    assert re.fullmatch(r"[0-9a-f-]{36}\n", text)
    assert text == sandbox.commands.run(f"cat {BOOT_ID}").stdout


def test_gzip_both_ways(sandbox):
    path, empty = scratch(), scratch()
    text = "compressible é\n" * 100_000
    sandbox.files.write(path, text, gzip=True)
    assert sandbox.commands.run(f"sha256sum < {path}").stdout.split()[0] == sha256(text)
    assert sha256(sandbox.files.read(path, gzip=True)) == sha256(text)
    sandbox.files.write(empty, "", gzip=True)
    assert sandbox.files.read(empty, gzip=True) == ""


def test_metadata_is_kept_with_the_file_until_the_next_write(sandbox):
    path = scratch()
    metadata = {"author": "someone else", "x-kind": "a=b; c"}
    assert sandbox.files.write(path, "1", metadata=metadata).metadata == metadata
    assert sandbox.files.get_info(path).metadata == metadata
    assert sandbox.files.rename(path, f"{path}.moved").metadata == metadata
    second = sandbox.files.write(f"{path}.moved", "2", metadata={"Upper": "Case"})
    assert second.metadata == {"upper": "Case"}
    assert sandbox.files.write(f"{path}.moved", "3").metadata is None
    assert sandbox.files.get_info(f"{path}.moved").metadata is None
