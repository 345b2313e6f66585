"""The segments of a log, in offset order."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from headwater.logtier.log.segments.segment import LogSegment


class LogSegments(Sequence[LogSegment]):
    """What a log consists of, from its oldest segment to the one that is written to.

    Invariants: there is at least one; base offsets strictly increase; `active` is the last one. A slice of it is a
    list of its own, and stays what it is.
    """

    __slots__ = ("_base_offsets", "_segments", "active")

    def __init__(self, segments: Iterable[LogSegment]) -> None:
        self._segments = list(segments)
        assert self._segments
        self._note_changed()

    def _note_changed(self) -> None:
        self._base_offsets = [segment.base_offset for segment in self._segments]
        #: The segment that is written to.
        self.active = self._segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> LogSegment: ...

    @overload
    def __getitem__(self, index: slice) -> list[LogSegment]: ...

    def __getitem__(self, index: int | slice) -> LogSegment | list[LogSegment]:
        return self._segments[index]

    # -- finding

    @property
    def base_offsets(self) -> Sequence[int]:
        """Where the segments begin."""
        return self._base_offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum([segment.size for segment in self._segments])

    def index_of(self, offset: int) -> int:
        """Index of the segment that holds an offset if any does: the last that begins at or before it, or the first."""
        return max(0, bisect_right(self._base_offsets, offset) - 1)

    def holding(self, offset: int, log_end_offset: int) -> tuple[LogSegment, int]:
        """The segment at `index_of` an offset, and where it ends."""
        following = bisect_right(self._base_offsets, offset) or 1
        segment = self._segments[following - 1]
        return segment, log_end_offset if segment is self.active else self._base_offsets[following]

    def from_offset(self, offset: int) -> list[LogSegment]:
        """The segments from the one that holds an offset on."""
        return self._segments[self.index_of(offset) :]

    def base_after(self, offset: int) -> int | None:
        """Where the first segment begins that begins after an offset; None without one."""
        following = bisect_right(self._base_offsets, offset)
        return self._base_offsets[following] if following < len(self._base_offsets) else None

    def end_offset(self, index: int, log_end_offset: int) -> int:
        """Where a segment ends: where the next one begins, or at the log's end."""
        return self._base_offsets[index + 1] if index + 1 < len(self._base_offsets) else log_end_offset

    # -- changing

    def append(self, segment: LogSegment) -> None:
        """Have a new segment written to from now on."""
        assert segment.base_offset > self._base_offsets[-1]
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.active = segment

    def replace(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Put one segment in the place of neighbours, none of them the active one."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old)
        assert old[-1] is not self.active
        assert new.base_offset == old[0].base_offset
        self._segments = [*self._segments[:first], new, *self._segments[first + len(old) :]]
        self._note_changed()

    def remove_oldest(self, count: int) -> list[LogSegment]:
        """Take the oldest segments out, though not all of them; return them."""
        gone = self._segments[:count]
        assert count < len(self._segments)
        self._segments = self._segments[count:]
        self._note_changed()
        return gone

    def remove_after(self, segment: LogSegment) -> None:
        """Take all segments out that follow one, which is written to from now on."""
        self._segments = self._segments[: self._segments.index(segment) + 1]
        self._note_changed()
