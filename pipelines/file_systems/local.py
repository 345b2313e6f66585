"""Files of this machine. New names and contents are synced to the device before a method returns."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from headwater.pipelines.file_systems.file_system import Entry, FileSystemError, read_whole, unused_name_beside

__all__ = ["LocalFiles", "local_path"]


def local_path(path: str) -> str:
    """Return the path of a `file:` URL, or the path itself. As in Hadoop's paths, `%` and `#` stand for themselves.

    >>> local_path("file:///lake/100%25 #1"), local_path("file:/lake"), local_path("/lake")
    ('/lake/100%25 #1', '/lake', '/lake')
    """
    if not path.startswith("file:"):
        return path
    inside = path.removeprefix("file:")
    return f"/{inside[2:].partition('/')[2]}" if inside.startswith("//") else inside


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The local file system. `link` and `rename` of the kernel make `create` and `rename` atomic."""

    is_atomic: bool = True

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with _explained(path):
            try:
                with open(local_path(path), "rb") as file:
                    return read_whole(path, file)
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for sequential reading."""
        with _explained(path):
            file = open(local_path(path), "rb")  # noqa: SIM115 - closed below
        with file:
            yield file

    def create(self, path: str, data: bytes) -> bool:
        """Write a new file; False if the path exists."""
        target = local_path(path)
        with _explained(path):
            temporary = self._written(target, data)
            try:
                os.link(temporary, target)  # unlike a rename, a link never replaces a file
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
            _sync(os.path.dirname(target))
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, in place of one that exists."""
        target = local_path(path)
        with _explained(path):
            os.replace(self._written(target, data), target)
            _sync(os.path.dirname(target))

    def _written(self, target: str, data: bytes) -> str:
        """Write a file of its own beside the target, and return its path."""
        _make(os.path.dirname(target))
        temporary = unused_name_beside(target)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        """Write a large file."""
        target = local_path(path)
        with _explained(path):
            _make(os.path.dirname(target))
            file = open(target, "wb")  # noqa: SIM115 - closed below
        with _full_named(path), file:
            yield file
            with _explained(path):
                file.flush()
                os.fsync(file.fileno())
        with _explained(path):
            _sync(os.path.dirname(target))

    def entry(self, path: str) -> Entry | None:
        """Describe a file or folder; None if missing."""
        with _explained(path):
            try:
                status = os.stat(local_path(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        is_folder = os.path.isdir(local_path(path))
        name = os.path.basename(local_path(path).rstrip("/"))
        return Entry(name, is_folder, 0 if is_folder else status.st_size, status.st_mtime)

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder by name."""
        found = []
        with _explained(folder):
            try:
                with os.scandir(local_path(folder)) as entries:
                    for each in entries:
                        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                            status = each.stat()
                            is_folder = each.is_dir()
                            size = 0 if is_folder else status.st_size
                            found.append(Entry(each.name, is_folder, size, status.st_mtime))
            except FileNotFoundError:
                return []
        return sorted(found, key=lambda each: each.name)

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to an unused name."""
        old, new = local_path(source), local_path(target)
        with _explained(source):
            if not os.path.lexists(old):
                raise FileNotFoundError(f"there is no {source}")
            _make(os.path.dirname(new))
            if os.path.isdir(old):
                if os.path.lexists(new):
                    raise FileExistsError(f"{target} exists already")
                os.rename(old, new)  # of a folder, this replaces an empty folder at most
            else:
                try:
                    os.link(old, new)
                except FileExistsError:
                    raise FileExistsError(f"{target} exists already") from None
                os.unlink(old)
            _sync(os.path.dirname(new))

    def make_folder(self, path: str) -> None:
        """Make a folder with those above it."""
        with _explained(path):
            _make(local_path(path))

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content."""
        target = local_path(path)
        with _explained(path):
            if os.path.isdir(target) and not os.path.islink(target):
                shutil.rmtree(target)
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Name the path in a failure of the operating system; errors that callers distinguish pass as they are."""
    try:
        yield
    except (FileSystemError, FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise FileSystemError(f"{path} cannot be used: {error.strerror or error}") from error


@contextlib.contextmanager
def _full_named(path: str) -> Iterator[None]:
    """Name the path in the failures that only writing has: whoever writes may have other errors of the system."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FileSystemError(f"{path} cannot be written: {os.strerror(error.errno)}") from error


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def _sync(folder: str) -> None:
    """Sync a folder: a new name is durable only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
