"""One growing file: reads whole lines through rotation and truncation, from a position that can be stored.

Device, inode and beginning identify a file: a renamed file remains the same file, and its replacement (even with the
same inode) is another file. `file_changes` interprets each look at the file.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, NamedTuple

from headwater.shipping.file_changes import (
    FINGERPRINT_BYTES,
    FileContent,
    FileId,
    FileStatus,
    Fingerprint,
    compare,
    compression_of,
)

READ_BYTES: Final = 256 << 10
REST_BYTES_MAX: Final = 16 << 10
"""Bytes of a file buffered between two turns; further bytes are read again, as there may be thousands of files."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The read position in a file.

    Attributes:
        offset: The first unprocessed byte: the beginning of a line, or of a piece of an oversized line.
        fingerprint: CRC-32 of the first `fingerprint_bytes` at the time of reading.
    """

    device: int
    inode: int
    offset: int
    fingerprint: int
    fingerprint_bytes: int

    @property
    def file_id(self) -> FileId:
        """Identity of the file: device and inode."""
        return self.device, self.inode


class Line(NamedTuple):
    """A line without its terminator, or a piece of a line longer than `line_bytes_max`; `end` is the next's start."""

    text: bytes
    end: int


NO_FINGERPRINT: Final = Fingerprint()


@dataclass(frozen=True, slots=True)
class _Read:
    """The remembered parts of a file's content: the read position, the beginning, and the last bytes before `end`."""

    end: int = 0
    head: Fingerprint = NO_FINGERPRINT
    tail: Fingerprint = NO_FINGERPRINT

    def extended(self, begin: int, data: bytes) -> _Read:
        is_next = begin <= self.head.size <= begin + len(data)
        head = self.head.extended(data[self.head.size - begin :]) if is_next else self.head
        last = data[-FINGERPRINT_BYTES:]
        end = begin + len(data)
        return (
            _Read(end, head, Fingerprint(end - len(last)).extended(last))
            if end > self.end
            else replace(self, head=head)
        )


class FollowedFile:
    """An open file, and how far its lines have been returned.

    Invariants: `position` is the beginning of a line (or piece) that was not returned yet; no line is returned twice,
    unless the file was rewritten or `go_back` was called. The fingerprint belongs to the same content as `position`,
    never to a replacement.
    """

    def __init__(self, path: str, stream: BinaryIO, line_bytes_max: int) -> None:
        self.path = path
        self.position = 0
        self.line_bytes_max = line_bytes_max
        #: How often it began anew.
        self.cuts = 0
        #: The format that it is compressed in: it has no lines then.
        self.compression: str | None = None
        self._stream = stream
        self._rest = b""
        self._read = _Read()
        status = os.fstat(stream.fileno())
        self.device, self.inode = status.st_dev, status.st_ino
        #: What was looked at last; before the first look everything is news.
        self.seen = FileStatus(-1, 0, 0)

    @classmethod
    def open(cls, path: str, known: FilePosition | None, line_bytes_max: int) -> FollowedFile:
        """Open a file at a known position; at its beginning if the file is not the known one.

        Raises:
            OSError: the file does not exist or cannot be read.
        """
        # A pipe that took the file's name meanwhile would not be opened before somebody writes to it.
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb", buffering=0)
        try:
            file = cls(path, stream, line_bytes_max)
            if known is not None and file.is_the_one(known):
                file.position = known.offset
                head = Fingerprint(0, known.fingerprint_bytes, known.fingerprint)
                # An older release, or one that had read less, took less of the beginning.
                more = file._at(head.size, min(FINGERPRINT_BYTES, known.offset) - head.size)
                file._read = _Read(max(known.offset, head.size), head.extended(more))
        except BaseException:
            stream.close()
            raise
        return file

    @property
    def file_id(self) -> FileId:
        """Device and inode, independent of the file's name."""
        return self.device, self.inode

    @property
    def modified_ns(self) -> int:
        """Time of the last modification, in nanoseconds."""
        return os.fstat(self._stream.fileno()).st_mtime_ns

    @property
    def is_removed(self) -> bool:
        """Whether no name refers to the file any longer."""
        return os.fstat(self._stream.fileno()).st_nlink == 0

    @property
    def size(self) -> int:
        """Current size, in bytes."""
        return os.fstat(self._stream.fileno()).st_size

    def is_the_one(self, known: FilePosition) -> bool:
        """Whether a position belongs to this file, and lies within it."""
        return (
            self.file_id == known.file_id
            and self.size >= known.offset
            and Fingerprint(0, known.fingerprint_bytes, known.fingerprint).is_of(self._at(0, known.fingerprint_bytes))
        )

    def position_at(self, offset: int) -> FilePosition:
        """Return the position to store for continuing at `offset`."""
        head = self._read.head
        return FilePosition(self.device, self.inode, offset, head.crc, head.size)

    def go_back(self, offset: int) -> None:
        """Return the data after `offset` again; not allowed while `lines` is running."""
        self.position, self._rest = offset, b""
        # Whether anything follows is to be looked up anew.
        self.seen = FileStatus(-1, 0, 0)

    def trim(self) -> None:
        """Release buffered data above REST_BYTES_MAX until the next read."""
        if len(self._rest) > REST_BYTES_MAX:
            self.go_back(self.position)

    def lines(self, *, is_complete: bool = False) -> Generator[Line]:
        """Yield the lines appended since the last call; a line counts as returned when the next one is requested.

        Args:
            is_complete: The file will not grow further: its last line counts without a terminator.

        Raises:
            OSError: the file cannot be read at `position` plus the buffered bytes.
        """
        # The last call may have been left before its lines were asked for.
        yield from self._whole_lines()
        while True:
            before = self._status()
            end = self.position + len(self._rest)
            if not before.is_news(self.seen) and before.size <= max(end, self._read.end):
                break
            content = self._content(before.size)
            if content is FileContent.OTHER:
                # A last line that had no end is a line: what would have followed is gone.
                rest = self._begin_anew()
                if rest:
                    yield Line(rest, 0)
                continue
            if content is FileContent.SHIFTED:
                self._read = _Read(self._read.end, Fingerprint().extended(self._at(0, self._read.head.size)))
            self.seen = before
            if end == 0:
                end = self._skip_hole()
            chunk = self._at(end, READ_BYTES)
            if not chunk:
                break
            if self._content(self.size) is FileContent.SAME or not self._at(end, len(chunk)).startswith(chunk):
                # Written anew since then, it held this before: the next look begins anew.
                self._read = self._read.extended(end, chunk)
            else:
                # It had been written anew before it was read: the chunk is from the middle of what it holds now.
                continue
            if end == 0 and (compression := compression_of(chunk)) is not None:
                self.compression = compression
                return
            self._rest += chunk
            yield from self._whole_lines()
        if is_complete and self._rest:
            line = Line(self._rest, self.position + len(self._rest))
            self.position, self._rest = line.end, b""
            yield line

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _status(self) -> FileStatus:
        # The clock first: what is written after it is news to the next look.
        looked_ns = time.time_ns()
        status = os.fstat(self._stream.fileno())
        return FileStatus(status.st_size, status.st_mtime_ns, looked_ns)

    def _content(self, size: int) -> FileContent:
        read = self._read
        head = self._at(0, read.head.size)
        is_tail_same = read.tail.is_of(self._at(read.tail.begin, read.tail.size))
        return compare(size, read.end, head, read.head.is_of(head), is_tail_same)

    def _begin_anew(self) -> bytes:
        rest, self._rest = self._rest, b""
        self.position, self._read = 0, _Read()
        self.seen = FileStatus(-1, 0, 0)
        self.cuts += 1
        return rest

    def _skip_hole(self) -> int:
        """Move to the first written byte if the file begins with a hole; returns that offset."""
        try:
            data = os.lseek(self._stream.fileno(), 0, os.SEEK_DATA)
        except OSError as error:
            # Nothing but a hole: nothing was written yet. Otherwise a file system that does not know its holes.
            return self.size if error.errno == errno.ENXIO else 0
        # Data begins with a block of the file system.
        while data and (block := self._at(data, 4096)) and not block.strip(b"\0"):
            data += len(block)
        if data:
            block = self._at(data, 4096)
            self.position = data + len(block) - len(block.lstrip(b"\0"))
            self._read = _Read().extended(0, self._at(0, FINGERPRINT_BYTES))
        return self.position

    def _at(self, begin: int, size: int) -> bytes:
        return os.pread(self._stream.fileno(), size, begin) if size > 0 else b""

    def _whole_lines(self) -> Iterator[Line]:
        begin = 0
        rest = self._rest
        size_max = self.line_bytes_max
        try:
            while True:
                end = rest.find(b"\n", begin)
                size = (len(rest) if end < 0 else end) - begin
                if size > size_max:
                    line = Line(rest[begin : begin + size_max], self.position + size_max)
                    begin += size_max
                elif end < 0:
                    return
                else:
                    line = Line(rest[begin:end], self.position + size + 1)
                    begin = end + 1
                self.position = line.end
                yield line
        finally:
            self._rest = rest[begin:]
