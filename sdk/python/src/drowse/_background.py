"""Work beside the caller's: a thread, or a task. Both have the same methods, so that
the two halves of this package read alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

_BLOCK = 1 << 20


class Stop:
    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits for so long, and says whether to stop."""
        return self._event.wait(seconds)


class Background:
    """A thread that runs a function until it ends or is told to stop."""

    def __init__(self, work: Callable[[Stop], None]) -> None:
        self._stop = Stop()
        self._thread = threading.Thread(target=work, args=(self._stop,), name="drowse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def leave(self) -> None:
        """Tells it to stop, and does not wait until it has."""
        self._stop.set()

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds)

    @staticmethod
    def blocks(file: BinaryIO) -> Iterator[bytes]:
        while block := file.read(_BLOCK):
            yield block


class AsyncStop:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, seconds: float) -> bool:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()


class AsyncBackground:
    """The same as a task."""

    def __init__(self, work: Callable[[AsyncStop], Awaitable[None]]) -> None:
        self._stop = AsyncStop()

        async def run() -> None:
            await work(self._stop)

        self._task = asyncio.get_running_loop().create_task(run(), name="drowse")

    async def stop(self) -> None:
        self._stop.set()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def leave(self) -> None:
        await self.stop()  # a task stops wherever it is

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @staticmethod
    async def blocks(file: BinaryIO) -> AsyncIterator[bytes]:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block
