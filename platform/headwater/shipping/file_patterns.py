"""The files that match a shipper's patterns, and the current path of a renamed file."""

from __future__ import annotations

import functools
import glob
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate

from headwater.shipping.file_changes import FileId, FileStatus


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A regular file, with its status at lookup."""

    file_id: FileId
    status: FileStatus


class FilePatterns:
    """Paths, or patterns of the shell (`*`, `?`, `[...]`, `**`), minus excluded ones.

    As in a shell, a name that begins with a dot matches only a pattern that begins with a dot, and `**` does not follow
    symbolic links, which could form a cycle. An existing file with brackets in its name takes precedence over the
    pattern.

    Args:
        excluded: Patterns over whole paths, or over names if the pattern contains no `/`.
    """

    def __init__(self, patterns: Sequence[str], excluded: Sequence[str] = ()) -> None:
        self._patterns = [os.path.abspath(pattern) for pattern in patterns]
        self._excluded = [(os.path.abspath(pattern) if "/" in pattern else pattern) for pattern in excluded]

    def files(self) -> dict[str, NamedFile]:
        """Return every regular file that currently matches."""
        found: dict[str, NamedFile] = {}
        for pattern in self._patterns:
            for path in _paths(pattern):
                if path in found or self._is_excluded(path):
                    continue
                looked_ns = time.time_ns()
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # it went away, or is not ours to see: `mistakes` tells
                if stat.S_ISREG(status.st_mode):
                    looked = FileStatus(status.st_size, status.st_mtime_ns, looked_ns)
                    found[path] = NamedFile((status.st_dev, status.st_ino), looked)
        return found

    def mistakes(self) -> dict[str, str]:
        """Return the patterns that currently match no file, each with a sentence that explains why."""
        sentences = {pattern: _mistake(pattern) for pattern in self._patterns}
        return {pattern: sentence for pattern, sentence in sentences.items() if sentence is not None}

    def match(self, path: str) -> bool:
        """Whether a path matches, whether or not the file exists."""
        is_named = any(path == pattern or _match(path.split("/"), pattern.split("/")) for pattern in self._patterns)
        return is_named and not self._is_excluded(path)

    def _is_excluded(self, path: str) -> bool:
        return any(
            _match(path.split("/"), pattern.split("/")) if "/" in pattern else _matcher(pattern)(os.path.basename(path))
            for pattern in self._excluded
        )


def one_name_each(files: Mapping[str, NamedFile]) -> dict[FileId, str]:
    """Return one name for each file; a regular name takes precedence over a symbolic link."""
    names: dict[FileId, str] = {}
    for path, file in files.items():
        if file.file_id not in names or os.path.islink(names[file.file_id]):
            names[file.file_id] = path
    return names


@dataclass(frozen=True, slots=True)
class Folder:
    """The regular files of a folder by inode."""

    device: int
    paths: Mapping[int, str]

    @classmethod
    def read(cls, path: str) -> Folder | None:
        """Read a folder; None if it cannot be read, which gives no information about its files."""
        try:
            with os.scandir(path) as entries:
                paths = {entry.inode(): entry.path for entry in entries if entry.is_file(follow_symlinks=False)}
            return cls(os.stat(path).st_dev, paths)
        except OSError:
            return None


def _paths(pattern: str) -> list[str]:
    """Return the candidate paths of a pattern, in order."""
    if not glob.has_magic(pattern):
        return [pattern]
    parts = pattern.split("/")[1:]
    literal = [pattern] if os.path.lexists(pattern) else []
    return literal + sorted(set(_expand("", parts)) - set(literal))


def _expand(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths below a folder (given without a final `/`) that match the remaining parts of a pattern."""
    part, others = parts[0], parts[1:]
    if part == "**":
        # At the end it stands for files at any depth.
        yield from _expand(folder, others or ["*"])
        for name in _names(folder, lambda entry: entry.is_dir(follow_symlinks=False)):
            if not name.startswith("."):
                yield from _expand(f"{folder}/{name}", parts)
        return
    if not glob.has_magic(part):
        names = [part]
    else:
        matches = _matcher(part)
        is_wanted = (lambda entry: entry.is_dir()) if others else _is_any
        names = [name for name in _names(folder, is_wanted) if matches(name)]
    for name in names:
        path = f"{folder}/{name}"
        if not others:
            yield path
        elif os.path.isdir(path):
            yield from _expand(path, others)


def _names(folder: str, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    try:
        with os.scandir(folder or "/") as entries:
            return [entry.name for entry in entries if is_wanted(entry)]
    except OSError:
        return []


def _is_any(_entry: os.DirEntry[str]) -> bool:
    return True


@functools.lru_cache(maxsize=1000)
def _matcher(part: str) -> Callable[[str], bool]:
    """Return a predicate for names that match one part of a pattern."""
    expression = re.compile(translate(part))
    if part.startswith("."):
        return lambda name: expression.match(name) is not None
    return lambda name: not name.startswith(".") and expression.match(name) is not None


def _match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        rest = pattern[1:] or ["*"]
        if _match(parts, rest):
            return True
        return bool(parts) and not parts[0].startswith(".") and _match(parts[1:], pattern)
    return bool(parts) and _matcher(pattern[0])(parts[0]) and _match(parts[1:], pattern[1:])


def _mistake(pattern: str) -> str | None:
    paths = _paths(pattern)
    reason = f"no file matches {pattern}"
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            reason = f"{path} cannot be read: {error.strerror}"
            continue
        if stat.S_ISREG(status.st_mode):
            return None
        reason = f"{path} is a folder: name its files" if stat.S_ISDIR(status.st_mode) else f"{path} is no regular file"
    return reason
