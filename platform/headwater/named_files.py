"""Which files the patterns of a shipper name now, and where in a folder a file went that lost its name."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headwater.followed_file import FileId


class FilePatterns:
    """Paths, or patterns of the shell (`*`, `?`, `[...]`, `**`)."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [os.path.abspath(pattern) for pattern in patterns]

    def files(self) -> dict[str, FileId]:
        """Every regular file that has such a name now."""
        found: dict[str, FileId] = {}
        for pattern in self._patterns:
            for path in sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]:
                try:
                    status = os.stat(path)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    found[path] = (status.st_dev, status.st_ino)
        return found

    def match(self, path: str) -> bool:
        """Whether a file of this path, there or not, is meant."""
        return any(path == pattern or _match(path.split("/"), pattern.split("/")) for pattern in self._patterns)


def one_name_each(files: Mapping[str, FileId]) -> dict[FileId, str]:
    """The name of each file: its own rather than that of a symbolic link to it."""
    names: dict[FileId, str] = {}
    for path, file_id in files.items():
        if file_id not in names or os.path.islink(names[file_id]):
            names[file_id] = path
    return names


@dataclass(frozen=True, slots=True)
class Folder:
    """The regular files of a folder by their inodes."""

    device: int
    paths: Mapping[int, str]

    @classmethod
    def read(cls, path: str) -> Folder | None:
        """None if it cannot be read: that says nothing about its files."""
        try:
            with os.scandir(path) as entries:
                paths = {entry.inode(): entry.path for entry in entries if entry.is_file(follow_symlinks=False)}
            return cls(os.stat(path).st_dev, paths)
        except OSError:
            return None


def _match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_match(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match(parts[1:], pattern[1:])
