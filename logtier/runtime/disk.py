"""Files and folders as an interface, so that a simulation can pass a disk that forgets what was not synced.

The log tier touches files only through `Disk` and `File`. Everything here is synchronous: appends and reads go to the
page cache; only `File.fsync`, `write_atomic`, `fsync_directory` and `FileSystem.sync` wait for the device, and
`fsync_in_background`, `in_background` and `change_folders` are for callers that must not. A read waits for it where the
page cache does not have what is read: `File.pread_in_memory` is for callers that would rather know.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from headwater.logtier.runtime.background import Task, WorkerThreads
from headwater.logtier.runtime.file_system import FileSystem, RealFileSystem

Buffer: TypeAlias = bytes | bytearray | memoryview

# Linux takes at most this many buffers in one writev (IOV_MAX).
_BUFFERS_PER_WRITE_MAX: Final = 1024

# Flag of preadv for reads that must not wait; Linux has it, elsewhere they do.
_NO_WAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
# The end of a file that was likely written a moment ago.
_NEWEST_BYTES: Final = 1 << 20

# Syncs under way at a time: enough that those of one file system share a commit of its journal, and that a slow
# device does not hold up the others.
_SYNC_THREADS: Final = 8
# Removing and copying files, writing checkpoints: in order, and never in the way of a sync that a producer waits for.
_CHORE_THREADS: Final = 1
# One, since the order counts: a folder's name is free once the log that had it is renamed.
_FOLDER_THREADS: Final = 1


class File(Protocol):
    """An open file that grows at its end and is read anywhere. It closes itself when nothing refers to it any more."""

    @property
    def path(self) -> str:
        """Where it was opened; a rename does not change it."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the buffers, in order, at the end; return the position of the first byte. OSError leaves the size."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`; fewer only at the end of the file."""

    def pread_in_memory(self, size: int, position: int) -> bytes | bytearray:
        """As `pread`, of what is in the page cache; BlockingIOError where it would wait for the device."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def fsync(self) -> None:
        """Wait until the content is on the device."""

    def fileno(self) -> int:
        """The descriptor, for sendfile."""

    def close(self) -> None:
        """Close it; closing twice is allowed."""


class Lock(Protocol):
    """A lock that ends with `release` or with the process."""

    def release(self) -> None:
        """Give the lock up."""


class Completion(Protocol):
    """Something under way in the background."""

    def done(self) -> bool:
        """Whether it has ended."""

    def result(self) -> None:
        """Raise what it ended with, waiting for that if need be."""

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call `fn`, with an argument of no meaning, when it has ended; on any thread."""


class DirectoryEntry(NamedTuple):
    """One name in a folder."""

    name: str
    is_directory: bool
    size_bytes: int
    modified_ms: int


class Disk(Protocol):
    """The operations of a file system that the log tier needs. Failures are OSError and its subclasses."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file to read and append; FileNotFoundError unless it exists or `create`."""

    def open_read_only(self, path: str) -> File:
        """Open an existing file to read."""

    def read(self, path: str) -> bytes:
        """Return a whole (small) file."""

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace a whole (small) file: afterwards, and after a crash, it has the old content or the new one.

        With `sync` the new content is on the device when the call returns.
        """

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or a folder, replacing what is there."""

    def remove(self, path: str) -> None:
        """Remove a file; none there is fine."""

    def rmtree(self, path: str) -> None:
        """Remove a folder and what is in it; none there is fine."""

    def makedirs(self, path: str) -> None:
        """Create a folder and those above it; there already is fine."""

    def hide(self, path: str) -> None:
        """Let nobody but this process's user into a folder; PermissionError for the folder of another user."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder of this name exists."""

    def listdir(self, path: str) -> list[DirectoryEntry]:
        """Return what is in a folder, sorted by name."""

    def fsync_directory(self, path: str) -> None:
        """Wait until the names in a folder are on the device (KAFKA-3968)."""

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        """Sync files and folders without waiting."""

    def in_background(self, task: Task) -> Completion:
        """Do a chore (remove, copy, write files that nobody else touches) without waiting; one after the other."""

    def change_folders(self, task: Task) -> Completion:
        """Make or rename folders without waiting: one task after the other, and never behind a chore."""

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        """Copy bytes of an open file to the same position of a file, to the device; at position 0 that one is new."""

    def lock(self, path: str) -> Lock:
        """Lock a file (created if need be) against other processes; BlockingIOError when another has it."""

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written to the file system of `path`."""

    def file_system(self, path: str) -> FileSystem:
        """The file system that a folder is on, watched for failed writes from now on."""


class RealFile:
    """A file of the operating system. The only writer of the file is this object: it keeps the size."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: str, flags: int) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self.path = path
        self.size = os.fstat(self._descriptor).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the buffers at the end; return the position of the first byte."""
        position = self.size
        total = 0
        for buffer in buffers:
            total += len(buffer)
        # At an explicit position: what a failed write left behind is overwritten by the next one.
        if len(buffers) > _BUFFERS_PER_WRITE_MAX or os.pwritev(self._descriptor, buffers, position) != total:
            self._append_piecemeal(buffers, position)
        self.size = position + total
        return position

    def _append_piecemeal(self, buffers: Sequence[Buffer], position: int) -> None:
        """Too many buffers for one call, or a short write (a signal, a nearly full disk): one buffer at a time."""
        start = position
        try:
            for buffer in buffers:
                view = memoryview(buffer)
                while view:
                    written = os.pwrite(self._descriptor, view, position)
                    view = view[written:]
                    position += written
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.ftruncate(self._descriptor, start)
            raise

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes at `position`; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        left = size - len(data)
        while left:
            position += len(data)
            data = os.pread(self._descriptor, left, position)
            if not data:
                break
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def pread_in_memory(self, size: int, position: int) -> bytes | bytearray:
        """As `pread`, or BlockingIOError; so it ends on a file system that cannot tell, but for the newest bytes."""
        buffer = bytearray(size)
        try:
            found = os.preadv(self._descriptor, (buffer,), position, _NO_WAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            if position >= self.size - _NEWEST_BYTES:
                return self.pread(size, position)
            found = 0
        if found == size:
            return buffer
        if found < self.size - position:
            raise BlockingIOError(errno.EAGAIN, f"{self.path} is not in memory at byte {position}")
        return buffer[:found]

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)
        self.size = size

    def fsync(self) -> None:
        """Wait until the content and the size are on the device; the time of the last change may be not."""
        os.fdatasync(self.fileno())

    def fileno(self) -> int:
        """The descriptor."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def close(self) -> None:
        """Close it; closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # A slice of a deleted segment may still be on its way to a slow client: the last reference closes the file,
        # never its deletion, else the descriptor's number could already mean another file.
        self.close()


class EmptyFile:
    """What an empty slice of a log refers to."""

    __slots__ = ()
    path = ""
    size = 0

    def append(self, buffers: Sequence[Buffer]) -> int:  # noqa: ARG002
        """Never: there is no file."""
        raise AssertionError("an empty slice has no file to write to")

    def pread(self, size: int, position: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def pread_in_memory(self, size: int, position: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def truncate(self, size: int) -> None:  # noqa: ARG002
        """Never: there is no file."""
        raise AssertionError("an empty slice has no file to truncate")

    def fsync(self) -> None:
        """Nothing to sync."""

    def fileno(self) -> int:
        """Never: there is no file."""
        raise AssertionError("an empty slice has no file to send")

    def close(self) -> None:
        """Nothing to close."""


EMPTY_FILE: Final[File] = EmptyFile()


class _FileLock:
    __slots__ = ("_descriptor",)

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The machine's file systems."""

    def __init__(self) -> None:
        self._syncs = WorkerThreads("fsync", _SYNC_THREADS)
        self._chores = WorkerThreads("disk-chores", _CHORE_THREADS)
        self._folder_changes = WorkerThreads("log-folders", _FOLDER_THREADS)

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file to read and append."""
        return RealFile(path, os.O_RDWR | os.O_CREAT if create else os.O_RDWR)

    def open_read_only(self, path: str) -> File:
        """Open an existing file to read."""
        return RealFile(path, os.O_RDONLY)

    def read(self, path: str) -> bytes:
        """Return a whole (small) file."""
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Write a temporary file beside it, then rename."""
        temporary = path + ".tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.fsync_directory(os.path.dirname(path))

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or a folder, replacing what is there."""
        os.replace(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file; none there is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def rmtree(self, path: str) -> None:
        """Remove a folder and what is in it; none there is fine."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def makedirs(self, path: str) -> None:
        """Create a folder and those above it; there already is fine."""
        os.makedirs(path, exist_ok=True)

    def hide(self, path: str) -> None:
        """Let nobody but this process's user into a folder."""
        os.chmod(path, 0o700)

    def exists(self, path: str) -> bool:
        """Whether a file or folder of this name exists."""
        return os.path.lexists(path)

    def listdir(self, path: str) -> list[DirectoryEntry]:
        """Return what is in a folder, sorted by name."""
        entries: list[DirectoryEntry] = []
        with os.scandir(path) as found:
            for entry in found:
                try:
                    status = entry.stat()
                except FileNotFoundError:  # removed meanwhile, or a dangling link
                    continue
                entries.append(
                    DirectoryEntry(entry.name, entry.is_dir(), status.st_size, status.st_mtime_ns // 1_000_000)
                )
        entries.sort()
        return entries

    def fsync_directory(self, path: str) -> None:
        """Wait until the names in a folder are on the device."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        """Sync files, then folders, on one of a few threads."""

        def sync() -> None:
            for file in files:
                file.fsync()
            for directory in directories:
                self.fsync_directory(directory)

        return self._syncs.submit(sync)

    def in_background(self, task: Task) -> Completion:
        """Do a chore on the thread for chores."""
        return self._chores.submit(task)

    def change_folders(self, task: Task) -> Completion:
        """Make or rename folders on a thread of its own: whoever creates a topic waits for it."""
        return self._folder_changes.submit(task)

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        """Copy bytes of an open file to the same position of a file; the kernel copies, this thread waits."""
        end = position + size
        with open(path, "r+b" if position else "wb") as target:
            target.seek(position)
            while position < end:
                copied = os.sendfile(target.fileno(), source.fileno(), position, end - position)
                if copied == 0:
                    raise OSError(errno.EIO, f"{source.path} ends at byte {position}, before byte {end}")
                position += copied
            os.fdatasync(target.fileno())

    def lock(self, path: str) -> Lock:
        """Lock a file with flock, which the kernel gives up when the process ends."""
        return _FileLock(path)

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written to the file system of `path`."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def file_system(self, path: str) -> FileSystem:
        """The file system that a folder is on."""
        return RealFileSystem(path)
