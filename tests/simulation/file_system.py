"""The state of a simulated device: what processes see, and what a power loss leaves of it."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

_FIRST_DESCRIPTOR = 1 << 20
ENDLESS_BYTES = 1 << 40


@dataclass(slots=True)
class Sync:
    """A sync that runs: the bytes of the file that it covers."""

    limit: int


class Inode:
    """A file: its bytes in the page cache, and which of them are on the device.

    The device holds `data[:synced]`, then `old_tail`: what stood there before a truncation that was not synced.
    """

    __slots__ = ("cuts", "data", "modified_ms", "old_tail", "synced", "syncs")

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        #: How often bytes were taken away.
        self.cuts = 0
        self.modified_ms = now_ms
        self.synced = 0
        self.old_tail = b""
        self.syncs: list[Sync] = []

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            self.cuts += 1
        if size < self.synced:
            self.old_tail = bytes(self.data[size : self.synced]) + self.old_tail
            self.synced = size
        for sync in self.syncs:
            sync.limit = min(sync.limit, size)
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def begin_sync(self) -> Sync:
        sync = Sync(len(self.data))
        self.syncs.append(sync)
        return sync

    def end_sync(self, sync: Sync) -> None:
        """Everything written before the sync began is on the device."""
        self.syncs.remove(sync)
        if sync.limit > self.synced:
            self.old_tail = self.old_tail[sync.limit - self.synced :]
            self.synced = sync.limit
        if sync.limit == len(self.data):
            self.old_tail = b""  # the size is on the device, too

    def sync(self) -> None:
        self.synced = len(self.data)
        self.old_tail = b""

    def lose_power(self, chance: random.Random) -> None:
        """Keep what is on the device, and of the rest what chance leaves: whole, cut off, or zeros."""
        self.syncs.clear()
        if self.old_tail and chance.random() < 0.5:
            self.data[self.synced :] = self.old_tail  # the truncation did not reach the device
        elif self.synced < len(self.data):
            kept = chance.randint(self.synced, len(self.data))
            size = len(self.data)
            del self.data[kept:]
            if chance.random() < 0.3:
                # The size reached the device, the pages did not.
                self.data.extend(bytes(chance.randint(0, size - kept)))
        self.sync()


@dataclass(slots=True)
class Change:
    """A change of a folder's entries that is not on the device: names to set, None for one that is gone."""

    entries: dict[str, Inode | Folder | None]


@dataclass(slots=True, eq=False)
class Folder:
    """A folder: its entries, those on the device, and the changes between them, in order."""

    entries: dict[str, Inode | Folder] = field(default_factory=dict)
    synced: dict[str, Inode | Folder] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def apply(self, changed: dict[str, Inode | Folder | None]) -> None:
        _set(self.entries, changed)
        self.changes.append(Change(changed))

    def sync(self) -> None:
        self.synced = dict(self.entries)
        self.changes.clear()

    def lose_power(self, chance: random.Random) -> None:
        """Keep the entries on the device, and the first changes after them, in order, as a journal would."""
        if self.changes:
            for change in self.changes[: chance.randint(0, len(self.changes))]:
                _set(self.synced, change.entries)
            self.entries = dict(self.synced)
        self.sync()


def _set(entries: dict[str, Inode | Folder], changed: dict[str, Inode | Folder | None]) -> None:
    for name, node in changed.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class FileSystem:
    """A tree of folders on one device, which outlives the processes that use it.

    Attributes:
        locks: Paths of locked files by the process that holds them; a killed process holds none.
        capacity_bytes: Bytes of all files at most: writes beyond fail with ENOSPC.
        failing: Part of the paths whose syncs and writes fail with EIO; None for no failure.
    """

    def __init__(self, chance: random.Random, capacity_bytes: int = ENDLESS_BYTES) -> None:
        self._chance = chance
        self.root = Folder()
        self.capacity_bytes = capacity_bytes
        self.failing: str | None = None
        self.locks: dict[str, object] = {}
        self._descriptors: dict[int, Inode] = {}
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)

    # -- paths

    def find(self, path: str) -> Inode | Folder | None:
        node: Inode | Folder | None = self.root
        for part in path.split("/"):
            if part:
                node = node.entries.get(part) if isinstance(node, Folder) else None
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if isinstance(node, Folder):
            return node
        raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)

    def file(self, path: str) -> Inode:
        node = self.find(path)
        if isinstance(node, Inode):
            return node
        raise _error(errno.ENOENT if node is None else errno.EISDIR, path)

    def set(self, path: str, node: Inode | Folder | None) -> None:
        parent, name = _split(path)
        self.folder(parent).apply({name: node})

    def makedirs(self, path: str) -> None:
        folder = self.root
        for part in filter(None, path.split("/")):
            found = folder.entries.get(part)
            if found is None:
                found = Folder()
                folder.apply({part: found})
            if not isinstance(found, Folder):
                raise _error(errno.EEXIST, path)
            folder = found

    def rename(self, path: str, new_path: str) -> None:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        parent, name = _split(path)
        new_parent, new_name = _split(new_path)
        target = self.folder(new_parent).entries.get(new_name)
        if isinstance(target, Folder) and target.entries:
            raise _error(errno.ENOTEMPTY, new_path)
        if parent == new_parent:
            self.folder(parent).apply({name: None, new_name: node})
        else:
            self.folder(new_parent).apply({new_name: node})
            self.folder(parent).apply({name: None})

    def rmtree(self, path: str) -> None:
        node = self.find(path)
        if isinstance(node, Folder):
            for name in list(node.entries):
                self.rmtree(f"{path}/{name}")
        if node is not None:
            self.set(path, None)

    # -- descriptors

    def describe(self, inode: Inode) -> int:
        """A number for an open file, as the network sees it."""
        number = next(self._numbers)
        self._descriptors[number] = inode
        return number

    def forget(self, descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)

    def read(self, descriptor: int, position: int, size: int) -> bytes:
        return bytes(self._descriptors[descriptor].data[position : position + size])

    # -- faults

    def check(self, path: str) -> None:
        """Raise the error of a failing device."""
        if self.failing is not None and self.failing in path:
            raise _error(errno.EIO, path)

    def check_space(self, path: str, size: int) -> None:
        """Raise ENOSPC if a file cannot grow."""
        if self.used_bytes() + size > self.capacity_bytes:
            raise _error(errno.ENOSPC, path)

    def fill(self, free_bytes: int) -> None:
        """Leave so much space and no more."""
        self.capacity_bytes = 0
        self.capacity_bytes = self.used_bytes() + free_bytes

    def empty(self) -> None:
        """Have space again."""
        self.capacity_bytes = ENDLESS_BYTES

    def used_bytes(self) -> int:
        """Bytes of all files; 0 on an endless device, where nobody counts."""
        if self.capacity_bytes >= ENDLESS_BYTES:
            return 0
        return sum(len(node.data) for node in self.walk() if isinstance(node, Inode))

    def walk(self) -> Iterator[Inode | Folder]:
        """Every file and folder, in the order of creation."""
        pending: list[Inode | Folder] = [self.root]
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, Folder):
                pending.extend(reversed(node.entries.values()))

    def sync(self) -> None:
        """Everything is on the device."""
        for node in self.walk():
            node.sync()

    def lose_power(self) -> None:
        """Keep what is on the device, and of the rest what chance leaves."""
        self.locks.clear()
        self._descriptors.clear()
        self._lose(self.root)

    def _lose(self, folder: Folder) -> None:
        folder.lose_power(self._chance)
        for node in folder.entries.values():
            if isinstance(node, Folder):
                self._lose(node)
            else:
                node.lose_power(self._chance)


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    return parent, name


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
