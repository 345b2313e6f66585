"""Read-ahead: dedicated threads load data that is about to be sent into the page cache.

Otherwise `sendfile` would wait for the device and block the event loop for all clients. The same threads run look-ups
in logs that would wait.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

#: A slice at the end of its file, up to this size, was written recently and is not probed.
TAIL_BYTES: Final = 1 << 20
#: Distance between probed bytes: the size of the kernel's own read-ahead.
PROBE_BYTES: Final = 128 << 10
#: Bytes read beyond a slice, where the next slice is probed first.
BEYOND_BYTES: Final = 128 << 10
#: Distance beyond the kernel's read-ahead for a sequential reader.
FAR_BYTES: Final = 32 << 20
#: Maximum distance of the kernel's read-ahead for a sequential reader.
NEAR_BYTES: Final = 8 << 20
#: A few concurrent reads raise a device's throughput; many lower it.
THREADS_MAX: Final = 4

#: Bytes of one system call: without kernel preemption, a call occupies the core until it returns.
_CHUNK_BYTES: Final = 128 << 10
_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)


class SourceFile(Protocol):
    """An open file."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Slice(Protocol):
    """A part of a file to be sent; keeps the file open."""

    @property
    def file(self) -> SourceFile:
        """File of the slice."""

    @property
    def position(self) -> int:
        """Position in the file, in bytes."""

    @property
    def size(self) -> int:
        """Size in bytes."""


SliceT = TypeVar("SliceT", bound=Slice)
Result = TypeVar("Result")


class ReadAhead:
    """Probes whether slices are in the page cache, and loads the slices that are not."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._threads: ThreadPoolExecutor | None = None
        self._can_probe = _NO_WAIT is not None
        self._byte = bytearray(1)

    def is_cold(self, records: Slice) -> bool:
        """Whether samples show that a part of a slice of at least one byte is not in the page cache.

        A slice on a file system without probes counts as cold: a needless thread switch costs less than a wait.
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
        except OSError as error:
            self._can_probe = error.errno != errno.EOPNOTSUPP
            return True
        return False

    def is_cold_far_ahead(self, records: Slice) -> bool:
        """Whether data FAR_BYTES ahead of the reader of a slice is not in the page cache; False near the file's end."""
        file = records.file
        end = records.position + records.size
        position = min(end + FAR_BYTES, file.size - 1)
        if position < end + NEAR_BYTES:
            return False
        if not self._can_probe:
            return True
        assert _NO_WAIT is not None
        try:
            os.preadv(file.fileno(), (self._byte,), position, _NO_WAIT)
        except OSError:
            return True
        return False

    def warm(self, slices: Sequence[SliceT]) -> asyncio.Future[list[tuple[SliceT, OSError]]]:
        """Read slices in another thread; the result lists the unreadable slices with their errors."""
        return self.run(partial(_read_all, slices))

    def run(self, task: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a task that waits for the device in a thread; it must not access state that other code changes."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix="read-ahead")
        return asyncio.get_running_loop().run_in_executor(self._threads, task)

    def close(self) -> None:
        """End the threads; reads that have not begun are cancelled."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None


def _read_all(slices: Sequence[SliceT]) -> list[tuple[SliceT, OSError]]:
    buffer = bytearray(min(_CHUNK_BYTES, max(each.size for each in slices) + BEYOND_BYTES))
    failed: list[tuple[SliceT, OSError]] = []
    for each in slices:
        try:
            _read(each, buffer)
        except OSError as error:
            failed.append((each, error))
        except ValueError:  # closed in the meantime: the sender gets the error
            pass
    return failed


def _read(records: Slice, buffer: bytearray) -> None:
    """Touch every page: unlike fadvise, the call ends after the pages are loaded; the copy costs only this thread."""
    descriptor = records.file.fileno()
    # The next slice is requested as soon as this slice is sent: start the device early.
    os.posix_fadvise(descriptor, records.position, 2 * records.size + BEYOND_BYTES, os.POSIX_FADV_WILLNEED)
    position = records.position
    end = min(position + records.size + BEYOND_BYTES, records.file.size)
    view = memoryview(buffer)
    while position < end:
        try:
            size = os.preadv(descriptor, (view[: end - position],), position)
        except OSError:
            if position < records.position + records.size:
                raise
            return  # the bytes after the slice are not sent now
        if size == 0:
            return
        position += size
