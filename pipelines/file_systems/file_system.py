"""What Headwater asks of a file system, in the terms that decide whether a commit is single.

A path is what a user gives: an absolute path of this machine, or a URL (`file:///lake`, `hdfs://namenode/lake`,
`s3a://bucket/lake`). `opening.file_system` finds the file system of a path.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

__all__ = [
    "READ_BYTES_MAX",
    "Entry",
    "FileSystem",
    "FileSystemError",
    "UnavailableError",
    "join",
    "read_whole",
    "unused_name_beside",
    "walk",
]

#: Bytes of a file that `FileSystem.read` reads into memory; a larger file is refused.
READ_BYTES_MAX = 64 * 1024 * 1024


class FileSystemError(OSError):
    """A file system cannot be used: unreachable, in safe mode, or without rights. The message is one line."""


class UnavailableError(FileSystemError):
    """A file system did not answer, or could not do it, for as long as was waited: it may do so later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder. `size` in bytes is 0 for a folder; `modified_at` in seconds since 1970."""

    name: str
    is_folder: bool
    size: int
    modified_at: float


class FileSystem(Protocol):
    """A file system. Instances can be pickled: tasks on other machines use them, too.

    Methods raise FileSystemError (with the path, the cause and a remedy), or the OSError subclass that they name.
    """

    @property
    def is_atomic(self) -> bool:
        """Whether `create` and `rename` are atomic and never replace a file, even against other machines.

        Object stores have no rename: there a commit is single only as long as its writer holds a lock.
        """

    def read(self, path: str) -> bytes | None:
        """Return the content of a file of at most READ_BYTES_MAX bytes; None if there is none."""

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for sequential reading. Raises FileNotFoundError."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file, durably, whole or not at all; False if the path exists. Folders above are made."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, durably; a reader sees the former content or the new. Folders above are made."""

    def writer(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a large file; it is whole and durable once the context has ended. Replaces a file; folders are made.

        After an error within the context, the file may be there in part: the caller deletes it.
        """

    def entry(self, path: str) -> Entry | None:
        """Describe a file or folder; None if missing."""

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder by name; empty if it is missing."""

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to an unused name. The folders above the target are made.

        Raises FileNotFoundError (no source) and FileExistsError (the target exists).
        """

    def make_folder(self, path: str) -> None:
        """Make a folder with those above it, if missing."""

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""


def read_whole(path: str, file: BinaryIO) -> bytes:
    """Return the content of an opened file. Raises FileSystemError for one of more than READ_BYTES_MAX bytes."""
    data = file.read(READ_BYTES_MAX + 1)
    if len(data) > READ_BYTES_MAX:
        raise FileSystemError(f"{path} is larger than {READ_BYTES_MAX:,} bytes")
    return data


def unused_name_beside(path: str) -> str:
    """Return a path for a file that will be renamed to `path`. Spark and Hive skip names with a dot.

    >>> unused_name_beside("hdfs://nn/lake/plan.json")  # doctest: +ELLIPSIS
    'hdfs://nn/lake/.plan.json....new'
    """
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.{uuid.uuid4().hex}.new")


def join(path: str, *names: str) -> str:
    """Return a path below another.

    >>> join("hdfs://nn/lake/", "flights", "part-0.parquet")
    'hdfs://nn/lake/flights/part-0.parquet'
    """
    return posixpath.join(path, *names)


def walk(files: FileSystem, folder: str, below: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield every file below a folder, with its path relative to the folder, in order."""
    for entry in files.list(join(folder, below) if below else folder):
        relative = posixpath.join(below, entry.name)
        if entry.is_folder:
            yield from walk(files, folder, relative)
        else:
            yield relative, entry
