"""One growing file: whole lines out of it, through rotation and truncation, from a position that can be kept.

A file is known by its device, its inode and how it begins, so that one which was renamed is still the same and one that
took its place (even with its inode) is another.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

FileId = tuple[int, int]
"""Device and inode: of all files that are there (or open) one has it, whatever it is called."""
READ_BYTES: Final = 256 << 10
FINGERPRINT_BYTES: Final = 256
"""How much of the beginning tells two files apart."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """How far a file has been read.

    Attributes:
        offset: The first byte that is not dealt with: a line's beginning, or a piece's of a line that is too long.
        fingerprint: CRC-32 of the first `fingerprint_bytes`.
    """

    device: int
    inode: int
    offset: int
    fingerprint: int
    fingerprint_bytes: int

    @property
    def file_id(self) -> FileId:
        """The file it belongs to."""
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end, or a piece of one longer than `line_bytes_max`; `end` is where the next begins."""

    text: bytes
    end: int


class FollowedFile:
    """An open file and how far its lines have been handed out.

    Invariant: `position` is the beginning of a line (or piece) that was not handed out yet; what was handed out is
    never handed out again, unless the file was cut shorter.
    """

    def __init__(self, path: str, stream: BinaryIO, line_bytes_max: int) -> None:
        self.path = path
        self.position = 0
        #: How often it began anew.
        self.cuts = 0
        self._stream = stream
        self._line_bytes_max = line_bytes_max
        self._rest = b""
        status = os.fstat(stream.fileno())
        self.device, self.inode = status.st_dev, status.st_ino

    @classmethod
    def open(cls, path: str, known: FilePosition | None, line_bytes_max: int, *, from_end: bool) -> FollowedFile:
        """Open a file where it was left off; at its end or its beginning if it is not the file that is known.

        Raises:
            OSError: it is not there or cannot be read.
        """
        file = cls(path, open(path, "rb", buffering=0), line_bytes_max)  # noqa: SIM115 (closed by `close`)
        if known is not None and file.is_the_one(known):
            file.position = known.offset
        elif from_end:
            file.position = file.size
        return file

    @property
    def file_id(self) -> FileId:
        """Which file it is, whatever it is called."""
        return self.device, self.inode

    @property
    def modified_ns(self) -> int:
        """When it was last written to."""
        return os.fstat(self._stream.fileno()).st_mtime_ns

    @property
    def is_removed(self) -> bool:
        """Whether no name is left that leads to it."""
        return os.fstat(self._stream.fileno()).st_nlink == 0

    @property
    def size(self) -> int:
        """Its size now, in bytes."""
        return os.fstat(self._stream.fileno()).st_size

    def is_the_one(self, known: FilePosition) -> bool:
        """Whether a position belongs to this file, and still lies within it."""
        return (
            self.file_id == known.file_id
            and self.size >= known.offset
            and self._fingerprint(known.fingerprint_bytes) == known.fingerprint
        )

    def position_at(self, offset: int) -> FilePosition:
        """What to keep, so that reading goes on at `offset`."""
        size = min(FINGERPRINT_BYTES, offset)
        return FilePosition(self.device, self.inode, offset, self._fingerprint(size), size)

    def lines(self, *, is_complete: bool = False) -> Iterator[Line]:
        """What was appended since the last call, line by line; each is handed out when the next one is asked for.

        Args:
            is_complete: The file will not grow any more: its last line counts though it has no end.
        """
        if self.size < self.position + len(self._rest):
            # It was cut (copytruncate): what it holds now is new.
            self.position, self._rest = 0, b""
            self.cuts += 1
        # The last call may have been left before its lines were asked for.
        yield from self._whole_lines()
        while chunk := os.pread(self._stream.fileno(), READ_BYTES, self.position + len(self._rest)):
            self._rest += chunk
            yield from self._whole_lines()
        if is_complete and self._rest:
            line = Line(self._rest, self.position + len(self._rest))
            self.position, self._rest = line.end, b""
            yield line

    def close(self) -> None:
        """Let go of the file."""
        self._stream.close()

    def _whole_lines(self) -> Iterator[Line]:
        begin = 0
        rest = self._rest
        try:
            while True:
                end = rest.find(b"\n", begin)
                size = (len(rest) if end < 0 else end) - begin
                if size > self._line_bytes_max:
                    line = Line(rest[begin : begin + self._line_bytes_max], self.position + self._line_bytes_max)
                    begin += self._line_bytes_max
                elif end < 0:
                    return
                else:
                    line = Line(rest[begin:end], self.position + size + 1)
                    begin = end + 1
                self.position = line.end
                yield line
        finally:
            self._rest = rest[begin:]

    def _fingerprint(self, size: int) -> int:
        return zlib.crc32(os.pread(self._stream.fileno(), size, 0))
