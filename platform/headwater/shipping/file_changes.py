"""What a look at a followed file means: nothing new, more of the same, or other content. No file is touched here.

A file is told from another one by a fingerprint of its beginning. A file that is cut and written anew keeps its inode,
and may be longer than before when it is looked at next: its size alone says nothing.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

FileId = tuple[int, int]
"""Device and inode: of all files that are there (or open) one has it, whatever it is called."""
FINGERPRINT_BYTES: Final = 1024
"""How much of the beginning tells two files apart: as much as Filebeat takes."""
SETTLED_NS: Final = 2_000_000_000
"""A time of modification says nothing about writes this soon after it: some file systems count in steps of 2 s."""
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
    """What `stat` says of a file, and when it was asked (wall clock)."""

    size: int
    modified_ns: int
    looked_ns: int

    def is_news(self, seen: FileStatus) -> bool:
        """Whether the file may hold something else than when `seen` was taken.

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
        """Whether a file that was closed is to be opened again: once more when it is settled, if it was not.

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
        """Whether a later write would show in the time of modification."""
        return abs(self.looked_ns - self.modified_ns) >= SETTLED_NS

    def _differs(self, seen: FileStatus) -> bool:
        return (self.size, self.modified_ns) != (seen.size, seen.modified_ns)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The CRC-32 of `size` bytes that begin at `begin`."""

    begin: int = 0
    size: int = 0
    crc: int = 0

    def extended(self, data: bytes) -> Fingerprint:
        """With the bytes that follow, up to `FINGERPRINT_BYTES`.

        >>> Fingerprint().extended(b"ab").extended(b"c") == Fingerprint().extended(b"abc")
        True
        """
        more = data[: FINGERPRINT_BYTES - self.size]
        return Fingerprint(self.begin, self.size + len(more), zlib.crc32(more, self.crc))

    def is_of(self, data: bytes) -> bool:
        """Whether it is the fingerprint of these bytes."""
        return len(data) == self.size and zlib.crc32(data) == self.crc


class FileContent(enum.Enum):
    """What a file holds, compared with what was read of it."""

    SAME = "what was read is still there; there may be more"
    SHIFTED = "it was cut, and its writer went on where it was: what was read is a hole, what follows is new"
    OTHER = "it was written anew"


def compare(size: int, read_end: int, head: bytes, is_head_same: bool, is_tail_same: bool) -> FileContent:
    r"""Decide what became of a file.

    Args:
        size: Its size now.
        read_end: How far it was read.
        head: Its beginning, as long as the fingerprint is.
        is_head_same: The beginning has the fingerprint that it had.
        is_tail_same: So have the bytes before `read_end`.

    >>> compare(100, 60, b"2026-11", is_head_same=True, is_tail_same=True)
    <FileContent.SAME: 'what was read is still there; there may be more'>
    >>> compare(59, 60, b"2026-11", is_head_same=True, is_tail_same=True).name
    'OTHER'
    >>> compare(100, 60, b"2026-12", is_head_same=False, is_tail_same=False).name
    'OTHER'

    A writer that does not append goes on at its old offset after the cut; the file is a hole up to there:

    >>> compare(100, 60, bytes(7), is_head_same=False, is_tail_same=False).name
    'SHIFTED'
    """
    if size < read_end:
        return FileContent.OTHER
    if is_head_same and is_tail_same:
        return FileContent.SAME
    return FileContent.SHIFTED if head and not head.strip(b"\0") else FileContent.OTHER


def compression_of(head: bytes) -> str | None:
    r"""The format of a compressed file that begins so.

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
    """A file that is open: whether it may be closed for another one, and when it was last written to."""

    file_id: FileId
    modified_ns: int
    is_idle: bool


def make_room(
    wanted: Iterable[tuple[FileId, int]], opened: Sequence[OpenFile], files_max: int
) -> tuple[list[FileId], list[FileId]]:
    """Decide which files to close and which to open.

    What was written to last is opened first. What has nothing to send is closed, that which was not written to for
    longest first; what has is not.

    Args:
        wanted: Files with something to send and when they were last written to.

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
