"""Reading ahead what is about to be sent: data that is not in the page cache is brought there by threads of their own.

`sendfile` of such data would wait for the device, and with it everybody who shares the event loop.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

#: What ends at the end of its file, and is no longer than this, was written a moment ago: it is not looked at.
TAIL_BYTES: Final = 1 << 20
#: One byte of each so many is looked at: as much as the kernel reads ahead by itself.
PROBE_BYTES: Final = 128 << 10
#: Beyond a slice the thread goes on for so long: there the next slice's beginning is looked for.
BEYOND_BYTES: Final = 128 << 10
#: Devices gain from a few reads at a time, and lose from many.
THREADS_MAX: Final = 4

_CHUNK_BYTES: Final = 1 << 20
_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


class SourceFile(Protocol):
    """An open file."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def fileno(self) -> int:
        """The descriptor."""


class Slice(Protocol):
    """A part of a file that is to be sent; it keeps the file open."""

    @property
    def file(self) -> SourceFile:
        """Where it lies."""

    @property
    def position(self) -> int:
        """Where it begins, in bytes."""

    @property
    def size(self) -> int:
        """Its bytes."""


class ReadAhead:
    """Looks whether slices are in the page cache, and brings there those that are not."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._threads: ThreadPoolExecutor | None = None
        self._can_probe = _NO_WAIT is not None
        self._byte = bytearray(1)

    def is_cold(self, records: Slice) -> bool:
        """Whether some of a slice (of one byte at least) is not in the page cache, as far as samples tell.

        A file system that cannot say counts as cold: a detour over a thread is the smaller evil.
        """
        file, position, size = records.file, records.position, records.size
        end = position + size
        if size <= TAIL_BYTES and end >= file.size:
            return False
        if not self._can_probe:
            return True
        assert _NO_WAIT is not None
        descriptor = file.fileno()
        buffers = (self._byte,)
        try:
            for probed in range(position, end, PROBE_BYTES):
                os.preadv(descriptor, buffers, probed, _NO_WAIT)
            os.preadv(descriptor, buffers, end - 1, _NO_WAIT)
        except BlockingIOError:
            return True
        except OSError:
            self._can_probe = False
            return True
        return False

    def warm(self, slices: Sequence[Slice]) -> asyncio.Future[None]:
        """Read slices in another thread. Never fails: whoever sends what cannot be read learns of it then."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix="read-ahead")
        return asyncio.get_running_loop().run_in_executor(self._threads, _read_all, slices)

    def close(self) -> None:
        """End the threads; reads that have not begun are given up."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None


def _read_all(slices: Sequence[Slice]) -> None:
    buffer = bytearray(min(_CHUNK_BYTES, max(each.size for each in slices) + BEYOND_BYTES))
    for each in slices:
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed meanwhile
            _read(each, buffer)


def _read(records: Slice, buffer: bytearray) -> None:
    """Touch every page: unlike an advice it ends when the pages are there, and the copy costs this thread only."""
    descriptor = records.file.fileno()
    # The slice after this one is asked for as soon as this one was sent: let the device begin.
    os.posix_fadvise(descriptor, records.position, 2 * records.size + BEYOND_BYTES, os.POSIX_FADV_WILLNEED)
    position = records.position
    end = min(position + records.size + BEYOND_BYTES, records.file.size)
    view = memoryview(buffer)
    while position < end:
        size = os.preadv(descriptor, (view[: end - position],), position)
        if size == 0:
            return
        position += size
