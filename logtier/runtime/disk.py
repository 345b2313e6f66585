"""Files and folders as an interface, so that a simulation can provide a disk that loses unsynced data.

The log tier accesses files only through `Disk` and `File`. All calls are synchronous: appends and reads go to the page
cache. Only `File.fsync`, `write_atomic`, `fsync_directory` and `Volume.sync` wait for the device;
`fsync_in_background`, `in_background` and `change_folders` are for callers that must not wait. A read of data outside
the page cache also waits for the device; `File.pread_in_memory` raises BlockingIOError instead.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from headwater.logtier.runtime.background import Task, WorkerThreads
from headwater.logtier.runtime.volume import RealVolume, Volume

Buffer: TypeAlias = bytes | bytearray | memoryview

# Maximum number of buffers of one writev on Linux (IOV_MAX).
_BUFFERS_PER_WRITE_MAX: Final = 1024

# Flag of preadv for reads that must not wait. Only Linux has the flag.
_NO_WAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
# Size of the end of a file that is probably in the page cache, as recently written.
_NEWEST_BYTES: Final = 1 << 20

# Concurrent syncs: enough that syncs of one file system share a journal commit, and that a slow device does not delay
# the others.
_SYNC_THREADS: Final = 8
# Removals, copies and checkpoints run in order and never delay a sync that a producer waits for.
_CHORE_THREADS: Final = 1
# One thread, since the order counts: a folder's name is free only after its former log is renamed.
_FOLDER_THREADS: Final = 1


class File(Protocol):
    """An open file, appended at its end and read at any position. It closes with the last reference to the object."""

    @property
    def path(self) -> str:
        """Path at the time of opening; a rename does not change it."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers in order; return the position of the first byte. An OSError leaves the size unchanged."""

    def pread(self, size: int, position: int) -> bytes:
        """Return `size` bytes at `position`; fewer only at the end of the file."""

    def pread_in_memory(self, size: int, position: int) -> bytes | bytearray:
        """Read as `pread` does, from the page cache only; BlockingIOError for data outside the page cache."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""

    def fsync(self) -> None:
        """Wait until the contents are on the device."""

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""

    def close(self) -> None:
        """Close the file; closing twice is allowed."""


class Lock(Protocol):
    """A file lock, held until `release` or the end of the process."""

    def release(self) -> None:
        """Release the lock."""


class Completion(Protocol):
    """Work in progress in the background."""

    def done(self) -> bool:
        """Whether the work has ended."""

    def result(self) -> None:
        """Wait for the end of the work; raise its exception, if any."""

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call `fn` on any thread after the end of the work; its argument has no meaning."""


class DirectoryEntry(NamedTuple):
    """One entry of a folder."""

    name: str
    is_directory: bool
    size_bytes: int
    modified_ms: int


class Disk(Protocol):
    """File operations of the log tier. Failures raise OSError or its subclasses."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reads and appends; FileNotFoundError for a missing file without `create`."""

    def open_read_only(self, path: str) -> File:
        """Open an existing file for reads."""

    def read(self, path: str) -> bytes:
        """Return the contents of a small file."""

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace the contents of a small file atomically: after a crash it has the old or the new contents.

        With `sync` the new contents are on the device when the call returns.
        """

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or a folder, replacing the target."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def rmtree(self, path: str) -> None:
        """Remove a folder and its contents, if it exists."""

    def makedirs(self, path: str) -> None:
        """Create a folder and its parents, unless it exists."""

    def hide(self, path: str) -> None:
        """Restrict a folder to the user of this process; PermissionError for the folder of another user."""

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists."""

    def listdir(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a folder, sorted by name."""

    def fsync_directory(self, path: str) -> None:
        """Wait until the entries of a folder are on the device (KAFKA-3968)."""

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        """Sync files and folders in the background."""

    def in_background(self, task: Task) -> Completion:
        """Run a chore in the background, one at a time: remove, copy or write files that no other code uses."""

    def change_folders(self, task: Task) -> Completion:
        """Create or rename folders in the background, one task at a time, independently of chores."""

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        """Copy bytes of an open file to the same position of another file and sync; position 0 creates that file."""

    def lock(self, path: str) -> Lock:
        """Lock a file, created on demand, against other processes; BlockingIOError if another one holds the lock."""

    def free_bytes(self, path: str) -> int:
        """Return the free bytes of the file system of `path`."""

    def volume(self, path: str) -> Volume:
        """Return the file system of a folder; it reports write errors from now on."""


class RealFile:
    """A file of the operating system. This object is the only writer of the file and tracks the size."""

    __slots__ = ("_descriptor", "path", "size")

    def __init__(self, path: str, flags: int) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self.path = path
        self.size = os.fstat(self._descriptor).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers; return the position of the first byte."""
        position = self.size
        total = 0
        for buffer in buffers:
            total += len(buffer)
        # At an explicit position, so that the next write overwrites the remains of a failed one.
        if len(buffers) > _BUFFERS_PER_WRITE_MAX or os.pwritev(self._descriptor, buffers, position) != total:
            self._append_piecemeal(buffers, position)
        self.size = position + total
        return position

    def _append_piecemeal(self, buffers: Sequence[Buffer], position: int) -> None:
        """Append buffer by buffer, after a short write (a signal, a nearly full disk) or with too many buffers."""
        start = position
        try:
            for buffer in buffers:
                view = memoryview(buffer)
                while view:
                    written = os.pwrite(self._descriptor, view, position)
                    view = view[written:]
                    position += written
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._descriptor, start)
            raise

    def pread(self, size: int, position: int) -> bytes:
        """Return `size` bytes at `position`; fewer only at the end of the file."""
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
        """Read as `pread` does, or raise BlockingIOError.

        A file system without such reads raises BlockingIOError for all but the newest bytes.
        """
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
        """Truncate the file to `size` bytes."""
        os.ftruncate(self._descriptor, size)
        self.size = size

    def fsync(self) -> None:
        """Wait until contents and size are on the device; the modification time may be missing."""
        os.fdatasync(self.fileno())

    def fileno(self) -> int:
        """Return the descriptor."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # A slow client may still receive a slice of a deleted segment. The last reference closes the file, not its
        # deletion; otherwise the descriptor's number could already refer to another file.
        self.close()


class EmptyFile:
    """File of an empty slice of a log."""

    __slots__ = ()
    path = ""
    size = 0

    def append(self, buffers: Sequence[Buffer]) -> int:  # noqa: ARG002
        """Not supported: there is no file."""
        raise AssertionError("an empty slice has no file to write to")

    def pread(self, size: int, position: int) -> bytes:  # noqa: ARG002
        """Return no bytes."""
        return b""

    def pread_in_memory(self, size: int, position: int) -> bytes:  # noqa: ARG002
        """Return no bytes."""
        return b""

    def truncate(self, size: int) -> None:  # noqa: ARG002
        """Not supported: there is no file."""
        raise AssertionError("an empty slice has no file to truncate")

    def fsync(self) -> None:
        """Do nothing."""

    def fileno(self) -> int:
        """Not supported: there is no file."""
        raise AssertionError("an empty slice has no file to send")

    def close(self) -> None:
        """Do nothing."""


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
    """File systems of the operating system."""

    def __init__(self) -> None:
        self._syncs = WorkerThreads("fsync", _SYNC_THREADS)
        self._chores = WorkerThreads("disk-chores", _CHORE_THREADS)
        self._folder_changes = WorkerThreads("log-folders", _FOLDER_THREADS)

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reads and appends."""
        return RealFile(path, os.O_RDWR | os.O_CREAT if create else os.O_RDWR)

    def open_read_only(self, path: str) -> File:
        """Open an existing file for reads."""
        return RealFile(path, os.O_RDONLY)

    def read(self, path: str) -> bytes:
        """Return the contents of a small file."""
        with open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Write a temporary file in the same folder, then rename it."""
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
        """Rename a file or a folder, replacing the target."""
        os.replace(path, new_path)

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def rmtree(self, path: str) -> None:
        """Remove a folder and its contents, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def makedirs(self, path: str) -> None:
        """Create a folder and its parents, unless it exists."""
        os.makedirs(path, exist_ok=True)

    def hide(self, path: str) -> None:
        """Restrict a folder to the user of this process."""
        os.chmod(path, 0o700)

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists."""
        return os.path.lexists(path)

    def listdir(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a folder, sorted by name."""
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
        """Wait until the entries of a folder are on the device."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        """Sync files, then folders, on one of the sync threads."""

        def sync() -> None:
            for file in files:
                file.fsync()
            for directory in directories:
                self.fsync_directory(directory)

        return self._syncs.submit(sync)

    def in_background(self, task: Task) -> Completion:
        """Run a chore on the thread for chores."""
        return self._chores.submit(task)

    def change_folders(self, task: Task) -> Completion:
        """Create or rename folders on a dedicated thread, since the creation of a topic waits for it."""
        return self._folder_changes.submit(task)

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        """Copy bytes of an open file to the same position of another file with sendfile, and sync."""
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
        """Lock a file with flock; the kernel releases the lock at the end of the process."""
        return _FileLock(path)

    def free_bytes(self, path: str) -> int:
        """Return the free bytes of the file system of `path`."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def volume(self, path: str) -> Volume:
        """Return the file system of a folder."""
        return RealVolume(path)
