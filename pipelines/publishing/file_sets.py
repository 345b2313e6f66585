"""The files of a source: listed as Spark lists them, and identified by their sizes and checksums."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError, join, walk
from headwater.pipelines.publishing.contents import FileContents, Files, changed_files
from headwater.pipelines.publishing.errors import PublishRefused

__all__ = ["FILES_MAX", "FileSet", "find_files", "hadoop_literal"]

FILES_MAX: Final = 100_000  # of one publish: Spark plans them all at once
READ_BYTES: Final = 1 << 20
#: SHA-256 runs outside the interpreter's lock.
READERS: Final = 4
_PATTERN: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files below a folder, in order of their names, which are relative to the folder.

    `modified_at` has the times of their last changes, by name. `pattern` selects files of the folder itself.
    """

    files: FileSystem
    folder: str
    contents: tuple[FileContents, ...]
    modified_at: Mapping[str, float]
    pattern: str | None

    def paths(self) -> list[str]:
        """The files' whole paths."""
        return [join(self.folder, file.name) for file in self.contents]

    def checksummed(self, on_bytes: Callable[[int], None]) -> Files:
        """The same files with checksums; `on_bytes` is called with the number of bytes read since its last call."""

        def read(file: FileContents) -> FileContents:
            return FileContents(file.name, file.size, self._sha256(join(self.folder, file.name), on_bytes))

        with ThreadPoolExecutor(READERS, thread_name_prefix="checksums") as readers:
            return Files(tuple(readers.map(read, self.contents)))

    def _sha256(self, path: str, on_bytes: Callable[[int], None]) -> str:
        found = hashlib.sha256()
        with self.files.open(path) as file:
            while data := file.read(READ_BYTES):
                found.update(data)
                on_bytes(len(data))
        return found.hexdigest()

    def changed(self) -> str | None:
        """What has changed since: another set of files, or of sizes; None for nothing."""
        now = list(_contents(self.files, self.folder, self.pattern))
        times = dict(now)
        later = (file.name for file, _ in now if self.modified_at.get(file.name) not in (None, times[file]))
        written = next((f"{name} was written again" for name in later), None)
        return changed_files(self.contents, [file for file, _ in now]) or written


def find_files(files: FileSystem, path: str) -> FileSet:
    """The files at a path: one file, a folder with those below it, or a pattern such as `in/*.json` in a folder.

    Raises PublishRefused, FileSystemError.
    """
    entry = files.entry(path)
    if entry is not None and entry.is_folder:
        folder, pattern = path.rstrip("/") or "/", None
    elif entry is not None or _PATTERN.search(posixpath.basename(path)):
        folder, name = posixpath.split(path)
        folder, pattern = folder or ".", name
        if entry is not None:
            pattern = fnmatch_literal(name)
    else:
        raise PublishRefused(f"{path}: there is no such file or folder")
    found: list[FileContents] = []
    times: dict[str, float] = {}
    for file, modified_at in _contents(files, folder, pattern):
        found.append(file)
        times[file.name] = modified_at
        if len(found) > FILES_MAX:
            raise PublishRefused(f"{path} has more than {FILES_MAX:,} files; publish its folders one by one")
    if not found:
        raise PublishRefused(f"{path}: there are no files; names that begin with '_' or '.' do not count")
    return FileSet(files, folder, tuple(found), times, pattern)


def fnmatch_literal(name: str) -> str:
    """A pattern that matches this name only.

    >>> fnmatch.fnmatchcase("a[1].json", fnmatch_literal("a[1].json"))
    True
    """
    return re.sub(r"([*?\[])", r"[\1]", name)


def hadoop_literal(path: str) -> str:
    r"""A path for Spark's reader, which otherwise takes some characters for a pattern.

    >>> hadoop_literal("/in/a[1]{b}.json")
    '/in/a\\[1\\]\\{b\\}.json'
    """
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def _contents(files: FileSystem, folder: str, pattern: str | None) -> Iterator[tuple[FileContents, float]]:
    if pattern is None:
        try:
            entries = list(walk(files, folder))
        except FileSystemError:
            raise
        except OSError as error:
            raise FileSystemError(f"{folder}: {error.strerror or error}") from None
    else:
        entries = [(entry.name, entry) for entry in files.list(folder) if not entry.is_folder]
        entries = [(name, entry) for name, entry in entries if fnmatch.fnmatchcase(name, pattern)]
    for name, entry in sorted(entries):
        if not any(_is_hidden(part) for part in name.split("/")):
            yield FileContents(name, entry.size, ""), entry.modified_at


def _is_hidden(name: str) -> bool:
    """Whether Spark passes a file or folder over: partition folders such as `_day=1` count.

    >>> [_is_hidden(name) for name in ("_SUCCESS", ".part.crc", "_day=1", "a.json")]
    [True, True, False, False]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
