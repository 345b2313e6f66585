"""A compacted copy of a log, made by the product's own cleaner on a device of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headwater.logtier.log.cleaning.cleaner_job import NO_DATA_OFFSET, CleanerJob
from headwater.logtier.log.cleaning.cleaner_policy import SourceSegment
from headwater.logtier.log.log import Log
from headwater.logtier.log.segment_swap import CLEANED_SUFFIX
from headwater.logtier.log.segments.segment import LOG_SUFFIX, segment_name
from headwater.logtier.records.batch import iterate_batches
from headwater.logtier.runtime.clock import Clock
from tests.simulation.file_system import FileSystem, Inode
from tests.simulation.simulated_disk import SimulatedDisk

_FOLDER = "/copy"
_BYTES_MAX = 1 << 30
_BUFFER_BYTES = 1 << 20
_DAY_MS = 86_400_000


def compacted(log: Log, batches: Sequence[bytes], stable_offset: int, clock: Clock) -> list[bytes]:
    """Return the batches of a log as two cleanings leave them: the second one removes tombstones and markers, too.

    As in a broker, what follows the last stable offset stays as it is.
    """
    stable = [batch for batch in batches if _end_offset(batch) <= stable_offset]
    if not stable:
        return list(batches)
    first = _first_offset(stable[0])
    end = _end_offset(stable[-1])
    file_system = FileSystem(random.Random(0))
    file_system.makedirs(_FOLDER)
    disk = SimulatedDisk(file_system, clock, random.Random(0), lambda _: None)
    data = b"".join(stable)
    now_ms = clock.now_ms()
    for cleaning_ms, dirty_from in ((now_ms, first), (now_ms + 2 * _DAY_MS, end)):
        data = _cleaned(log, disk, data, first, dirty_from, end, cleaning_ms)
    kept = [bytes(batch) for _, batch in iterate_batches(data)]
    return [*kept, *batches[len(stable) :]]


def _cleaned(log: Log, disk: SimulatedDisk, data: bytes, first: int, dirty_from: int, end: int, now_ms: int) -> bytes:
    # Only here: the compiled loops take seconds to import, and most tests of the simulator clean nothing.
    from headwater.logtier.log.cleaning.cleaner_rewrite import LogCleaning

    path = f"{_FOLDER}/{segment_name(first)}{LOG_SUFFIX}"
    inode = Inode(now_ms)
    inode.data += data
    disk.file_system.set(path, inode)
    job = CleanerJob(
        directory=_FOLDER,
        segments=[SourceSegment(first, len(data), 0, now_ms)],
        first_dirty_offset=dirty_from,
        end_offset=end,
        now_ms=now_ms,
        delete_retention_ms=_DAY_MS,
        segment_bytes=_BYTES_MAX,
        segment_index_bytes=_BYTES_MAX,
        index_interval_bytes=log.config.index_interval_bytes,
        aborted=log.aborted_transactions(first, end),
        producers={
            producer_id: (state.batches[-1].last_offset if state.batches else NO_DATA_OFFSET, state.epoch)
            for producer_id, state in log.producers
        },
        dedupe_buffer_bytes=_BUFFER_BYTES,
        load_factor=0.9,
        io_buffer_bytes=_BUFFER_BYTES,
        io_bytes_per_second=float("inf"),
    )
    assert [group.source_count for group in LogCleaning(job, disk, lambda _: None).run()] == [1]
    cleaned = disk.file_system.file(path + CLEANED_SUFFIX)
    disk.remove(path + CLEANED_SUFFIX)
    return bytes(cleaned.data)


def _first_offset(batch: bytes) -> int:
    [(header, _)] = iterate_batches(batch)
    return header.base_offset


def _end_offset(batch: bytes) -> int:
    [(header, _)] = iterate_batches(batch)
    return header.base_offset + header.last_offset_delta + 1
