"""A start after a crash that reads on from a checkpoint of the last segment ends as one that reads it all."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.producers.producer_snapshot_codec import encode_snapshot
from headwater.logtier.log.segments.active_checkpoint import FILE_NAME, read_active_checkpoint, write_active_checkpoint
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch
from headwater.logtier.runtime.disk import RealDisk
from tests.example_counts import examples
from tests.index_entries import index_entries

NOW_MS = 1_000

#: A plain batch (size, timestamp), or a transaction of a producer, committed or not.
plain = st.tuples(st.integers(0, 90), st.integers(-1, 50))
transaction = st.tuples(st.integers(1, 3), st.booleans(), st.booleans())
steps = st.lists(st.one_of(plain, transaction), max_size=20)


def open_folder(folder: str, config: TopicConfig, *, clean: bool, recovery_point: int = 0) -> Log:
    return open_log(
        RealDisk(),
        folder,
        TopicPartition("flights", 0),
        uuid.UUID(int=1),
        config,
        was_stopped_cleanly=clean,
        recovery_point=recovery_point,
        log_start_offset=0,
        now_ms=NOW_MS,
    )


class Writer:
    """Appends what hypothesis says; sequences go on from step to step."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.sequences = dict.fromkeys((1, 2, 3), 0)
        self.leader_epoch = 0

    def write(self, step: tuple[int, int] | tuple[int, bool, bool]) -> None:
        if len(step) == 2:
            size, timestamp_ms = step
            batch = build_batch([Record(None, bytes(size), timestamp_ms)])
            self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=NOW_MS)
            return
        producer_id, committed, ends = step
        sequence = self.sequences[producer_id]
        self.sequences[producer_id] += 1
        verification = self.log.producers.begin_verification(producer_id, 0, sequence, NOW_MS, is_epoch_bumped=False)
        batch = build_batch(
            [Record(None, b"%d" % sequence, NOW_MS)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, now_ms=NOW_MS, verification=verification)
        if ends:
            self.log.append_end_txn_marker(
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                committed=committed,
                transaction_version=1,
                leader_epoch=self.leader_epoch,
                now_ms=NOW_MS,
            )
        self.leader_epoch += producer_id == 3


def everything(log: Log) -> tuple[object, ...]:
    segment = log.segments[-1]
    return (
        log.log_start_offset,
        log.log_end_offset,
        [
            (
                each.base_offset,
                each.size,
                index_entries(each),
                each.transaction_index.entries(),
                each.max_timestamp_ms,
            )
            for each in log.segments
        ],
        segment.first_timestamp_ms,
        segment.bytes_since_index,
        log.aborted_transactions(0, log.log_end_offset),
        log.last_stable_offset(log.log_end_offset),
        log.leader_epochs.entries(),
        encode_snapshot(log.producers),
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    before=steps.filter(bool),
    after=steps,
    torn=st.integers(0, 60),
    segment_bytes=st.sampled_from([700, 1 << 20]),
    is_recovery_point_written=st.booleans(),
)
def test_reading_on_from_a_checkpoint_equals_reading_everything(
    before: list[tuple[int, int]],
    after: list[tuple[int, int]],
    torn: int,
    segment_bytes: int,
    is_recovery_point_written: bool,
) -> None:
    config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    with tempfile.TemporaryDirectory(prefix="headwater-log-") as parent:
        folder = f"{parent}/flights-0"
        Path(folder).mkdir()
        log = open_folder(folder, config, clean=True)
        writer = Writer(log)
        for step in before:
            writer.write(step)
        log.flush()
        found = log.active_checkpoint(1)
        if found is not None:
            write_active_checkpoint(RealDisk(), folder, found)
        recovery_point = log.durability.recovery_point if is_recovery_point_written else 0
        for step in after:
            writer.write(step)
        log.release()
        path = Path(log.segments[-1].log_path)
        with path.open("ab") as file:
            file.write(bytes(torn))
        whole = f"{parent}/whole/flights-0"
        shutil.copytree(folder, whole)
        Path(whole, FILE_NAME).unlink(missing_ok=True)
        assert everything(open_folder(folder, config, clean=False, recovery_point=recovery_point)) == everything(
            open_folder(whole, config, clean=False, recovery_point=0)
        )


@pytest.fixture
def checkpointed(tmp_path: Path) -> Path:
    """The folder of a log with a checkpoint of its last segment at offset 30, of 40."""
    folder = tmp_path / "flights-0"
    folder.mkdir()
    log = open_folder(str(folder), TopicConfig(index_interval_bytes=100), clean=True)
    writer = Writer(log)
    for i in range(40):
        if i == 30:
            found = log.active_checkpoint(1)
            assert found is not None
            write_active_checkpoint(RealDisk(), str(folder), found)
            assert log.active_checkpoint(1) is None
        writer.write((20, i))
    log.release()
    return folder


def first_checked(folder: Path, recovery_point: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Open as after a crash; return the position from which batches were checked."""
    from headwater.logtier.log.segments.segment import LogSegment

    positions: list[int] = []
    recover = LogSegment.recover

    def spy(self: LogSegment, position: int = 0) -> object:
        positions.append(position)
        return recover(self, position)

    monkeypatch.setattr(LogSegment, "recover", spy)
    log = open_folder(str(folder), TopicConfig(index_interval_bytes=100), clean=False, recovery_point=recovery_point)
    assert log.log_end_offset == 40
    return positions[0]


def test_what_was_known_and_is_on_the_device_is_not_checked_again(
    checkpointed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert first_checked(checkpointed, 29, monkeypatch) > 0


def test_a_checkpoint_is_a_recovery_point_of_its_own(checkpointed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written when its batches are on the device, the recovery points of all logs a little later."""
    assert first_checked(checkpointed, 0, monkeypatch) > 0
    log = open_folder(str(checkpointed), TopicConfig(index_interval_bytes=100), clean=False)
    assert log.durability.recovery_point == 29


def test_a_checkpoint_of_a_segment_before_the_recovery_point_is_not_needed(
    checkpointed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_folder(str(checkpointed), TopicConfig(index_interval_bytes=100), clean=True)
    log.roll(NOW_MS)
    log.flush()
    recovery_point = log.durability.recovery_point
    log.release()
    assert recovery_point == 40
    assert first_checked(checkpointed, 40, monkeypatch) == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_checkpoint_only_means_more_checking(
    checkpointed: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpointed / FILE_NAME
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-1]
    elif damage == "flip":
        data[-1] ^= 1
    elif damage == "empty":
        data.clear()
    else:
        data[:4] = b"KAFK"
    path.write_bytes(data)
    assert read_active_checkpoint(RealDisk(), str(checkpointed)) is None
    assert first_checked(checkpointed, 39, monkeypatch) == 0


def test_a_checkpoint_of_batches_that_are_others_now_is_not_believed(
    checkpointed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_file = checkpointed / f"{0:020d}.log"
    whole = log_file.read_bytes()
    size = len(whole) // 40
    shorter = build_batch([Record(None, b"x" * 19, 1)])
    assert len(shorter) != size
    # The same offsets, at other positions.
    rewritten = shorter + whole[size:]
    log_file.write_bytes(rewritten)
    assert first_checked(checkpointed, 39, monkeypatch) == 0


def test_a_truncation_forgets_the_checkpoint(checkpointed: Path) -> None:
    log = open_folder(str(checkpointed), TopicConfig(index_interval_bytes=100), clean=True)
    log.truncate_to(20)
    assert not (checkpointed / FILE_NAME).exists()
