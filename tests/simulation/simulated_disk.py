"""A disk in memory, as one process sees it: its open files, and its work in the background."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headwater.logtier.runtime.background import Task
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.disk import Buffer, Completion, DirectoryEntry, File, Lock
from headwater.logtier.runtime.volume import Volume
from tests.simulation.file_system import FileSystem, Folder, Inode

#: Duration of work in the background, in seconds; a sync now and then takes much longer than the others.
WORK_S = (0.000_2, 0.004)
SLOW_SYNC_S = 0.2
SLOW_SYNC_RATIO = 0.01


class SimulatedFile:
    """An open file."""

    __slots__ = ("_closed", "_descriptor", "_disk", "_is_read_only", "inode", "path")

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode, *, is_read_only: bool = False) -> None:
        self._disk = disk
        self._is_read_only = is_read_only
        self._closed = False
        self._descriptor = -1
        self.path = path
        self.inode = inode

    @property
    def size(self) -> int:
        return len(self.inode.data)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        assert not self._is_read_only
        size = sum(map(len, buffers))
        self._disk.file_system.check(self.path)
        self._disk.file_system.check_space(self.path, size)
        data = self.inode.data
        position = len(data)
        for buffer in buffers:
            data += buffer
        self.inode.modified_ms = self._disk.now_ms()
        self._disk.on_write(self.path)
        return position

    def pread(self, size: int, position: int) -> bytes:
        self._check_open()
        self._disk.file_system.check(self.path)
        return bytes(self.inode.data[position : position + size])

    def pread_in_memory(self, size: int, position: int) -> bytes | bytearray:
        return self.pread(size, position)

    def truncate(self, size: int) -> None:
        self._check_open()
        self.inode.truncate(size)
        self._disk.on_write(self.path)

    def fsync(self) -> None:
        self._check_open()
        self._disk.file_system.check(self.path)
        self.inode.sync()

    def fileno(self) -> int:
        self._check_open()
        if self._descriptor < 0:
            self._descriptor = self._disk.file_system.describe(self.inode)
        return self._descriptor

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        self._disk.check_alive()


class SimulatedCompletion:
    """Work in the background; whoever waits for its result has it done at once."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._is_done = False
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._is_done

    def result(self) -> None:
        self.finish()
        if self._error is not None:
            raise self._error

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        if self._is_done:
            fn(self)
        else:
            self._callbacks.append(fn)

    def finish(self) -> None:
        if self._is_done:
            return
        self._is_done = True
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 (belongs to the submitter)
            self._error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class _Queue:
    """Tasks that run one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop, duration_s: Callable[[], float]) -> None:
        self._loop = loop
        self._duration_s = duration_s
        self._pending: deque[SimulatedCompletion] = deque()
        self._free_from_s = 0.0

    def submit(self, task: Task) -> Completion:
        def run() -> None:
            # Those before it come first, also for one who waits.
            while self._pending[0] is not completion:
                self._pending[0].finish()
            self._pending.popleft()
            task()

        completion = SimulatedCompletion(run)
        self._pending.append(completion)
        self._free_from_s = max(self._free_from_s, self._loop.time()) + self._duration_s()
        self._loop.call_at(self._free_from_s, completion.finish)
        return completion


class _HeldLock:
    def __init__(self, file_system: FileSystem, path: str, holder: object) -> None:
        self._file_system, self._path, self._holder = file_system, path, holder

    def release(self) -> None:
        if self._file_system.locks.get(self._path) is self._holder:
            del self._file_system.locks[self._path]


class _SimulatedVolume:
    def __init__(self, file_system: FileSystem, check_alive: Callable[[], None]) -> None:
        self._file_system = file_system
        self._check_alive = check_alive

    @property
    def total_bytes(self) -> int:
        return self._file_system.capacity_bytes

    @property
    def usable_bytes(self) -> int:
        return self._file_system.capacity_bytes - self._file_system.used_bytes()

    def sync(self) -> bool:
        self._check_alive()
        if self._file_system.failing is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file_system.sync()
        return True

    def close(self) -> None:
        pass


class SimulatedDisk:
    """The disk of one process.

    Invariant: after `cut`, nothing of the process reaches the file system.

    Args:
        on_write: Called with the path of a file after each change of its bytes.
    """

    def __init__(
        self, file_system: FileSystem, clock: Clock, chance: random.Random, on_write: Callable[[str], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.file_system = file_system
        self.now_ms = clock.now_ms
        self.on_write = on_write
        self._loop = loop
        self._chance = chance
        self._is_cut = False
        self._chores = _Queue(loop, self._work_s)
        self._folder_changes = _Queue(loop, self._work_s)

    def cut(self) -> None:
        """The process is killed: its locks go."""
        self._is_cut = True
        for path in [path for path, holder in self.file_system.locks.items() if holder is self]:
            del self.file_system.locks[path]

    def check_alive(self) -> None:
        """Refuse what a killed process still tries."""
        if self._is_cut:
            raise OSError(errno.EBADF, "the process was killed")

    def _work_s(self) -> float:
        return self._chance.uniform(*WORK_S)

    def open(self, path: str, *, create: bool = False) -> File:
        self.check_alive()
        self.file_system.check(path)
        if create and self.file_system.find(path) is None:
            self.file_system.check_space(path, 1)
            self.file_system.set(path, Inode(self.now_ms()))
        return SimulatedFile(self, path, self.file_system.file(path))

    def open_read_only(self, path: str) -> File:
        self.check_alive()
        return SimulatedFile(self, path, self.file_system.file(path), is_read_only=True)

    def read(self, path: str) -> bytes:
        self.check_alive()
        return bytes(self.file_system.file(path).data)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        self.check_alive()
        self.file_system.check(path)
        self.file_system.check_space(path, len(data))
        inode = Inode(self.now_ms())
        inode.data += data
        temporary = path + ".tmp"
        self.file_system.set(temporary, inode)
        if sync:
            inode.sync()
        self.file_system.rename(temporary, path)
        if sync:
            self.fsync_directory(os.path.dirname(path))

    def rename(self, path: str, new_path: str) -> None:
        self.check_alive()
        self.file_system.check(path)
        self.file_system.rename(path, new_path)

    def remove(self, path: str) -> None:
        self.check_alive()
        if self.file_system.find(path) is not None:
            self.file_system.set(path, None)

    def rmtree(self, path: str) -> None:
        self.check_alive()
        self.file_system.rmtree(path)

    def makedirs(self, path: str) -> None:
        self.check_alive()
        self.file_system.check(path)
        self.file_system.check_space(path, 1)
        self.file_system.makedirs(path)

    def hide(self, path: str) -> None:
        self.check_alive()

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self.file_system.find(path) is not None

    def listdir(self, path: str) -> list[DirectoryEntry]:
        self.check_alive()
        return [
            DirectoryEntry(name, True, 0, self.now_ms())
            if isinstance(node, Folder)
            else DirectoryEntry(name, False, len(node.data), node.modified_ms)
            for name, node in sorted(self.file_system.folder(path).entries.items())
        ]

    def fsync_directory(self, path: str) -> None:
        self.check_alive()
        self.file_system.check(path)
        self.file_system.folder(path).sync()

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        """Sync what the files hold now, and the folders' entries at the end."""
        self.check_alive()
        begun = []
        for file in files:
            assert isinstance(file, SimulatedFile)
            begun.append((file, file.inode.begin_sync()))

        def finish() -> None:
            for file, sync in begun:
                self.file_system.check(file.path)
                file.inode.end_sync(sync)
            for directory in directories:
                self.fsync_directory(directory)

        completion = SimulatedCompletion(finish)
        duration_s = self._work_s()
        if self._chance.random() < SLOW_SYNC_RATIO:
            duration_s += SLOW_SYNC_S
        self._loop.call_later(duration_s, completion.finish)
        return completion

    def in_background(self, task: Task) -> Completion:
        self.check_alive()
        return self._chores.submit(task)

    def change_folders(self, task: Task) -> Completion:
        self.check_alive()
        return self._folder_changes.submit(task)

    def copy(self, source: File, path: str, position: int, size: int) -> None:
        data = source.pread(size, position)
        if len(data) < size:
            raise OSError(errno.EIO, f"{source.path} ends before byte {position + size}")
        target = self.open(path, create=not position)
        target.truncate(position)
        target.append([data])
        target.fsync()

    def lock(self, path: str) -> Lock:
        self.check_alive()
        self.open(path, create=True)
        if self.file_system.locks.setdefault(path, self) is not self:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        return _HeldLock(self.file_system, path, self)

    def free_bytes(self, path: str) -> int:
        return self.volume(path).usable_bytes

    def volume(self, path: str) -> Volume:
        self.file_system.folder(path)
        return _SimulatedVolume(self.file_system, self.check_alive)
