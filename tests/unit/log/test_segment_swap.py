"""A crash between any two steps of a swap leaves the old segments or the cleaned one, never a mixture."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.cleaning.cleaner_job import CleanerJob
from headwater.logtier.log.cleaning.cleaner_policy import SourceSegment
from headwater.logtier.log.cleaning.cleaner_rewrite import LogCleaning
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.segment_swap import swap_in
from headwater.logtier.log.segments.active_checkpoint import read_active_checkpoint, write_active_checkpoint
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch, decode_records
from headwater.logtier.runtime.disk import RealDisk

CONFIG = TopicConfig(cleanup_policy=("compact",), file_delete_delay_ms=0)
OLD = {0: b"a", 1: b"b", 2: b"a", 3: b"b", 4: b"c", 5: b"a"}
CLEANED = {3: b"b", 4: b"c", 5: b"a"}


class Crash(BaseException):
    pass


class CrashingDisk(RealDisk):
    """Ends the process before the rename or removal number `left`, if that is not None."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise Crash
            self.left -= 1

    def rename(self, path: str, new_path: str) -> None:
        self.step()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        self.step()
        super().remove(path)


def open_at(disk: RealDisk, path: Path, *, clean: bool) -> Log:
    return open_log(
        disk,
        str(path),
        TopicPartition("flights", 0),
        uuid.UUID(int=1),
        CONFIG,
        was_stopped_cleanly=clean,
        recovery_point=0,
        log_start_offset=0,
        now_ms=1_000,
    )


def prepare(disk: RealDisk, path: Path) -> tuple[Log, int]:
    """A log of two segments and the active one; the two were cleaned into one that waits."""
    path.mkdir()
    log = open_at(disk, path, clean=False)
    for keys in ((b"a", b"b", b"a"), (b"b", b"c", b"a")):
        log.append_as_leader(build_batch([Record(key, b"v", 1) for key in keys]), leader_epoch=0, now_ms=1_000)
        log.roll(1_000)
    log.append_as_leader(build_batch([Record(b"z", b"v", 1)]), leader_epoch=0, now_ms=1_000)
    log.close()
    job = CleanerJob(
        directory=str(path),
        segments=[SourceSegment(segment.base_offset, segment.size, 8, 1_000) for segment in log.segments[:2]],
        first_dirty_offset=0,
        end_offset=6,
        now_ms=1_000,
        delete_retention_ms=1_000,
        segment_bytes=10_000,
        segment_index_bytes=10_000,
        index_interval_bytes=4096,
        aborted=[],
        producers={},
        dedupe_buffer_bytes=0,
        load_factor=0.9,
        io_buffer_bytes=0,
        io_bytes_per_second=1e300,
    )
    (group,) = LogCleaning(job, disk, lambda size: None).run()
    return log, group.size_bytes


def keys(log: Log) -> dict[int, bytes | None]:
    return {record.offset: record.key for batch in log.batches() for record in decode_records(batch)}


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if each.suffix in (".log", ".cleaned", ".swap")}


@pytest.mark.parametrize("is_clean_stop_claimed", [True, False])
def test_a_crash_at_any_step_leaves_one_or_the_other(tmp_path: Path, is_clean_stop_claimed: bool) -> None:
    outcomes = []
    for step in range(60):
        disk = CrashingDisk()
        path = tmp_path / str(step)
        log, size_bytes = prepare(disk, path)
        disk.left = step
        crashed = False
        try:
            swap_in(disk, log, log.segments[:2], size_bytes=size_bytes, modified_ms=1_000, now_ms=1_000)
        except Crash:
            crashed = True
        log.release()
        disk.left = None
        again = open_at(disk, path, clean=is_clean_stop_claimed)
        outcomes.append(keys(again) == CLEANED | {6: b"z"})
        assert outcomes[-1] or keys(again) == OLD | {6: b"z"}
        assert [segment.base_offset for segment in again.segments] == ([0, 6] if outcomes[-1] else [0, 3, 6])
        assert len(names(path)) == len(again.segments), "nothing is left over"
        again.release()
        if not crashed:
            break
    assert not crashed, "the last one went through"
    assert outcomes == sorted(outcomes)
    assert (outcomes[0], outcomes[-1]) == (False, True)


def test_a_crash_while_a_swap_is_finished_is_made_good_by_the_next_start(tmp_path: Path) -> None:
    step = 0
    while True:
        disk = CrashingDisk()
        path = tmp_path / str(step)
        log, size_bytes = prepare(disk, path)
        disk.left = 4  # right after the log's rename to .swap
        with pytest.raises(Crash):
            swap_in(disk, log, log.segments[:2], size_bytes=size_bytes, modified_ms=1_000, now_ms=1_000)
        log.release()
        disk.left = step
        try:
            open_at(disk, path, clean=True).release()
            break
        except Crash:
            step += 1
        disk.left = None
        again = open_at(disk, path, clean=True)
        assert keys(again) == CLEANED | {6: b"z"}
        again.release()
    assert step > 5


def test_a_swap_that_fails_before_it_counts_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    class FailingDisk(RealDisk):
        def rename(self, path: str, new_path: str) -> None:
            if new_path.endswith(".log.swap"):
                raise OSError(5, "Input/output error")
            super().rename(path, new_path)

    disk = FailingDisk()
    path = tmp_path / "log"
    log, size_bytes = prepare(disk, path)
    with pytest.raises(OSError, match="Input/output"):
        swap_in(disk, log, log.segments[:2], size_bytes=size_bytes, modified_ms=1_000, now_ms=1_000)
    assert keys(log) == OLD | {6: b"z"}
    assert len(names(path)) == 3
    log.release()


def test_who_reads_the_whole_log_in_turns_reads_the_old_segments_to_their_end(tmp_path: Path) -> None:
    disk = RealDisk()
    path = tmp_path / "log"
    log, size_bytes = prepare(disk, path)
    for segment in log.segments:
        segment.release()
    batches = log.batches()
    found = [next(batches)]
    swap_in(disk, log, log.segments[:2], size_bytes=size_bytes, modified_ms=1_000, now_ms=1_000)
    found += batches
    assert {record.offset: record.key for batch in found for record in decode_records(batch)} == OLD | {6: b"z"}
    assert keys(log) == CLEANED | {6: b"z"}
    log.release()


def test_what_was_written_down_of_a_segment_is_forgotten_when_it_is_cleaned(tmp_path: Path) -> None:
    disk = RealDisk()
    path = tmp_path / "log"
    log, size_bytes = prepare(disk, path)
    found = log.active_checkpoint(1)
    assert found is not None
    write_active_checkpoint(disk, str(path), found)
    swap_in(disk, log, log.segments[:2], size_bytes=size_bytes, modified_ms=1_000, now_ms=1_000)
    assert read_active_checkpoint(disk, str(path)) is not None, "it is of the active segment"
    log.roll(1_000)
    log.append_as_leader(build_batch([Record(b"z", b"v", 1)]), leader_epoch=0, now_ms=1_000)
    log.release()
    forgotten = log.checkpoints_forgotten
    log.forget_checkpoint(among={0})
    assert log.checkpoints_forgotten == forgotten
    log.forget_checkpoint(among={6})
    assert log.checkpoints_forgotten == forgotten + 1
    assert read_active_checkpoint(disk, str(path)) is None
    log.release()


def test_what_another_run_wrote_down_is_forgotten_by_what_it_says(tmp_path: Path) -> None:
    disk = RealDisk()
    path = tmp_path / "log"
    log, _ = prepare(disk, path)
    found = log.active_checkpoint(1)
    assert found is not None
    assert found.segment.base_offset == 6
    write_active_checkpoint(disk, str(path), found)
    log.release()
    again = open_at(disk, path, clean=True)
    again.forget_checkpoint(among={0, 3})
    assert read_active_checkpoint(disk, str(path)) is not None
    again.forget_checkpoint(among={6})
    assert read_active_checkpoint(disk, str(path)) is None
    again.forget_checkpoint(among={6})
    again.release()
