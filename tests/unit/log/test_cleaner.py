"""Compaction, fault by fault: on real files, in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.cleaning.cleaner import CLEANER_OFFSETS, LogCleaner
from headwater.logtier.log.cleaning.cleaner_job import CleanerFailure, CleanerJob, CleanerReport
from headwater.logtier.log.cleaning.cleaner_process import CleanerDiedError
from headwater.logtier.log.cleaning.cleaner_rewrite import LogCleaning
from headwater.logtier.log.flushing.checkpoints import read_checkpoint
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.retention_holds import RetentionHolds
from headwater.logtier.log.segments.segment_leases import SegmentUse
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import (
    DELETE_HORIZON,
    TRANSACTIONAL,
    Record,
    RecordBatchHeader,
    build_batch,
    check_batch,
    decode_end_transaction_marker,
    decode_records,
)
from headwater.logtier.runtime.disk import RealDisk

TP = TopicPartition("flights", 0)
OTHER = TopicPartition("carriers", 0)
CONFIG = TopicConfig(
    cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1_000, file_delete_delay_ms=0
)
PRODUCER = 7


class InProcess:
    def __init__(self, disk: RealDisk, change: Callable[[CleanerJob], CleanerJob]) -> None:
        self.disk = disk
        self.change = change
        self.stopped = False

    async def clean(self, job: CleanerJob) -> AsyncIterator[CleanerReport]:
        cleaning = LogCleaning(self.change(CleanerJob.from_line(job.to_line())), self.disk, lambda size: None)
        for group in cleaning.run():
            yield group
        yield cleaning.result()

    async def stop(self) -> None:
        self.stopped = True


class World:
    """Logs in one folder, and their cleaner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ms = 10_000
        self.disk = RealDisk()
        self.logs: dict[TopicPartition, Log] = {}
        #: Where followers lag behind; elsewhere the watermark is the log's end.
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.change: Callable[[CleanerJob], CleanerJob] = lambda job: job
        self.broker_configs: dict[str, str] = {}
        self.cleaner = self.new_cleaner()
        self.sequence = 0

    def new_cleaner(self, holds: RetentionHolds | None = None) -> LogCleaner:
        return LogCleaner(
            lambda: BrokerConfig.from_properties(self.broker_configs),
            self.disk,
            self,
            self.logs,
            lambda tp: self.logs[tp].last_stable_offset(self.high_watermarks.get(tp, self.logs[tp].log_end_offset)),
            holds=holds,
            new_worker=lambda: InProcess(self.disk, self.change),
        )

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def open(self, tp: TopicPartition = TP, config: TopicConfig = CONFIG) -> Log:
        directory = self.path / str(tp)
        directory.mkdir(exist_ok=True)
        self.logs[tp] = open_log(
            self.disk,
            str(directory),
            tp,
            uuid.UUID(int=1),
            config,
            was_stopped_cleanly=False,
            recovery_point=0,
            log_start_offset=0,
            now_ms=self.ms,
        )
        return self.logs[tp]

    def clean(self) -> bool:
        return asyncio.run(self.cleaner.clean_dirtiest())

    def write(self, *records: Record, codec: int = 0, tp: TopicPartition = TP) -> None:
        self.logs[tp].append_as_leader(build_batch(records, codec=codec), leader_epoch=0, now_ms=self.ms)

    def write_in_transaction(self, *records: Record, producer: int = PRODUCER) -> None:
        log = self.logs[TP]
        verification = log.producers.begin_verification(producer, 0, self.sequence, self.ms, is_epoch_bumped=False)
        batch = build_batch(
            records, producer_id=producer, producer_epoch=0, base_sequence=self.sequence, attributes=TRANSACTIONAL
        )
        log.append_as_leader(batch, leader_epoch=0, now_ms=self.ms, verification=verification)
        self.sequence += len(records)

    def end(self, *, commits: bool) -> None:
        self.logs[TP].append_end_txn_marker(
            producer_id=PRODUCER,
            producer_epoch=0,
            coordinator_epoch=0,
            committed=commits,
            transaction_version=1,
            leader_epoch=0,
            now_ms=self.ms,
        )

    def roll(self, tp: TopicPartition = TP) -> None:
        self.logs[tp].roll(self.ms)

    def dirty(self) -> None:
        """A rolled segment that is due, so that the log is cleaned once more."""
        self.write(record(b"dirty"))
        self.roll()

    def batches(self, tp: TopicPartition = TP) -> list[tuple[RecordBatchHeader, list[Record]]]:
        return [(check_batch(batch), decode_records(batch)) for batch in self.logs[tp].batches()]

    def offsets(self, tp: TopicPartition = TP) -> dict[int, bytes | None]:
        return {each.offset: each.key for header, found in self.batches(tp) for each in found if not header.is_control}

    def markers(self) -> list[int]:
        return [header.base_offset for header, _ in self.batches() if header.is_control]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.open()
    return world


def record(key: bytes, value: bytes | None = b"v", ms: int = 10_000) -> Record:
    return Record(key, value, ms)


def test_the_last_record_of_each_key_stays_at_its_offset(world: World) -> None:
    world.write(record(b"a"), record(b"b"), record(b"a"), record(b"c"))
    world.write(record(b"b"))
    world.roll()
    world.write(record(b"c"))  # in the active segment: nobody has looked at it
    assert world.clean()
    assert world.offsets() == {2: b"a", 3: b"c", 4: b"b", 5: b"c"}
    first, _ = world.batches()[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 3, 2)
    assert not world.clean(), "nothing is dirty any more"


def test_records_above_the_high_watermark_are_not_compacted(world: World) -> None:
    """A follower that truncates to the watermark must find there what it had: the older record of a key as well."""
    for _ in range(3):
        world.write(record(b"a"))
        world.roll()
    world.high_watermarks[TP] = 1
    world.clean()
    assert [each.offset for _, records in world.batches() for each in records] == [0, 1, 2]
    world.high_watermarks[TP] = 2
    assert world.clean()
    assert [each.offset for _, records in world.batches() for each in records] == [1, 2]
    del world.high_watermarks[TP]
    assert world.clean()
    assert [each.offset for _, records in world.batches() for each in records] == [2]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_are_compressed_again_with_their_codec_and_lose_nothing_else(world: World, codec: int) -> None:
    headers = (("h", b"1"), ("n", None))
    world.write(
        Record(b"a", b"old", 10_009),
        Record(b"b", b"kept" * 50, 10_005, headers),
        Record(b"c", b"kept", 10_001),
        codec=codec,
    )
    world.write(record(b"a", b"new"), codec=codec)
    world.roll()
    world.clean()
    (header, records), (second, _) = world.batches()
    assert records == [Record(b"b", b"kept" * 50, 10_005, headers, 1), Record(b"c", b"kept", 10_001, (), 2)]
    assert (header.codec, header.base_timestamp_ms, header.max_timestamp_ms) == (codec, 10_009, 10_005)
    assert second.codec == codec
    assert second.partition_leader_epoch == 0


def test_tombstones_stay_until_the_delete_horizon_that_their_first_cleaning_sets(world: World) -> None:
    world.write(record(b"a"), record(b"b", b"kept", 9_990))
    world.write(record(b"a", None, 9_000), record(b"c", b"kept", 12_345))
    world.roll()
    world.clean()
    assert world.offsets() == {1: b"b", 2: b"a", 3: b"c"}
    header, records = world.batches()[1]
    assert header.attributes & DELETE_HORIZON
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (11_000, 12_345)
    assert [each.timestamp_ms for each in records] == [9_000, 12_345]
    world.ms = 10_999
    world.dirty()
    world.clean()
    assert 2 in world.offsets()
    world.ms = 11_000
    world.dirty()
    world.clean()
    assert 2 not in world.offsets()
    assert world.logs[TP].offset_for_timestamp(12_000) is not None
    header, records = world.batches()[1]
    assert [(each.offset, each.timestamp_ms) for each in records] == [(3, 12_345)]


def test_a_newer_record_resurrects_a_deleted_key(world: World) -> None:
    world.write(record(b"a"), record(b"a", None), record(b"a"))
    world.roll()
    world.clean()
    assert world.offsets() == {2: b"a"}


def test_records_without_a_key_from_before_the_topic_was_compacted_go(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.open(config=TopicConfig())
    world.write(Record(None, b"x", 1), record(b"a"))
    world.roll()
    assert not world.clean(), "a topic that deletes is no concern of the cleaner"
    log.configure(CONFIG)
    world.clean()
    assert world.offsets() == {1: b"a"}


def test_the_last_batch_of_a_producer_stays_empty_so_that_a_retry_is_recognised(world: World) -> None:
    log = world.logs[TP]
    batches = [
        build_batch([record(b"a")], producer_id=PRODUCER, producer_epoch=3, base_sequence=sequence)
        for sequence in range(3)
    ]
    for batch in batches:
        log.append_as_leader(batch, leader_epoch=0, now_ms=world.ms)
    world.write(record(b"a"))
    world.roll()
    world.clean()
    kept = [(header.base_offset, header.record_count, header.base_sequence) for header, _ in world.batches()]
    assert kept == [(2, 0, 2), (3, 1, -1)]
    log.release()
    for snapshot in world.path.rglob("*.snapshot"):
        snapshot.unlink()
    info = world.open().append_as_leader(batches[2], leader_epoch=0, now_ms=world.ms)
    assert (info.first_offset, info.duplicate) == (2, True)


def test_the_last_batch_of_a_cleaning_stays_empty_so_that_its_offset_is_not_lost(world: World) -> None:
    world.write_in_transaction(record(b"a"))
    world.roll()
    world.end(commits=False)
    world.write_in_transaction(record(b"b"))  # the producer's last batch is another one
    world.end(commits=True)
    world.clean()
    assert next((header.base_offset, header.record_count) for header, _ in world.batches()) == (0, 0)
    assert world.logs[TP].read(0, 1_000, upper_bound_offset=4, min_one_batch=True).first_offset == 0


# -- transactions


def test_no_marker_goes_before_the_records_of_its_transaction(world: World) -> None:
    """KAFKA-8351: a marker that goes first turns committed records into those of an open transaction."""
    world.write_in_transaction(record(b"a"))
    world.end(commits=True)
    world.roll()
    for _ in range(3):
        world.clean()
        world.ms += 2_000
        world.dirty()
    assert 0 in world.offsets()
    assert world.markers() == [1]
    world.write(record(b"a"))  # the transaction's record is outdated now
    world.roll()
    world.clean()
    assert 0 not in world.offsets()
    assert world.markers() == [1], "its horizon begins when nothing of the transaction is left"


def test_a_marker_that_has_outlived_its_transaction_goes_after_the_delete_horizon(world: World) -> None:
    """KAFKA-13727: the horizon counts from the cleaning that finds nothing of the transaction."""
    world.write_in_transaction(record(b"a"))
    world.end(commits=True)
    world.write_in_transaction(record(b"b"))
    world.end(commits=True)
    world.write(record(b"a"))
    world.roll()
    world.clean()  # the record goes
    assert world.markers() == [1, 3]
    world.dirty()
    world.clean()  # the marker's horizon begins
    (horizon,) = [header for header, _ in world.batches() if header.base_offset == 1]
    assert horizon.attributes & DELETE_HORIZON
    assert horizon.base_timestamp_ms == world.ms + 1_000
    world.ms += 999
    world.dirty()
    world.clean()
    assert world.markers() == [1, 3]
    world.ms += 1
    world.dirty()
    world.clean()
    assert world.markers() == [3]


def test_control_batches_are_never_taken_for_records_of_one_key(world: World) -> None:
    """KAFKA-8351: every marker's key says `version, type`; the last one must not outdate the others."""
    for key in (b"a", b"b", b"c"):
        world.write_in_transaction(record(key))
        world.end(commits=True)
    world.roll()
    world.clean()
    assert world.markers() == [1, 3, 5]
    assert all(
        decode_end_transaction_marker(build) is not None
        for build in world.logs[TP].batches()
        if RecordBatchHeader.parse(build).is_control
    )


def test_aborted_records_go_and_do_not_outdate_what_was_committed(world: World) -> None:
    world.write(record(b"a", b"committed"))
    world.write_in_transaction(record(b"a", b"aborted"), record(b"b", b"aborted"))
    world.end(commits=False)
    world.write_in_transaction(record(b"c", b"committed"))  # the producer's last batch is another one
    world.end(commits=True)
    world.roll()
    assert world.logs[TP].aborted_transactions(0, 6) != []
    world.clean()
    assert world.offsets() == {0: b"a", 4: b"c"}
    log = world.logs[TP]
    assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset


def test_an_open_transaction_is_not_touched(world: World) -> None:
    world.write(record(b"a"), record(b"a"))
    world.roll()
    world.write_in_transaction(record(b"a"))
    world.roll()
    world.write(record(b"a"))
    world.roll()
    world.clean()
    assert world.offsets() == {1: b"a", 2: b"a", 3: b"a"}
    world.end(commits=False)
    world.roll()
    world.clean()
    assert world.offsets() == {3: b"a"}


def test_a_transaction_that_was_aborted_long_ago_does_not_swallow_later_ones(world: World) -> None:
    world.write_in_transaction(record(b"x"))
    world.end(commits=False)
    world.roll()
    world.clean()
    world.write_in_transaction(record(b"a", b"old"))
    world.end(commits=True)
    world.write_in_transaction(record(b"a", b"new"))
    world.end(commits=True)
    world.roll()
    world.clean()
    assert world.offsets() == {4: b"a"}


# -- what surrounds a cleaning


def test_a_read_under_way_goes_on_in_the_old_file(world: World) -> None:
    for i in range(10):
        world.write(record(b"a", b"%d" % i))
    world.roll()
    found = world.logs[TP].read(0, 10_000, upper_bound_offset=10, min_one_batch=True)
    before = found.file.pread(found.size, found.position)
    world.clean()
    world.logs[TP].remove_deleted_files(world.ms)
    assert found.file.pread(found.size, found.position) == before
    found = world.logs[TP].read(3, 10_000, upper_bound_offset=10, min_one_batch=True)
    assert found.first_offset == 9, "an offset in a gap leads to the next batch"


def test_how_far_a_log_was_cleaned_survives_a_restart_and_ends_with_the_log(world: World) -> None:
    world.write(record(b"a"), record(b"a"))
    world.roll()
    world.clean()
    assert read_checkpoint(world.disk, str(world.path), CLEANER_OFFSETS) == {TP: 2}
    world.logs[TP].release()
    world.open()
    world.cleaner = world.new_cleaner()
    world.cleaner.load_checkpoints()
    assert not world.clean()
    # A topic of the same name, made anew, was never cleaned.
    world.logs[TP].release()
    for path in (world.path / str(TP)).iterdir():
        path.unlink()
    world.open()
    world.write(record(b"a"), record(b"a"))
    world.roll()
    assert world.clean()
    assert world.offsets() == {1: b"a"}


def test_small_segments_become_one(world: World) -> None:
    for i in range(6):
        world.write(record(b"%d" % (i % 3)))
        world.roll()
    world.clean()
    assert [segment.base_offset for segment in world.logs[TP].segments] == [0, 6]
    assert world.offsets() == {3: b"0", 4: b"1", 5: b"2"}
    world.logs[TP].remove_deleted_files(world.ms)


def test_a_map_that_is_full_ends_the_cleaning_where_it_is_and_the_next_goes_on(world: World) -> None:
    world.change = lambda job: dataclasses.replace(job, dedupe_buffer_bytes=0, load_factor=2.5 / 1024)
    for key in (b"a", b"b", b"a", b"c", b"a", b"b"):
        world.write(record(key))
    world.roll()
    world.clean()
    assert world.offsets() == {1: b"b", 2: b"a", 3: b"c", 4: b"a", 5: b"b"}
    while world.clean():
        pass
    assert world.offsets() == {3: b"c", 4: b"a", 5: b"b"}


def test_a_damaged_batch_takes_only_its_log_out_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.open(OTHER)
    for tp in (TP, OTHER):
        world.write(record(b"a"), record(b"a"), tp=tp)
        world.write(record(b"a"), tp=tp)
        world.roll(tp)
    path = world.path / str(TP) / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 0xFF
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        assert world.clean()
        assert world.clean()
        assert not world.clean()
    assert [each.getMessage() for each in caplog.records if "flights-0" in each.getMessage()] == [
        (
            f"flights-0 is not compacted again until the broker is restarted: {path}, byte 0: "
            "a batch does not match its checksum"
        )
    ]
    assert list(world.cleaner.counters.uncleanable) == [TP]
    assert world.offsets(OTHER) == {2: b"a"}
    assert [each.name for each in path.parent.glob("*.cleaned")] == []


def test_a_cleaner_that_dies_is_tried_again_once_and_not_at_once(world: World) -> None:
    class Dying(InProcess):
        async def clean(self, job: CleanerJob) -> AsyncIterator[CleanerReport]:
            if not self.stopped:
                raise CleanerDiedError("the cleaner process ended with code -9")
            yield CleanerFailure("not reached", is_damage=False)

    world.write(record(b"a"), record(b"a"))
    world.roll()
    world.cleaner = LogCleaner(
        lambda: BrokerConfig.from_properties({}),
        world.disk,
        world,
        world.logs,
        lambda _: 2,
        new_worker=lambda: Dying(world.disk, world.change),
    )
    assert world.clean()
    assert not world.clean(), "it rests"
    world.ms += 15_000
    assert world.clean()
    world.ms += 15_000
    assert not world.clean()
    assert world.cleaner.counters.uncleanable == {TP: "the cleaner process ended with code -9, 2 times"}


def test_a_topic_that_is_deleted_while_it_is_cleaned_is_left_alone(world: World) -> None:
    world.write(record(b"a"), record(b"a"))
    world.roll()
    log = world.logs[TP]

    def delete(job: CleanerJob) -> CleanerJob:
        del world.logs[TP]
        return job

    world.change = delete
    world.clean()
    assert log.segments[0].size > 0
    assert world.cleaner.counters.uncleanable == {}
    assert list((world.path / str(TP)).glob("*.cleaned")) == []


def test_a_log_that_is_copied_to_another_folder_is_not_cleaned(world: World) -> None:
    world.write(record(b"a"), record(b"a"))
    world.roll()
    with world.logs[TP].leases.take(SegmentUse.COPYING):
        assert not world.clean()

    def copy(job: CleanerJob) -> CleanerJob:
        world.logs[TP].leases.take(SegmentUse.COPYING)
        return job

    world.change = copy
    world.clean()
    assert world.offsets() == {0: b"a", 1: b"a"}


def test_retention_waits_while_a_log_is_cleaned(world: World) -> None:
    log = world.logs[TP]
    log.configure(dataclasses.replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=1))
    world.write(record(b"a"))
    world.roll()
    with log.leases.take(SegmentUse.CLEANING):
        assert log.delete_old_segments(world.ms + 100, log.log_end_offset) == 0
    assert log.delete_old_segments(world.ms + 100, log.log_end_offset) == 1
    assert log.log_start_offset == 1


def test_what_the_cleaner_did_is_counted(world: World) -> None:
    world.write(record(b"a"), record(b"a"))
    world.roll()
    world.clean()
    counters = world.cleaner.counters
    assert (counters.runs, counters.records_read, counters.records_kept, counters.failures) == (1, 2, 1, 0)
    assert counters.bytes_read > counters.bytes_written > 0
    assert counters.dirty_ratio_max == 1.0
