"""Interprets the state of a followed file: unchanged, appended, or replaced. Pure: no file is accessed.

A fingerprint of its beginning identifies a file's content. A file that is truncated and rewritten keeps its inode, and
may be longer than before at the next look: its size alone is not sufficient.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

FileId = tuple[int, int]
"""Device and inode: unique among all existing and open files, whatever their names."""
FINGERPRINT_BYTES: Final = 1024
"""Bytes of a file's beginning that identify it, as in Filebeat."""
SETTLED_NS: Final = 2_000_000_000
"""Time after a modification within which a later write may be invisible: some file systems have steps of 2 s."""
COMPRESSED: Final[Sequence[tuple[str, bytes]]] = (
    ("gzip", b"\x1f\x8b\x08"),
    ("compress", b"\x1f\x9d"),
    ("zstd", b"\x28\xb5\x2f\xfd"),
    ("xz", b"\xfd7zXZ\x00"),
    ("bzip2", b"BZh"),
    ("lz4", b"\x04\x22\x4d\x18"),
    ("snappy", b"\xff\x06\x00\x00sNaPpY"),
    ("zip", b"PK\x03\x04"),
)
_BZIP2_BLOCK: Final = b"1AY&SY"


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file's size and modification time from `stat`, and the time of the call (wall clock)."""

    size: int
    modified_ns: int
    looked_ns: int

    def is_news(self, seen: FileStatus) -> bool:
        """Whether the file's content may have changed since `seen`.

        >>> second = 1_000_000_000
        >>> seen = FileStatus(10, 5 * second, looked_ns=60 * second)
        >>> FileStatus(10, 5 * second, looked_ns=99 * second).is_news(seen)
        False
        >>> FileStatus(10, 61 * second, looked_ns=99 * second).is_news(seen)  # same size, written to
        True
        >>> FileStatus(10, 5 * second, 99 * second).is_news(FileStatus(10, 5 * second, 5 * second))  # too soon to know
        True
        """
        return not seen.is_settled or self._differs(seen)

    def is_due(self, seen: FileStatus) -> bool:
        """Whether a closed file must be opened again: it changed, or it has settled since `seen`, which had not.

        >>> second = 1_000_000_000
        >>> seen = FileStatus(10, 5 * second, looked_ns=5 * second)
        >>> FileStatus(10, 5 * second, looked_ns=6 * second).is_due(seen)
        False
        >>> FileStatus(10, 5 * second, looked_ns=7 * second).is_due(seen)
        True
        """
        return self._differs(seen) or (self.is_settled and not seen.is_settled)

    @property
    def is_settled(self) -> bool:
        """Whether a later write would change the modification time."""
        return abs(self.looked_ns - self.modified_ns) >= SETTLED_NS

    def _differs(self, seen: FileStatus) -> bool:
        return (self.size, self.modified_ns) != (seen.size, seen.modified_ns)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The CRC-32 of `size` bytes, starting at `begin`."""

    begin: int = 0
    size: int = 0
    crc: int = 0

    def extended(self, data: bytes) -> Fingerprint:
        """Return the fingerprint extended by the bytes that follow, up to `FINGERPRINT_BYTES`.

        >>> Fingerprint().extended(b"ab").extended(b"c") == Fingerprint().extended(b"abc")
        True
        """
        more = data[: FINGERPRINT_BYTES - self.size]
        return Fingerprint(self.begin, self.size + len(more), zlib.crc32(more, self.crc))

    def is_of(self, data: bytes) -> bool:
        """Whether these bytes have this fingerprint."""
        return len(data) == self.size and zlib.crc32(data) == self.crc


class FileContent(enum.Enum):
    """A file's content, compared with the part already read."""

    SAME = "what was read is still there; there may be more"
    SHIFTED = "it was cut, and its writer went on where it was: what was read is a hole, what follows is new"
    OTHER = "it was written anew"


def compare(size: int, read_end: int, head: bytes, is_head_same: bool, is_tail_same: bool) -> FileContent:
    r"""Compare a file with the part already read.

    Args:
        size: The file's current size.
        read_end: End of the part already read.
        head: The file's beginning, as long as the fingerprint.
        is_head_same: The beginning still has the same fingerprint.
        is_tail_same: The bytes before `read_end` still have the same fingerprint.

    >>> compare(100, 60, b"2026-11", is_head_same=True, is_tail_same=True)
    <FileContent.SAME: 'what was read is still there; there may be more'>
    >>> compare(59, 60, b"2026-11", is_head_same=True, is_tail_same=True).name
    'OTHER'
    >>> compare(100, 60, b"2026-12", is_head_same=False, is_tail_same=False).name
    'OTHER'

    A writer that does not append continues at its old offset after the truncation; the file is a hole up to that
    offset:

    >>> compare(100, 60, bytes(7), is_head_same=False, is_tail_same=False).name
    'SHIFTED'
    """
    if size < read_end:
        return FileContent.OTHER
    if is_head_same and is_tail_same:
        return FileContent.SAME
    return FileContent.SHIFTED if head and not head.strip(b"\0") else FileContent.OTHER


def compression_of(head: bytes) -> str | None:
    r"""Return the compression format of a file that begins with `head`; None if it is not compressed.

    >>> compression_of(b"\x1f\x8b\x08\x00rest")
    'gzip'
    >>> compression_of(b"BZh is how this line begins")
    >>> compression_of(b"GET /index.html")
    """
    for name, magic in COMPRESSED:
        if head.startswith(magic):
            return name if name != "bzip2" or head[4:10] == _BZIP2_BLOCK else None
    return None


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file: whether it may be closed to make room, and its modification time."""

    file_id: FileId
    modified_ns: int
    is_idle: bool


def make_room(
    wanted: Iterable[tuple[FileId, int]], opened: Sequence[OpenFile], files_max: int
) -> tuple[list[FileId], list[FileId]]:
    """Decide which files to close and which to open.

    The files modified last are opened first. Idle files are closed, the file modified least recently first; busy files
    are not closed.

    Args:
        wanted: Files with unsent data, and their modification times.

    >>> idle, busy = OpenFile((1, 1), 10, is_idle=True), OpenFile((1, 2), 5, is_idle=False)
    >>> make_room([((1, 3), 7), ((1, 4), 9)], [idle, busy], files_max=2)
    ([(1, 1)], [(1, 4)])
    >>> make_room([((1, 3), 7), ((1, 4), 9)], [idle, busy], files_max=9)
    ([], [(1, 4), (1, 3)])
    """
    newest_first = [file_id for file_id, _ in sorted(wanted, key=lambda file: file[1], reverse=True)]
    idle = sorted((file for file in opened if file.is_idle), key=lambda file: file.modified_ns)
    free = max(0, files_max - len(opened))
    opening = newest_first[: free + len(idle)]
    return [file.file_id for file in idle[: max(0, len(opening) - free)]], opening
