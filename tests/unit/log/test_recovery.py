"""Opening after a clean stop and after a crash: nothing whole is lost, nothing torn is kept."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from headwater.logtier.log.producers.producer_snapshot_codec import decode_snapshot, encode_snapshot
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.log.conftest import LogFolder, MakeBatch


def fill(folder: LogFolder, make_batch: MakeBatch, count: int = 50) -> list[tuple[int, bytes | None]]:
    for i in range(count):
        folder.append(make_batch(1, value=b"%d" % i, timestamp_ms=1_000 + i), leader_epoch=i // 20)
    return folder.read_all()


def last_log(folder: LogFolder) -> Path:
    return folder.path / folder.names(".log")[-1]


def test_a_clean_stop_and_start_keeps_everything(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    before = fill(small_segments, make_batch)
    log = small_segments.reopen()
    assert log.durability.recovery_point == log.log_end_offset == 50
    assert small_segments.read_all() == before
    assert log.leader_epochs.entries() == [(0, 0), (1, 20), (2, 40)]
    assert log.offset_of_max_timestamp() == (1_049, 49, 2)
    assert small_segments.append(make_batch(1)).first_offset == 50


def test_a_crash_loses_nothing_that_is_whole(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    before = fill(small_segments, make_batch)
    log = small_segments.crash()
    assert small_segments.read_all() == before
    assert log.leader_epochs.entries() == [(0, 0), (1, 20), (2, 40)]


def test_a_torn_tail_is_cut_off_at_the_last_whole_batch(folder: LogFolder, make_batch: MakeBatch) -> None:
    before = fill(folder, make_batch, 5)
    size = folder.log.size_bytes
    folder.append(make_batch(1, value=b"torn"))
    path = last_log(folder)
    whole = path.read_bytes()
    for cut in (size + 1, size + 11, size + 60, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert folder.crash().log_end_offset == 5
        assert path.stat().st_size == size
    assert folder.read_all() == before


def test_a_flipped_bit_ends_the_log_before_its_batch(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    before = fill(small_segments, make_batch)
    path = small_segments.path / small_segments.names(".log")[1]
    base = int(path.name[:20])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    log = small_segments.crash()
    assert base < log.log_end_offset < 50
    assert small_segments.read_all() == before[: log.log_end_offset]
    # What comes after the damage would leave a gap.
    assert small_segments.names(".log")[-1] == path.name


@pytest.mark.parametrize("garbage", [bytes(500), b"\xff" * 500, struct.pack(">qi", 5, 2**31 - 1) + bytes(60)])
def test_garbage_after_the_last_batch_is_cut_off(folder: LogFolder, make_batch: MakeBatch, garbage: bytes) -> None:
    before = fill(folder, make_batch, 5)
    with last_log(folder).open("ab") as file:
        file.write(garbage)
    assert folder.crash().log_end_offset == 5
    assert folder.read_all() == before


def test_only_segments_after_the_recovery_point_are_checked(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    fill(small_segments, make_batch)
    small_segments.log.flush()
    first = small_segments.path / small_segments.names(".log")[0]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    assert small_segments.crash(recovery_point=50).log_end_offset == 50
    assert small_segments.crash(recovery_point=0).log_end_offset < 50


@pytest.mark.parametrize("left", [0, 30])
def test_an_empty_segment_after_a_lost_batch_does_not_end_the_log(
    small_segments: LogFolder, make_batch: MakeBatch, left: int
) -> None:
    before = fill(small_segments, make_batch)
    *_, older, last = (small_segments.path / name for name in small_segments.names(".log"))
    base = int(last.name[:20])
    *_, lost = (found.position for found in small_segments.log.segments[-2].headers())
    older.write_bytes(older.read_bytes()[:lost])
    last.write_bytes(last.read_bytes()[:left])
    log = small_segments.crash()
    assert log.log_end_offset == base - 1
    assert small_segments.read_all() == before[: base - 1]
    assert small_segments.append(make_batch(1)).first_offset == base - 1


def test_a_clean_stop_whose_files_were_cut_is_recovered(
    folder: LogFolder, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(folder, make_batch, 5)
    folder.log.close()
    os.truncate(last_log(folder), folder.log.size_bytes - 1)
    assert folder.open(clean=True).log_end_offset == 4
    assert "checked as after a crash" in caplog.text


def test_missing_and_damaged_indexes_are_built_anew(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    before = fill(small_segments, make_batch)
    small_segments.log.close()
    indexes = small_segments.names("index")
    written = {name: (small_segments.path / name).read_bytes() for name in indexes}
    for damage in (None, b"\x01\x02\x03", b"\xff" * 24, b"\x7f" * 24):
        for name in indexes:
            path = small_segments.path / name
            path.unlink() if damage is None else path.write_bytes(damage)
        small_segments.open(clean=True, recovery_point=50)
        assert small_segments.read_all() == before
        assert small_segments.log.offset_for_timestamp(1_030) == (1_030, 30, 1)
    small_segments.crash()
    small_segments.log.close()
    rebuilt = {name: (small_segments.path / name).read_bytes() for name in small_segments.names("index")}
    assert rebuilt == written


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],  # torn within an entry
        lambda data: b"",
        lambda data: bytes(len(data)),  # a hole, as a power loss leaves it
        lambda data: data[: len(data) // 2 // 24 * 24] + bytes(len(data) - len(data) // 2 // 24 * 24),
        lambda data: data + bytes(24),  # preallocated, and never cut to size
        lambda data: data + bytes(10_485_760 - len(data)),
        lambda data: data + b"\x7f" * 24,
        lambda data: data[::-1],
        lambda data: b"not an index, and not of its length either",
    ],
    ids=["torn", "empty", "zeros", "half-zeros", "oversized", "preallocated", "beyond", "reversed", "garbage"],
)
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_never_hides_a_record(
    small_segments: LogFolder, make_batch: MakeBatch, suffix: str, damage: Callable[[bytes], bytes], clean: bool
) -> None:
    before = fill(small_segments, make_batch)
    small_segments.log.close()
    for name in small_segments.names(suffix):
        path = small_segments.path / name
        path.write_bytes(damage(path.read_bytes()))
    log = small_segments.open(clean=clean, recovery_point=50)
    assert small_segments.read_all() == before
    for offset in range(0, 50, 7):
        part = log.read(offset, 1, upper_bound_offset=50, min_one_batch=True)
        assert part.first_offset <= offset
        assert log.offset_for_timestamp(1_000 + offset) == (1_000 + offset, offset, offset // 20)
    newest = [max(found.header.max_timestamp_ms for found in each.headers()) for each in log.segments]
    assert [segment.max_timestamp_ms for segment in log.segments] == newest


def test_leftovers_of_deletions_and_unfinished_writes_are_removed(folder: LogFolder, make_batch: MakeBatch) -> None:
    fill(folder, make_batch, 2)
    folder.log.close()
    for name in ("00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp", "readme.txt"):
        (folder.path / name).write_bytes(b"x")
    folder.open()
    assert not folder.names(".deleted")
    assert not folder.names(".tmp")
    assert folder.names(".txt") == ["readme.txt"]


def test_producers_are_remembered_after_a_clean_stop(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    batches = [make_batch(1, producer_id=1, producer_epoch=0, base_sequence=i) for i in range(20)]
    infos = [small_segments.append(batch) for batch in batches]
    small_segments.reopen()
    for batch, info in zip(batches[-5:], infos[-5:], strict=True):
        retry = small_segments.append(batch)
        assert (retry.first_offset, retry.duplicate) == (info.first_offset, True)


@pytest.mark.parametrize("snapshots", ["kept", "lost", "damaged"])
def test_producers_are_remembered_after_a_crash(
    small_segments: LogFolder, make_batch: MakeBatch, snapshots: str
) -> None:
    batches = [make_batch(1, producer_id=1, producer_epoch=0, base_sequence=i) for i in range(20)]
    infos = [small_segments.append(batch) for batch in batches]
    small_segments.log.flush()
    names = small_segments.names(".snapshot")
    assert names
    for name in names:
        if snapshots == "lost":
            (small_segments.path / name).unlink()
        elif snapshots == "damaged":
            (small_segments.path / name).write_bytes(b"\x00\x01" + bytes(30))
    small_segments.crash(recovery_point=20)
    for batch, info in zip(batches[-5:], infos[-5:], strict=True):
        assert small_segments.append(batch).first_offset == info.first_offset
    with pytest.raises(KafkaError) as caught:
        small_segments.append(make_batch(1, producer_id=1, producer_epoch=0, base_sequence=21))
    assert caught.value.code == ErrorCode.out_of_order_sequence_number


def test_truncation_takes_producers_epochs_and_indexes_back(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    for i in range(40):
        small_segments.append(
            make_batch(1, producer_id=1, producer_epoch=0, base_sequence=i, timestamp_ms=i), leader_epoch=i // 10
        )
    small_segments.log.flush()
    before = small_segments.read_all()
    small_segments.log.truncate_to(17)
    log = small_segments.log
    assert (log.log_end_offset, log.durability.flushed_offset) == (17, 17)
    assert small_segments.read_all() == before[:17]
    assert log.leader_epochs.entries() == [(0, 0), (1, 10)]
    assert log.offset_of_max_timestamp() == (16, 16, 1)
    retry = small_segments.append(make_batch(1, producer_id=1, producer_epoch=0, base_sequence=16))
    assert (retry.first_offset, retry.duplicate) == (16, True)
    assert small_segments.append(make_batch(1, producer_id=1, producer_epoch=0, base_sequence=17)).first_offset == 17
    assert small_segments.crash().log_end_offset == 18


def test_truncation_inside_of_a_batch_drops_the_whole_batch(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(5))
    folder.append(make_batch(5))
    folder.log.truncate_to(7)
    assert folder.log.log_end_offset == 5
    folder.log.truncate_to(5)
    assert folder.log.log_end_offset == 5


def test_truncation_never_ends_the_log_before_its_start(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(5))
    folder.log.delete_records_before(3, folder.log.log_end_offset)
    folder.log.truncate_to(4)
    assert (folder.log.log_start_offset, folder.log.log_end_offset) == (3, 3)
    assert folder.append(make_batch(1)).first_offset == 3


def test_index_files_forget_what_was_truncated(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(1, timestamp_ms=350))
    folder.append(make_batch(1, timestamp_ms=820))
    folder.reopen()
    folder.log.truncate_to(1)
    assert folder.reopen().offset_of_max_timestamp() == (350, 0, 0)
    assert folder.log.offset_for_timestamp(400) is None


def test_a_log_that_lost_all_after_its_start_begins_there_again(folder: LogFolder, make_batch: MakeBatch) -> None:
    fill(folder, make_batch, 5)
    log = folder.open(clean=False, log_start_offset=90)
    assert (log.log_start_offset, log.log_end_offset) == (90, 90)
    assert folder.append(make_batch(1)).first_offset == 90


def test_a_snapshot_of_kafka_without_our_extension_is_read() -> None:
    states = ProducerStates()
    for i in range(3):
        states.update(7, 2, i * 10, 9, i * 10 + 9, 5_000)
    data = encode_snapshot(states)
    plain = data[:6] + data[6 : 6 + 4 + 46]
    from crc32c import crc32c

    plain = plain[:2] + struct.pack(">I", crc32c(plain[6:])) + plain[6:]
    state = decode_snapshot(plain).get(7)
    assert state is not None
    assert [batch.first_offset for batch in state.batches] == [20]


def test_a_failed_background_sync_stops_the_partition(
    folder: LogFolder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """KAFKA-10778, after a roll: no append follows what the disk has failed to write."""

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    folder.append(make_batch(1))
    monkeypatch.setattr(os, "fdatasync", fail)
    folder.log.roll(1_000_000)
    folder.log.durability.poll()
    assert "Input/output error" in caplog.text
    assert folder.log.durability.flushed_offset == 0
    with pytest.raises(KafkaError) as caught:
        folder.append(make_batch(1))
    assert caught.value.code == ErrorCode.kafka_storage_error


def test_a_finished_background_sync_moves_the_recovery_point(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.append(make_batch(3))
    folder.log.roll(1_000_000)
    assert folder.log.durability.recovery_point == 0
    folder.log.durability.poll()
    assert folder.log.durability.recovery_point == 3
