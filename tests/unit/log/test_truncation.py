"""Logs that lose their end, or begin anew: what is left, also after a crash, and of the leader epochs."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.log.flushing.checkpoints import CheckpointWriter, read_checkpoint
from headwater.logtier.log.leader_epochs import LeaderEpochs
from headwater.logtier.log.producers.producer_snapshots import NO_SNAPSHOT
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Record, build_batch
from headwater.logtier.runtime.disk import RealDisk
from tests.unit.log.conftest import LogFolder


def of_epoch(epoch: int, offset: int, **fields: int) -> bytes:
    return build_batch([Record(None, b"v", 1_000)], base_offset=offset, partition_leader_epoch=epoch, **fields)


@pytest.mark.parametrize("offset", [3, 12, 40], ids=["in the log", "at a segment", "above"])
@pytest.mark.parametrize("is_crash", [True, False])
def test_a_log_begins_anew_at_any_offset(small_segments: LogFolder, offset: int, is_crash: bool) -> None:
    folder = small_segments
    for at in range(25):
        folder.log.append_as_follower(of_epoch(3, at, producer_id=8, producer_epoch=0, base_sequence=at))
    folder.log.flush()
    folder.log.restart_at(offset)
    log = folder.log
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (offset, offset, 1)
    assert log.leader_epochs.entries() == []
    assert (len(list(log.producers)), log._snapshots.latest) == (0, NO_SNAPSHOT)
    assert log.durability.flushed_offset == offset
    assert folder.read_all() == []
    log.append_as_follower(of_epoch(5, offset))
    log.flush()
    assert folder.read_all() == [(offset, b"v")]
    if is_crash:
        folder.crash()
    else:
        folder.reopen()
    assert (folder.log.log_start_offset, folder.log.log_end_offset) == (offset, offset + 1)
    assert folder.read_all() == [(offset, b"v")]
    assert folder.log.leader_epochs.entries() == [(5, offset)]


def test_a_log_whose_files_cannot_be_replaced_accepts_no_records(folder: LogFolder, monkeypatch: Any) -> None:
    """KAFKA-10778: no append follows a failed change of the files."""

    def fail(*_: object, **__: object) -> Any:
        raise OSError(5, "Input/output error")

    folder.log.append_as_follower(of_epoch(0, 0))
    monkeypatch.setattr(folder.log, "_new_segment", fail)
    with pytest.raises(KafkaError) as caught:
        folder.log.restart_at(9)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert folder.log.health.failure is not None
    with pytest.raises(KafkaError):
        folder.log.append_as_follower(of_epoch(0, 1))


def test_a_log_that_cannot_be_truncated_accepts_no_records(folder: LogFolder, monkeypatch: Any) -> None:
    """KAFKA-10778: no append follows a failed truncation."""

    def fail(_: object, __: int) -> int:
        raise OSError(5, "Input/output error")

    folder.log.append_as_follower(of_epoch(0, 0))
    monkeypatch.setattr(type(folder.log.segments.active), "truncate_to", fail)
    with pytest.raises(KafkaError):
        folder.log.truncate_to(0)
    assert folder.log.health.failure is not None
    monkeypatch.undo()
    with pytest.raises(KafkaError) as refused:
        folder.log.append_as_follower(of_epoch(0, 1))
    assert refused.value.code is ErrorCode.kafka_storage_error


def test_a_truncation_at_the_end_removes_epochs_without_records(folder: LogFolder) -> None:
    """KAFKA-10706: epochs without records stay in no log, where they would hide a divergence."""
    folder.log.append_as_follower(of_epoch(1, 0))
    folder.log.begin_epoch(4, 1)
    folder.log.truncate_to(1)
    assert folder.log.leader_epochs.entries() == [(1, 0)]


def test_an_epoch_that_wrote_nothing_gives_way_to_records_of_an_earlier_one(folder: LogFolder) -> None:
    """A leader that was deposed before its first record follows one whose records are of an epoch before its own."""
    folder.log.append_as_follower(of_epoch(1, 0))
    folder.log.begin_epoch(7, 1)
    folder.log.append_as_follower(of_epoch(6, 1))
    assert folder.log.leader_epochs.entries() == [(1, 0), (6, 1)]
    folder.log.begin_epoch(8, 2)
    folder.log.append_as_follower(of_epoch(6, 2))
    assert folder.log.leader_epochs.entries() == [(1, 0), (6, 1)]
    assert LeaderEpochsOf(folder).entries() == [(1, 0), (6, 1)]


class LeaderEpochsOf(LeaderEpochs):
    """The history in the file of a log."""

    def __init__(self, folder: LogFolder) -> None:
        super().__init__(RealDisk(), folder.log.directory)
        self.load()


def test_an_epoch_with_records_stays_whatever_follows(folder: LogFolder) -> None:
    folder.log.append_as_follower(of_epoch(6, 0))
    folder.log.append_as_follower(of_epoch(5, 1))
    assert folder.log.leader_epochs.entries() == [(6, 0)]


# ---- checkpoints ----


class HeldDisk(RealDisk):
    """Does what is asked of the background when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []

    def in_background(self, task: Any) -> Any:
        done: Future[None] = Future()
        self.held.append((done, task))
        return done

    def do(self) -> None:
        held, self.held = self.held, []
        for done, task in held:
            task()
            done.set_result(None)


def test_a_checkpoint_that_falls_back_is_written_after_the_one_on_its_way(tmp_path: Any) -> None:
    """Otherwise the recovery point of a truncated log would stay above its records."""
    disk = HeldDisk()
    key = TopicPartition("flights", 0)
    directory: Any = SimpleNamespace(path=str(tmp_path))
    writer = CheckpointWriter(disk)
    writer.write(directory, "c", {key: 50})
    disk.do()
    writer.write(directory, "c", {key: 100})
    writer.write(directory, "c", {key: 50})
    assert len(writer.running) == 2
    disk.do()
    assert read_checkpoint(disk, str(tmp_path), "c") == {key: 50}
    writer.write(directory, "c", {key: 50})
    assert writer.running == []
