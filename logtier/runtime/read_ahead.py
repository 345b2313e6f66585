"""Reading ahead what is about to be sent: data that is not in the page cache is brought there by threads of their own.

`sendfile` of such data would wait for the device, and with it everybody who shares the event loop. Look-ups in logs
that would wait are done by the same threads.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

#: What ends at the end of its file, and is no longer than this, was written a moment ago: it is not looked at.
TAIL_BYTES: Final = 1 << 20
#: One byte of each so many is looked at: as much as the kernel reads ahead by itself.
PROBE_BYTES: Final = 128 << 10
#: Beyond a slice the thread goes on for so long: there the next slice's beginning is looked for.
BEYOND_BYTES: Final = 128 << 10
#: No kernel reads so far ahead for somebody who reads a file from its beginning to its end.
FAR_BYTES: Final = 32 << 20
#: So far it may.
NEAR_BYTES: Final = 8 << 20
#: Devices gain from a few reads at a time, and lose from many.
THREADS_MAX: Final = 4

#: Read at once: a kernel that is not preemptible gives nobody this core meanwhile.
_CHUNK_BYTES: Final = 128 << 10
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


SliceT = TypeVar("SliceT", bound=Slice)
Result = TypeVar("Result")


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
        except OSError as error:
            self._can_probe = error.errno != errno.EOPNOTSUPP
            return True
        return False

    def is_cold_far_ahead(self, records: Slice) -> bool:
        """Whether what whoever reads this slice will read later is not in the page cache; False near a file's end."""
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
        """Read slices in another thread; those that the disk does not give, each with its error."""
        return self.run(partial(_read_all, slices))

    def run(self, task: Callable[[], Result]) -> asyncio.Future[Result]:
        """Do something that waits for the device in one of the threads; it must touch nothing that others change."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix="read-ahead")
        return asyncio.get_running_loop().run_in_executor(self._threads, task)

    def close(self) -> None:
        """End the threads; reads that have not begun are given up."""
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
        except ValueError:  # closed meanwhile: whoever sends it learns of it then
            pass
    return failed


def _read(records: Slice, buffer: bytearray) -> None:
    """Touch every page: unlike an advice it ends when the pages are there, and the copy costs this thread only."""
    descriptor = records.file.fileno()
    # The slice after this one is asked for as soon as this one was sent: let the device begin.
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
            return  # what comes after the slice is not sent now
        if size == 0:
            return
        position += size
