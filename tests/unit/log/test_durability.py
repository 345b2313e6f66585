"""What is on the device: group commit, failed syncs, recovery points, and who waits for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.directory_health import DirectoryHealth
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import Completion, File, RealDisk
from tests.unit.log.conftest import NOW_MS, TOPIC_ID, MakeBatch


class HeldDisk(RealDisk):
    """Its background syncs end when a test says so, and as it says; nothing may be synced in the foreground."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[tuple[Future[None], list[str]]] = []

    def fsync_in_background(self, files: Sequence[File], directories: Sequence[str] = ()) -> Completion:
        future: Future[None] = Future()
        self.syncs.append(
            (future, [Path(file.path).name for file in files] + [Path(each).name for each in directories])
        )
        return future

    def in_background(self, task: Callable[[], None]) -> Completion:
        task()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def end(self, error: OSError | None = None) -> None:
        future, _ = self.syncs.pop(0)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class World:
    """One log on a held disk; calls posted by other threads are made at once."""

    def __init__(self, path: Path, config: TopicConfig) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.config = config
        self.disk = HeldDisk()
        self.health = DirectoryHealth(str(path.parent))
        self.log = self.open(clean=True, recovery_point=0)
        self.answers: list[ErrorCode | None] = []

    def open(self, *, clean: bool, recovery_point: int) -> Log:
        self.log = open_log(
            self.disk,
            str(self.path),
            TopicPartition("flights", 0),
            TOPIC_ID,
            self.config,
            was_stopped_cleanly=clean,
            recovery_point=recovery_point,
            log_start_offset=0,
            now_ms=NOW_MS,
            health=self.health,
            post=lambda call: call(),
        )
        return self.log

    def produce(self, batch: bytes) -> None:
        info = self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
        assert info.flush is not None
        info.flush.add_done_callback(lambda error: self.answers.append(None if error is None else error.code))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "flights-0", TopicConfig(flush_messages=1))


def test_an_acknowledgement_waits_for_the_device(world: World, make_batch: MakeBatch) -> None:
    world.produce(make_batch(1))
    assert world.answers == []
    assert world.log.log_end_offset == 1
    world.disk.end()
    assert world.answers == [None]
    assert world.log.durability.flushed_offset == 1


def test_many_requests_share_one_sync(world: World, make_batch: MakeBatch) -> None:
    for _ in range(50):
        world.produce(make_batch(1))
    assert len(world.disk.syncs) == 1
    world.disk.end()
    assert world.answers == [None]
    assert world.log.durability.flushed_offset == 1
    assert len(world.disk.syncs) == 1
    world.disk.end()
    assert world.answers == [None] * 50
    assert world.log.durability.flushed_offset == 50
    assert world.disk.syncs == []


def test_the_first_sync_of_a_log_includes_the_names_of_its_files(world: World, make_batch: MakeBatch) -> None:
    """KAFKA-3968: a file that is synced, but whose name is not, is gone after a power loss."""
    world.produce(make_batch(1))
    names = ["leader-epoch-checkpoint", "00000000000000000000.log", "flights-0", world.path.parent.name]
    assert world.disk.syncs[0][1] == names
    world.disk.end()
    world.produce(make_batch(1))
    assert world.disk.syncs[0][1] == ["00000000000000000000.log"]


def test_a_new_leader_epoch_is_on_the_device_with_its_first_records(world: World, make_batch: MakeBatch) -> None:
    """Recovery reads epochs from the batches that it checks, and after a clean stop it checks none."""
    world.produce(make_batch(1))
    world.disk.end()
    world.log.append_as_leader(make_batch(1), leader_epoch=4, now_ms=NOW_MS)
    assert world.disk.syncs[0][1] == ["leader-epoch-checkpoint", "00000000000000000000.log", "flights-0"]
    world.disk.end()
    world.log.truncate_to(1)
    assert not world.log.durability.is_complete
    world.log.durability.request()
    assert world.disk.syncs[0][1] == ["leader-epoch-checkpoint", "00000000000000000000.log", "flights-0"]


def test_a_failed_sync_acknowledges_nothing_and_fails_the_folder(
    world: World, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.produce(make_batch(1))
    world.produce(make_batch(1))
    world.disk.end(OSError(5, "Input/output error"))
    assert world.answers == [ErrorCode.kafka_storage_error] * 2
    assert world.health.failure == "a sync failed: Input/output error"
    assert len(caplog.records) == 1
    assert world.log.durability.flushed_offset == 0


def test_a_failed_sync_is_never_tried_again_as_if_it_had_worked(world: World, make_batch: MakeBatch) -> None:
    """The kernel drops the pages that it could not write: a second fsync would succeed without them.

    Nor does an append follow it (KAFKA-10778).
    """
    world.produce(make_batch(1))
    world.disk.end(OSError(28, "No space left on device"))
    assert world.disk.syncs == []
    with pytest.raises(KafkaError) as caught:
        world.log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.kafka_storage_error
    with pytest.raises(KafkaError):
        world.log.flush()
    assert world.log.durability.flushed_offset == 0


def test_a_retry_of_what_is_not_yet_on_the_device_waits_as_well(world: World, make_batch: MakeBatch) -> None:
    batch = make_batch(1, producer_id=7, producer_epoch=0, base_sequence=0)
    world.produce(batch)
    world.produce(batch)
    assert world.log.log_end_offset == 1
    assert world.answers == []
    world.disk.end()
    world.disk.end()
    assert world.answers == [None, None]
    assert world.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS).flush is None


def test_a_retry_after_a_kill_waits_for_what_only_the_page_cache_has(world: World, make_batch: MakeBatch) -> None:
    """Answered at once, the record would be acknowledged and gone after a power loss."""
    batch = make_batch(1, producer_id=7, producer_epoch=0, base_sequence=0)
    world.produce(batch)
    world.disk.syncs.clear()
    world.open(clean=False, recovery_point=0)
    world.produce(batch)
    assert world.log.log_end_offset == 1
    assert world.answers == []
    world.disk.end()
    assert world.answers == [None]


def test_a_deleted_log_tells_those_who_wait(world: World, make_batch: MakeBatch) -> None:
    world.produce(make_batch(1))
    world.produce(make_batch(1))
    world.log.abandon()
    assert world.answers == [ErrorCode.kafka_storage_error] * 2
    world.disk.end()
    assert world.log.durability.flushed_offset == 0


def test_a_truncation_during_a_sync_takes_its_offset_back(world: World, make_batch: MakeBatch) -> None:
    for _ in range(4):
        world.produce(make_batch(1))
    world.disk.end()
    world.log.truncate_to(2)
    world.disk.end()
    assert world.log.durability.flushed_offset == 2
    assert world.log.log_end_offset == 2


def test_rolling_syncs_nothing_on_this_thread(
    tmp_path: Path, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise AssertionError("a sync on the event loop")

    monkeypatch.setattr("os.fsync", refuse)
    monkeypatch.setattr("os.fdatasync", refuse)
    world = World(tmp_path / "flights-0", TopicConfig(segment_bytes=1_000, retention_ms=1))
    for _ in range(100):
        world.log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=NOW_MS)
    world.log.delete_old_segments(NOW_MS + 1_000_000, world.log.log_end_offset)
    assert world.log.segment_count < 3


def test_a_rolled_segment_is_synced_with_its_indexes_before_the_recovery_point_passes_it(
    tmp_path: Path, make_batch: MakeBatch
) -> None:
    world = World(tmp_path / "flights-0", TopicConfig())
    world.log.append_as_leader(make_batch(5), leader_epoch=0, now_ms=NOW_MS)
    world.log.durability.request()
    world.log.roll(NOW_MS)
    world.disk.end()
    # All records are on the device, but not the index of the segment that ended since.
    assert world.log.durability.flushed_offset == 5
    assert world.log.durability.recovery_point == 4
    world.log.durability.request()
    names = world.disk.syncs[0][1]
    assert "00000000000000000000.timeindex" in names
    assert "00000000000000000000.index" in names
    assert "flights-0" in names
    world.disk.end()
    assert world.log.durability.recovery_point == 5


def test_the_recovery_point_stays_within_a_segment_that_may_still_end_there(
    tmp_path: Path, make_batch: MakeBatch
) -> None:
    """A checkpoint at the log's end, then a roll, then a power loss: the index of the old segment may be torn."""
    world = World(tmp_path / "flights-0", TopicConfig())
    world.log.append_as_leader(make_batch(5), leader_epoch=0, now_ms=NOW_MS)
    world.log.durability.request()
    world.disk.end()
    assert world.log.durability.flushed_offset == 5
    assert world.log.durability.recovery_point == 4


def test_recovered_segments_are_synced_before_the_recovery_point_passes_them(
    tmp_path: Path, make_batch: MakeBatch
) -> None:
    """Fsync of recovered segments, beside KAFKA-3968: a kill leaves them in the page cache only."""
    world = World(tmp_path / "flights-0", TopicConfig(segment_bytes=300))
    for _ in range(9):
        world.log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=NOW_MS)
    world.disk.syncs.clear()
    log = world.open(clean=False, recovery_point=0)
    assert log.durability.recovery_point == 0
    assert not log.durability.is_complete
    log.durability.request()
    segments = [f"{segment.base_offset:020d}" for segment in log.segments]
    synced = world.disk.syncs[0][1]
    assert [f"{name}.log" for name in segments] == [name for name in synced if name.endswith(".log")]
    assert [f"{name}.index" for name in segments[:-1]] == [name for name in synced if name.endswith(".index")]
    world.disk.end()
    assert log.durability.is_complete


def test_flush_ms_flushes_what_has_waited_that_long(tmp_path: Path, make_batch: MakeBatch) -> None:
    world = World(tmp_path / "flights-0", TopicConfig(flush_ms=1_000))
    durability = world.log.durability
    durability.request_if_due(NOW_MS, 1_000)
    world.log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=NOW_MS)
    durability.request_if_due(NOW_MS + 999, 1_000)
    assert world.disk.syncs == []
    durability.request_if_due(NOW_MS + 1_000, 1_000)
    assert len(world.disk.syncs) == 1


def test_a_handed_over_log_acknowledges_what_its_copy_has(world: World, make_batch: MakeBatch) -> None:
    world.produce(make_batch(1))
    world.produce(make_batch(1))
    world.log.durability.hand_over()
    assert world.answers == [None, None]


def test_a_whole_log_is_on_the_device_after_a_clean_stop(world: World, make_batch: MakeBatch) -> None:
    world.produce(make_batch(3))
    world.disk.end()
    world.log.close()
    log = world.open(clean=True, recovery_point=0)
    assert log.durability.is_complete
    assert not log.prepare_close()


def test_a_round_over_many_segments_holds_few_files_open_and_is_over_at_its_end(
    tmp_path: Path, make_batch: MakeBatch
) -> None:
    world = World(tmp_path / "flights-0", TopicConfig(segment_bytes=100, flush_messages=1_000))
    for _ in range(100):
        world.log.append_as_leader(make_batch(1), leader_epoch=0, now_ms=NOW_MS)
    world.disk.syncs.clear()
    log = world.open(clean=False, recovery_point=0)
    answers: list[KafkaError | None] = []
    log.durability.request().add_done_callback(answers.append)
    flushed = []
    while not answers:
        [(_, names)] = world.disk.syncs
        assert len(names) <= 3 * 32 + 3
        world.disk.end()
        flushed.append(log.durability.flushed_offset)
    assert flushed == [32, 64, 96, 100]
    assert answers == [None]
    assert log.durability.is_complete


def test_a_sync_that_could_not_begin_fails_no_folder_and_is_tried_again(world: World, make_batch: MakeBatch) -> None:
    """Too many open files: nothing was synced, hence nothing was lost by it."""
    world.produce(make_batch(1))
    world.disk.end(OSError(24, "Too many open files"))
    assert world.answers == [ErrorCode.kafka_storage_error]
    assert world.health.failure is None
    world.produce(make_batch(1))
    names = ["leader-epoch-checkpoint", "00000000000000000000.log", "flights-0", world.path.parent.name]
    assert world.disk.syncs[0][1] == names
    world.disk.end()
    assert world.answers == [ErrorCode.kafka_storage_error, None]
    assert world.log.durability.flushed_offset == 2


def test_a_repeated_append_waits_for_the_sync_that_could_not_begin(world: World, make_batch: MakeBatch) -> None:
    """The producer was told of the error and sends again: what is in the log already is not on the device yet."""
    world.produce(make_batch(1))
    world.disk.end(OSError(24, "Too many open files"))
    durability = world.log.durability
    answers: list[KafkaError | None] = []
    again = durability.round_of(0)
    assert again is not None
    again.add_done_callback(answers.append)
    assert not answers
    world.disk.end()
    assert answers == [None]
    assert durability.flushed_offset == 1
    assert durability.round_of(0) is None


@pytest.mark.parametrize("damage", [None, b"", b"0\n2\n0 0\n4 1", b"0\n2\n0 0\n", bytes(20)])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_of_leader_epochs_that_is_not_whole_is_made_of_the_batches(
    world: World, make_batch: MakeBatch, damage: bytes | None, clean: bool
) -> None:
    """A power loss leaves such a one of a file that was replaced without a sync, whatever was on the device before."""
    for leader_epoch, count in ((0, 10), (4, 5), (7, 1)):
        world.log.append_as_leader(make_batch(count), leader_epoch=leader_epoch, now_ms=NOW_MS)
    while world.disk.syncs:
        world.disk.end()
    epochs = world.log.leader_epochs.entries()
    assert epochs == [(0, 0), (4, 10), (7, 15)]
    world.log.close()
    path = world.path / "leader-epoch-checkpoint"
    path.unlink() if damage is None else path.write_bytes(damage)
    log = world.open(clean=clean, recovery_point=16)
    assert log.leader_epochs.entries() == epochs
    assert not log.durability.is_complete
