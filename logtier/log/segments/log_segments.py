"""The segments of a log, in offset order."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from headwater.logtier.log.segments.segment import LogSegment


class LogSegments(Sequence[LogSegment]):
    """The segments of a log, from the oldest to the active one.

    Invariants: there is at least one; base offsets strictly increase; `active` is the last one. A slice is an
    independent list.
    """

    __slots__ = ("_base_offsets", "_segments", "active")

    def __init__(self, segments: Iterable[LogSegment]) -> None:
        self._segments = list(segments)
        assert self._segments
        self._note_changed()

    def _note_changed(self) -> None:
        self._base_offsets = [segment.base_offset for segment in self._segments]
        #: The segment that receives appends.
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
        """The base offsets of the segments, ascending."""
        return self._base_offsets

    @property
    def size_bytes(self) -> int:
        """Total size of all batches, in bytes."""
        return sum([segment.size for segment in self._segments])

    def index_of(self, offset: int) -> int:
        """Index of the segment with the greatest base offset at or below `offset`, or of the first segment."""
        return max(0, bisect_right(self._base_offsets, offset) - 1)

    def holding(self, offset: int, log_end_offset: int) -> tuple[LogSegment, int]:
        """Return the segment at `index_of(offset)` and its end offset."""
        following = bisect_right(self._base_offsets, offset) or 1
        segment = self._segments[following - 1]
        return segment, log_end_offset if segment is self.active else self._base_offsets[following]

    def from_offset(self, offset: int) -> list[LogSegment]:
        """Return the segments from the one that holds `offset` on."""
        return self._segments[self.index_of(offset) :]

    def base_after(self, offset: int) -> int | None:
        """Return the first base offset above `offset`; None if there is none."""
        following = bisect_right(self._base_offsets, offset)
        return self._base_offsets[following] if following < len(self._base_offsets) else None

    def end_offset(self, index: int, log_end_offset: int) -> int:
        """Return the end offset of a segment: the next segment's base offset, or the log end offset."""
        return self._base_offsets[index + 1] if index + 1 < len(self._base_offsets) else log_end_offset

    # -- changing

    def append(self, segment: LogSegment) -> None:
        """Add a new active segment."""
        assert segment.base_offset > self._base_offsets[-1]
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.active = segment

    def replace(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Replace adjacent inactive segments by one segment."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old)
        assert old[-1] is not self.active
        assert new.base_offset == old[0].base_offset
        self._segments = [*self._segments[:first], new, *self._segments[first + len(old) :]]
        self._note_changed()

    def remove_oldest(self, count: int) -> list[LogSegment]:
        """Remove and return the `count` oldest segments; at least one segment stays."""
        gone = self._segments[:count]
        assert count < len(self._segments)
        self._segments = self._segments[count:]
        self._note_changed()
        return gone

    def truncate_to(self, offset: int, index_interval_bytes: int) -> int:
        """Remove the batch that holds `offset` and all later batches; return the offset at which the batches end now.

        The segment that held the batch is the active one afterwards.
        """
        first = self.index_of(offset)
        active = self._segments[first]
        modified_ms = self.active.modified_ms
        for segment in self._segments[first + 1 :]:
            segment.mark_deleted()
            segment.remove_deleted()
        self._segments = self._segments[: first + 1]
        self._note_changed()
        active.index_interval_bytes = index_interval_bytes
        active.modified_ms = modified_ms
        return active.truncate_to(offset)

    def replaced_by(self, create: Callable[[], LogSegment]) -> "LogSegments":
        """Remove all segments, and return a new one in their place; its files may have the names of removed ones."""
        for segment in self._segments:
            segment.mark_deleted()
            segment.remove_deleted()
        return LogSegments([create()])
