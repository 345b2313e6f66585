"""When all logs are flushed, and what is written down of them only then."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.flushing import log_flusher
from headwater.logtier.log.flushing.checkpoints import RECOVERY_POINTS, read_checkpoint
from headwater.logtier.log.folders.log_directory import CLEAN_SHUTDOWN
from headwater.logtier.log.log import Log
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.segments.active_checkpoint import read_active_checkpoint, write_active_checkpoint
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.runtime.disk import Completion, RealDisk
from tests.manual_clock import ManualClock

PARTITION = TopicPartition("flights", 0)
OTHER = TopicPartition("flights", 1)


class HeldDisk(RealDisk):
    """Background work waits until the test wants it done."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Future[None], Callable[[], None]]] = []

    def in_background(self, task: Callable[[], None]) -> Completion:
        future: Future[None] = Future()
        self.held.append((future, task))
        return future

    def fsync_in_background(self, files: object, directories: object = ()) -> Completion:
        return self.in_background(lambda: None)

    def do(self) -> None:
        """What is held now, and not what comes of it."""
        held, self.held = self.held, []
        for future, task in held:
            task()
            future.set_result(None)


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def manager(tmp_path: Path, disk: HeldDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogManager]:
    monkeypatch.setattr(log_flusher, "_UNFLUSHED_BYTES_MAX", 10_000)
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path / "data"), "node.id": 1})
    manager = LogManager(config, disk, ManualClock(), random.Random(1), post=lambda call: call())
    manager.flusher.active_checkpoint_bytes = 1_000
    manager.start()
    for partition in (PARTITION, OTHER):
        manager.create(partition, uuid.UUID(int=1), TopicConfig())
    yield manager
    for directory in manager.directories:
        directory.release()


def append(log: Log, size: int) -> None:
    log.append_as_leader(build_batch([Record(None, bytes(size), 1)]), leader_epoch=0, now_ms=1)


def recovery_points(manager: LogManager, disk: HeldDisk) -> dict[TopicPartition, int]:
    return read_checkpoint(disk, manager.directories[0].path, RECOVERY_POINTS)


def reopened(manager: LogManager, disk: HeldDisk) -> LogManager:
    """A manager of the same folder; it has to be started."""
    again = LogManager(manager.config, disk, ManualClock(), random.Random(1), post=lambda call: call())
    again.flusher.active_checkpoint_bytes = 1_000
    return again


def crashed(manager: LogManager, disk: HeldDisk) -> LogManager:
    """The same folder, opened again as after a crash."""
    for directory in manager.directories:
        directory.release()
    again = reopened(manager, disk)
    again.start()
    for directory in again.directories:
        directory.release()
    return again


def test_much_that_came_is_flushed_before_its_time(manager: LogManager, disk: HeldDisk) -> None:
    append(manager.logs[PARTITION], 6_000)
    manager.flusher.flush_if_much_came()
    assert not disk.held
    append(manager.logs[OTHER], 6_000)
    manager.flusher.flush_if_much_came()
    assert len(disk.held) == 2
    append(manager.logs[OTHER], 20_000)
    manager.flusher.flush_if_much_came()
    assert len(disk.held) == 2, "one sweep at a time"
    for _ in range(3):
        disk.do()
    assert recovery_points(manager, disk) == {PARTITION: 0, OTHER: 1}
    manager.flusher.flush_if_much_came()
    assert disk.held, "what came during the sweep was too much"


def test_segments_that_end_count_with_the_one_that_begins(manager: LogManager, disk: HeldDisk) -> None:
    log = manager.logs[PARTITION]
    append(log, 6_000)
    log.roll(1)
    disk.do()
    append(log, 3_000)
    manager.flusher.flush_if_much_came()
    assert not disk.held
    append(log, 3_000)
    manager.flusher.flush_if_much_came()
    assert disk.held


def test_a_log_that_goes_does_not_put_the_next_flush_off(manager: LogManager, disk: HeldDisk) -> None:
    append(manager.logs[PARTITION], 12_000)
    manager.flusher.flush_if_much_came()
    for _ in range(3):
        disk.do()
    manager.placed.remove(manager.logs[PARTITION])
    manager.flusher.flush_if_much_came()
    append(manager.logs[OTHER], 12_000)
    manager.flusher.flush_if_much_came()
    assert disk.held


def test_a_last_segment_is_written_down_when_it_is_on_the_device_and_not_before(
    manager: LogManager, disk: HeldDisk
) -> None:
    log = manager.logs[PARTITION]
    for _ in range(3):
        append(log, 4_000)
    append(manager.logs[OTHER], 10)
    manager.flusher.flush()
    assert len(disk.held) == 2
    append(log, 4_000)
    assert read_active_checkpoint(disk, log.directory) is None
    disk.do()
    disk.do()
    known = read_active_checkpoint(disk, log.directory)
    assert known is not None
    assert known.segment.end_offset == 3
    assert read_active_checkpoint(disk, manager.logs[OTHER].directory) is None, "it has hardly grown"


def test_a_log_that_is_flushed_with_each_append_is_written_down_as_well(manager: LogManager, disk: HeldDisk) -> None:
    log = manager.logs[PARTITION]
    append(log, 4_000)
    log.flush()
    manager.flusher.flush()
    while disk.held:
        disk.do()
    known = read_active_checkpoint(disk, log.directory)
    assert known is not None
    assert known.segment.end_offset == 1


def test_what_was_there_at_a_clean_start_need_not_be_flushed(manager: LogManager, disk: HeldDisk) -> None:
    for partition in (PARTITION, OTHER):
        append(manager.logs[partition], 20_000)
    manager.close()
    again = reopened(manager, disk)
    again.start()
    assert not disk.held
    again.flusher.flush_if_much_came()
    assert not disk.held
    append(again.logs[OTHER], 12_000)
    again.flusher.flush_if_much_came()
    assert len(disk.held) == 1
    for directory in again.directories:
        directory.release()


def test_what_was_there_after_a_crash_is(manager: LogManager, disk: HeldDisk) -> None:
    append(manager.logs[PARTITION], 20_000)
    for directory in manager.directories:
        directory.release()
    again = reopened(manager, disk)
    again.start()
    again.flusher.flush_if_much_came()
    while disk.held:
        disk.do()
    known = read_active_checkpoint(disk, again.logs[PARTITION].directory)
    assert known is not None
    assert known.segment.end_offset == 1
    for directory in again.directories:
        directory.release()


def test_what_a_truncation_took_is_not_written_down(manager: LogManager, disk: HeldDisk) -> None:
    log = manager.logs[PARTITION]
    for _ in range(3):
        append(log, 4_000)
    manager.flusher.flush()
    log.truncate_to(1)
    while disk.held:
        disk.do()
    assert read_active_checkpoint(disk, log.directory) is None
    append(log, 4_000)
    manager.flusher.flush()
    while disk.held:
        disk.do()
    known = read_active_checkpoint(disk, log.directory)
    assert known is not None
    assert known.segment.end_offset == 2


def test_what_is_on_its_way_to_the_disk_is_taken_back_by_a_truncation(manager: LogManager, disk: HeldDisk) -> None:
    log = manager.logs[PARTITION]
    for _ in range(3):
        append(log, 4_000)
    manager.flusher.flush()
    disk.do()
    assert len(disk.held) > 1, "it is to be written"
    log.truncate_to(1)
    while disk.held:
        disk.do()
    assert read_active_checkpoint(disk, log.directory) is None


def test_what_was_not_flushed_is_not_written_down(
    manager: LogManager, disk: HeldDisk, caplog: pytest.LogCaptureFixture
) -> None:
    log = manager.logs[PARTITION]
    append(log, 4_000)
    manager.flusher.flush()
    (future, _), *_ = disk.held
    disk.held.clear()
    future.set_exception(OSError(5, "Input/output error"))
    disk.do()
    assert read_active_checkpoint(disk, log.directory) is None
    assert "a sync failed" in caplog.text


def test_a_deleted_topics_segment_is_not_written_down_in_its_namesakes_folder(
    manager: LogManager, disk: HeldDisk
) -> None:
    old = manager.logs[PARTITION]
    directory = manager.placed.remove(old)
    for i in range(16):
        append(manager.create(TopicPartition("many", i), uuid.UUID(int=4), TopicConfig()), 10)
    manager.placed.put(old, directory)
    append(old, 4_000)
    old.flush()
    disk.held.clear()
    manager.flusher.flush()
    assert len(disk.held) == 16, "its turn has not come"
    manager.delete(PARTITION)
    new = manager.create(PARTITION, uuid.UUID(int=2), TopicConfig())
    assert new is not old
    while disk.held:
        disk.do()
    assert read_active_checkpoint(disk, new.directory) is None


def test_a_checkpoint_of_another_topic_is_not_believed(manager: LogManager, disk: HeldDisk) -> None:
    log = manager.logs[PARTITION]
    for _ in range(3):
        append(log, 4_000)
    found = log.active_checkpoint(1)
    assert found is not None
    write_active_checkpoint(disk, log.directory, found._replace(topic_id=uuid.UUID(int=3)))
    assert crashed(manager, disk).logs[PARTITION].durability.recovery_point == 0
    write_active_checkpoint(disk, log.directory, found)
    assert crashed(manager, disk).logs[PARTITION].durability.recovery_point == 2


def test_a_stop_while_all_logs_are_flushed_is_clean(tmp_path: Path) -> None:
    """The sweep ends while the logs are closed, and says no more how far they are."""
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path / "data"), "node.id": 1})
    calls: list[Callable[[], None]] = []
    manager = LogManager(config, RealDisk(), ManualClock(), random.Random(1), post=calls.append)
    manager.start()
    for i in range(20):
        log = manager.create(TopicPartition("flights", i), uuid.UUID(int=1), TopicConfig())
        append(log, 100)
    manager.flusher.flush()
    folder = manager.directories[0]
    manager.close()
    assert RealDisk().exists(f"{folder.path}/{CLEAN_SHUTDOWN}")
    for call in calls:
        call()
    again = LogManager(config, RealDisk(), ManualClock(), random.Random(1), post=calls.append)
    again.start()
    assert again.directories[0].was_stopped_cleanly
    again.close()


def test_a_log_that_goes_hides_nothing_that_came_to_others(manager: LogManager, disk: HeldDisk) -> None:
    append(manager.logs[PARTITION], 9_000)
    manager.flusher.flush()
    while disk.held:
        disk.do()
    append(manager.logs[OTHER], 6_000)
    manager.delete(PARTITION)
    manager.flusher.flush_if_much_came()
    append(manager.logs[OTHER], 6_000)
    disk.held.clear()
    manager.flusher.flush_if_much_came()
    assert disk.held


def test_a_last_segment_that_goes_on_after_a_clean_start_is_written_down_with_what_it_had(
    manager: LogManager, disk: HeldDisk
) -> None:
    append(manager.logs[PARTITION], 20_000)
    manager.close()
    again = reopened(manager, disk)
    again.start()
    append(again.logs[PARTITION], 10)
    again.flusher.flush()
    while disk.held:
        disk.do()
    known = read_active_checkpoint(disk, again.logs[PARTITION].directory)
    assert known is not None
    assert known.segment.end_offset == 2
    for directory in again.directories:
        directory.release()


def test_few_segments_wait_to_be_written_down(manager: LogManager, disk: HeldDisk) -> None:
    logs = [manager.create(TopicPartition("many", i), uuid.UUID(int=4), TopicConfig()) for i in range(100)]
    for log in logs:
        append(log, 4_000)
        log.flush()
    disk.held.clear()
    manager.flusher.flush()
    assert len(disk.held) == 2 + 16, "two logs are flushed"
    while disk.held:
        disk.do()
    written = [log for log in logs if read_active_checkpoint(disk, log.directory)]
    assert len(written) == 16
    for log in logs:
        append(log, 10)
    manager.flusher.flush()
    while disk.held:
        disk.do()
    assert len([log for log in logs if read_active_checkpoint(disk, log.directory)]) > 16, "others have their turn"
