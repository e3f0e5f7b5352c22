"""Watching directories: Sandbox polls, AsyncSandbox streams."""

import asyncio
import time

import pytest
from e2b import FileNotFoundException, InvalidArgumentException, NotFoundException
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType as Type

from support import scratch


class Polled:
    """What a watch of a new directory has told so far."""

    def __init__(self, sandbox, **options):
        self.dir = scratch()
        sandbox.files.make_dir(self.dir)
        self.handle = sandbox.files.watch_dir(self.dir, **options)
        self.events = []

    def told(self, type, name):
        deadline = time.monotonic() + 30
        while not any((e.type, e.name) == (type, name) for e in self.events):
            assert time.monotonic() < deadline, f"{type} {name} is not among {self.events}"
            self.events += self.handle.get_new_events()


def test_every_kind_of_event(sandbox):
    watch = Polled(sandbox)
    sandbox.files.write(f"{watch.dir}/a", "x")
    watch.told(Type.CREATE, "a")
    watch.told(Type.WRITE, "a")
    sandbox.commands.run(f"chmod 600 {watch.dir}/a")
    watch.told(Type.CHMOD, "a")
    sandbox.files.rename(f"{watch.dir}/a", f"{watch.dir}/b")
    watch.told(Type.RENAME, "a")
    watch.told(Type.CREATE, "b")
    sandbox.files.remove(f"{watch.dir}/b")
    watch.told(Type.REMOVE, "b")
    watch.handle.stop()


def test_a_tree(sandbox):
    watch = Polled(sandbox, recursive=True)
    sandbox.files.make_dir(f"{watch.dir}/new/deep")
    sandbox.files.write(f"{watch.dir}/new/deep/file", "x")
    watch.told(Type.CREATE, "new/deep/file")
    watch.told(Type.WRITE, "new/deep/file")
    watch.handle.stop()


def test_what_is_no_directory(sandbox):
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir(scratch())
    file = scratch()
    sandbox.files.write(file, "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.watch_dir(file)


def test_a_stopped_watch_is_gone(sandbox):
    watch = Polled(sandbox)
    again = Polled(sandbox)
    again.handle._watcher_id = watch.handle._watcher_id
    watch.handle.stop()
    with pytest.raises(NotFoundException):
        again.handle.get_new_events()


def test_a_polled_watch_survives_a_pause(new):
    sandbox = new()
    watch = Polled(sandbox, recursive=True)
    sandbox.files.write(f"{watch.dir}/before", "x")
    sandbox.pause()
    sandbox = sandbox.connect()
    sandbox.files.write(f"{watch.dir}/new/after", "x")
    watch.told(Type.CREATE, "before")
    watch.told(Type.CREATE, "new/after")


async def test_streamed(anew):
    sandbox = await anew()
    dir = scratch()
    await sandbox.files.make_dir(dir)
    events = asyncio.Queue()
    handle = await sandbox.files.watch_dir(dir, events.put_nowait, recursive=True)
    await sandbox.files.write(f"{dir}/new/file", "x")
    seen = set()
    while (Type.WRITE, "new/file") not in seen:
        event = await asyncio.wait_for(events.get(), 30)
        seen.add((event.type, event.name))
    assert {(Type.CREATE, "new"), (Type.CREATE, "new/file")} <= seen
    await handle.stop()
