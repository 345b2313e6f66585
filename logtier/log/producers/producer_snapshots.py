"""The snapshot files of a partition's producers."""

import logging
from collections.abc import Sequence
from typing import Final

from headwater.logtier.log.directory_health import is_no_space
from headwater.logtier.log.producers.producer_snapshot_codec import SnapshotError, decode_snapshot, encode_snapshot
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.log.segments.segment import SNAPSHOT_SUFFIX, LogSegment, segment_name
from headwater.logtier.runtime.disk import Disk

_logger = logging.getLogger(__name__)

NO_SNAPSHOT: Final = -1


class ProducerSnapshots:
    """The files `<offset>.snapshot` of one partition: the producer states after all records before that offset.

    A snapshot is taken when a segment begins and when the log is closed. Invariant: a lost snapshot costs only time,
    since the state is replayed from an older snapshot or from the log start.
    """

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str, offsets: Sequence[int]) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = sorted(offsets)

    @property
    def latest(self) -> int:
        """Offset of the newest snapshot, NO_SNAPSHOT without one."""
        return self._offsets[-1] if self._offsets else NO_SNAPSHOT

    def note_moved(self, directory: str) -> None:
        """Use the files in a renamed folder."""
        self._directory = directory

    def take(self, producers: ProducerStates, offset: int, *, keep: Sequence[int]) -> None:
        """Write the snapshot at `offset`; older snapshots stay only at the offsets `keep` (segment base offsets).

        Does not wait for the device: a snapshot damaged by a power loss fails its checksum. On a full disk no snapshot
        is written, and the next start replays the state from the batches.
        """
        try:
            self._disk.write_atomic(self._path(offset), encode_snapshot(producers), sync=False)
        except OSError as error:
            if not is_no_space(error):
                raise
            _logger.warning("%s: the disk is full, no snapshot of the producers is written", self._directory)
            return
        kept = set(keep)
        for stray in [known for known in self._offsets if known != offset and known not in kept]:
            self._remove(stray)
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()

    def remove_before(self, offset: int) -> None:
        """Remove the snapshots before `offset`, except the newest snapshot."""
        for old in self._offsets[:-1]:
            if old < offset:
                self._remove(old)

    def remove_after(self, offset: int) -> None:
        """Remove the snapshots after `offset`, whose records no longer exist."""
        for later in [known for known in self._offsets if known > offset]:
            self._remove(later)

    def load(self, offset: int) -> tuple[ProducerStates, int]:
        """Return the newest valid snapshot at or before `offset`, and its offset; damaged snapshots are removed."""
        while True:
            at_or_before = [known for known in self._offsets if known <= offset]
            if not at_or_before:
                return ProducerStates(), NO_SNAPSHOT
            try:
                return decode_snapshot(self._disk.read(self._path(at_or_before[-1]))), at_or_before[-1]
            except (SnapshotError, FileNotFoundError) as error:
                _logger.warning("%s is not used: %s", self._path(at_or_before[-1]), error)
                self._remove(at_or_before[-1])

    def restore(self, segments: Sequence[LogSegment], end_offset: int) -> ProducerStates:
        """Return the producer states at `end_offset` from a snapshot and the later batches; remove later snapshots."""
        self.remove_after(end_offset)
        return self.replay(segments, end_offset)

    def replay(self, segments: Sequence[LogSegment], end_offset: int) -> ProducerStates:
        """Return the producer states at `end_offset` as `restore` does, but keep later snapshots."""
        producers, offset = self.load(end_offset)
        for i, segment in enumerate(segments):
            segment_end = segments[i + 1].base_offset if i + 1 < len(segments) else end_offset
            if segment_end <= offset or segment.size == 0:
                continue
            start = segment.position_of(max(offset, segment.base_offset))
            if start is None:
                continue
            for found in segment.headers(start[0]):
                if found.header.base_offset >= end_offset:
                    break
                producers.replay(found.header, segment.marker_of(found) if found.header.is_control else None)
        return producers

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{segment_name(offset)}{SNAPSHOT_SUFFIX}"

    def _remove(self, offset: int) -> None:
        self._disk.remove(self._path(offset))
        self._offsets.remove(offset)
