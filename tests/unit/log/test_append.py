"""Appending: offsets, validation, duplicates, rolling."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    ATTRIBUTES,
    CONTROL,
    CRC,
    LAST_OFFSET_DELTA,
    RECORD_COUNT,
    TIMESTAMP_TYPE_LOG_APPEND,
    Record,
    build_batch,
    check_batch,
    decode_records,
)
from headwater.logtier.runtime.disk import Buffer, RealFile
from tests.unit.log.conftest import NOW_MS, resealed

if TYPE_CHECKING:
    from tests.unit.log.conftest import LogFolder, MakeBatch


def refused(folder: LogFolder, batch: bytes, code: ErrorCode) -> str:
    end = folder.log.log_end_offset
    size = folder.log.size_bytes
    with pytest.raises(KafkaError) as caught:
        folder.append(batch)
    assert caught.value.code == code
    assert (folder.log.log_end_offset, folder.log.size_bytes) == (end, size)
    return caught.value.message


def test_batches_get_consecutive_offsets_and_the_leader_epoch(folder: LogFolder, make_batch: MakeBatch) -> None:
    first = folder.append(make_batch(3), leader_epoch=4)
    second = folder.append(make_batch(2), leader_epoch=5)
    assert (first.first_offset, first.last_offset, first.record_count, first.duplicate) == (0, 2, 3, False)
    assert (second.first_offset, second.last_offset) == (3, 4)
    assert second.log_append_time_ms == -1
    assert [check_batch(batch).partition_leader_epoch for batch in folder.log.batches()] == [4, 5]
    assert folder.log.leader_epochs.entries() == [(4, 0), (5, 3)]


def test_the_receive_buffer_may_be_reused_after_the_append(folder: LogFolder, make_batch: MakeBatch) -> None:
    buffer = bytearray(make_batch(2, value=b"kept"))
    folder.log.append_as_leader(memoryview(buffer), leader_epoch=0, now_ms=1_000_000)
    buffer[:] = bytes(len(buffer))
    buffer.clear()  # raises if anything still refers to it
    assert [value for _, value in folder.read_all()] == [b"kept", b"kept"]


def test_what_may_be_written_to_and_what_may_not_become_the_same_log(folder: LogFolder, make_batch: MakeBatch) -> None:
    batch = make_batch(2, value=b"same")
    for records in (memoryview(batch), memoryview(bytearray(batch))):
        folder.log.append_as_leader(records, leader_epoch=3, now_ms=1_000_000)
    first, second = (check_batch(each) for each in folder.log.batches())
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert replace(second, base_offset=0) == first


def test_several_batches_for_one_partition_of_a_request_are_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    assert "exactly one" in refused(folder, make_batch(2) + make_batch(3), ErrorCode.invalid_record)
    idempotent = make_batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
    refused(folder, idempotent + idempotent, ErrorCode.invalid_record)


@pytest.mark.parametrize("compression_type", ["producer", "zstd"])
def test_whatever_follows_a_batch_keeps_it_out(folder: LogFolder, make_batch: MakeBatch, compression_type: str) -> None:
    folder.configure(compression_type=compression_type)
    for rest in (b"x", make_batch(1)[:-1], make_batch(1)):
        refused(folder, make_batch(2) + rest, ErrorCode.invalid_record)


@pytest.mark.parametrize("size", [1, 11, 60])
def test_bytes_that_are_too_few_for_a_header_are_refused(folder: LogFolder, make_batch: MakeBatch, size: int) -> None:
    refused(folder, make_batch(1)[:size], ErrorCode.invalid_record)


def test_no_bytes_are_no_records(folder: LogFolder) -> None:
    refused(folder, b"", ErrorCode.invalid_record)


@pytest.mark.parametrize("length", [-(2**31), -12, -1, 0, 48, 2**31 - 1])
def test_a_hostile_batch_length_is_refused(folder: LogFolder, make_batch: MakeBatch, length: int) -> None:
    batch = bytearray(make_batch(1))
    struct.pack_into(">i", batch, 8, length)
    # A batch that is cut off is none, for Kafka, and there must be one.
    refused(folder, bytes(batch), ErrorCode.invalid_record if length > 48 else ErrorCode.corrupt_message)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused(folder: LogFolder, make_batch: MakeBatch, codec: int) -> None:
    """Every consumer of the partition would stop there."""
    assert f"unknown compression codec {codec}" in refused(
        folder, resealed(make_batch(1), attributes=codec), ErrorCode.invalid_record
    )


def test_a_first_record_too_far_in_the_future_is_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(message_timestamp_after_max_ms=1_000)
    late = resealed(make_batch(1, timestamp_ms=NOW_MS), base_timestamp_ms=NOW_MS + 1_001)
    refused(folder, late, ErrorCode.invalid_timestamp)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_with_the_remedy(folder: LogFolder, make_batch: MakeBatch, magic: int) -> None:
    batch = bytearray(make_batch(1))
    batch[16] = magic
    assert "client" in refused(folder, bytes(batch), ErrorCode.invalid_record)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_shorter_than_a_batch_header_is_told_from_damage(folder: LogFolder, magic: int) -> None:
    message = struct.pack(">qiIb", 0, 26, 0, magic) + bytes(21)
    assert len(message) < 61
    assert "client" in refused(folder, message, ErrorCode.invalid_record)


def test_an_unknown_magic_is_corruption(folder: LogFolder, make_batch: MakeBatch) -> None:
    batch = bytearray(make_batch(1))
    batch[16] = 3
    refused(folder, bytes(batch), ErrorCode.corrupt_message)


def test_control_records_of_clients_are_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    refused(folder, make_batch(1, attributes=CONTROL), ErrorCode.invalid_record)


def test_only_the_broker_stamps_with_append_time(folder: LogFolder, make_batch: MakeBatch) -> None:
    refused(folder, make_batch(1, attributes=TIMESTAMP_TYPE_LOG_APPEND), ErrorCode.invalid_timestamp)


def test_a_batch_that_claims_an_offset_is_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    refused(folder, make_batch(1, base_offset=5), ErrorCode.invalid_record)


@pytest.mark.parametrize(("last_delta", "count"), [(1, 1), (0, 2), (1, 3), (-1, 0), (-2, -1), (2**31 - 1, -(2**31))])
def test_a_count_that_disagrees_with_the_last_offset_is_refused(
    folder: LogFolder, make_batch: MakeBatch, last_delta: int, count: int
) -> None:
    batch = bytearray(make_batch(2))
    struct.pack_into(">i", batch, LAST_OFFSET_DELTA, last_delta)
    struct.pack_into(">i", batch, RECORD_COUNT, count)
    batch[CRC:ATTRIBUTES] = crc32c(bytes(batch[ATTRIBUTES:])).to_bytes(4, "big")
    assert "last offset delta" in refused(folder, bytes(batch), ErrorCode.invalid_record)


def test_a_producer_id_without_sequence_is_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    refused(folder, make_batch(1, producer_id=4), ErrorCode.invalid_record)


def test_a_batch_above_the_limit_is_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    batch = make_batch(1, value=bytes(500))
    folder.configure(max_message_bytes=len(batch) - 1)
    assert "max.message.bytes" in refused(folder, batch, ErrorCode.message_too_large)
    folder.configure(max_message_bytes=len(batch))
    folder.append(batch)


def test_a_batch_above_the_segment_size_is_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(segment_bytes=100)
    refused(folder, make_batch(1, value=bytes(500)), ErrorCode.record_list_too_large)


def test_timestamps_too_far_from_the_clock_are_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(message_timestamp_after_max_ms=10, message_timestamp_before_max_ms=20)
    refused(folder, make_batch(1, timestamp_ms=1_000_011), ErrorCode.invalid_timestamp)
    refused(folder, make_batch(1, timestamp_ms=999_979), ErrorCode.invalid_timestamp)
    folder.append(make_batch(1, timestamp_ms=1_000_010))
    folder.append(make_batch(1, timestamp_ms=999_980))
    folder.append(make_batch(1, timestamp_ms=-1))


@pytest.mark.parametrize("codec", range(5))
def test_log_append_time_is_stamped_with_a_new_checksum(folder: LogFolder, make_batch: MakeBatch, codec: int) -> None:
    folder.configure(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=0)
    info = folder.append(make_batch(3, codec=codec, timestamp_ms=5_000_000), now_ms=2_000_000)
    assert info.log_append_time_ms == 2_000_000
    [batch] = folder.log.batches()
    assert check_batch(batch).is_log_append_time
    assert {record.timestamp_ms for record in decode_records(batch)} == {2_000_000}


def test_a_retry_returns_the_first_offsets_and_appends_nothing(folder: LogFolder, make_batch: MakeBatch) -> None:
    batches = [make_batch(2, producer_id=1, producer_epoch=0, base_sequence=2 * i) for i in range(6)]
    infos = [folder.append(batch) for batch in batches]
    for batch, info in zip(batches[1:], infos[1:], strict=True):
        retry = folder.append(batch)
        assert (retry.first_offset, retry.last_offset, retry.duplicate) == (info.first_offset, info.last_offset, True)
    assert folder.log.log_end_offset == 12
    # The sixth last is outside of the window that five requests in flight need.
    refused(folder, batches[0], ErrorCode.out_of_order_sequence_number)


def test_a_full_disk_is_a_storage_error_and_leaves_no_trace(
    folder: LogFolder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.append(make_batch(1, value=b"before", producer_id=1, producer_epoch=0, base_sequence=0))
    batch = make_batch(1, value=b"after", producer_id=1, producer_epoch=0, base_sequence=1)
    write_some = os.pwrite
    with monkeypatch.context() as patch:

        def full(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
            return write_some(descriptor, bytes(buffers[0])[:7], position)

        def no_space(descriptor: int, data: Buffer, position: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "pwritev", full)
        patch.setattr(os, "pwrite", no_space)
        message = refused(folder, batch, ErrorCode.kafka_storage_error)
    assert "No space left" in message
    assert folder.append(batch).first_offset == 1
    assert [value for _, value in folder.read_all()] == [b"before", b"after"]


def test_a_short_write_is_continued(folder: LogFolder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda descriptor, buffers, position: whole(descriptor, buffers[:1], position))
    folder.append(make_batch(3, value=b"long" * 100))
    assert len(folder.read_all()) == 3


def test_a_short_write_of_what_was_received_is_continued(
    folder: LogFolder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, write_all = os.pwrite, os.pwritev

    def write_some(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        return write_all(descriptor, [memoryview(buffers[0])[:50]], position)

    monkeypatch.setattr(os, "pwritev", write_some)
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: write(descriptor, data[:50], position))
    received = bytearray(make_batch(3, value=b"long" * 100))
    folder.log.append_as_leader(memoryview(received), leader_epoch=0, now_ms=1_000_000)
    assert [value for _, value in folder.read_all()] == [b"long" * 100] * 3


def test_more_buffers_than_one_call_takes_are_written(folder: LogFolder) -> None:
    path = folder.path / "many"
    file = RealFile(str(path), os.O_RDWR | os.O_CREAT)
    assert file.append([b"a"] * 5_000) == 0
    assert file.append([b"b"]) == 5_000
    assert path.read_bytes() == b"a" * 5_000 + b"b"


def test_a_full_segment_is_rolled(small_segments: LogFolder, make_batch: MakeBatch) -> None:
    for _ in range(30):
        small_segments.append(make_batch(1))
    sizes = [path.stat().st_size for path in sorted(small_segments.path.glob("*.log"))]
    assert len(sizes) >= 3
    assert max(sizes) <= 1_000
    assert len(small_segments.read_all()) == 30
    bases = [int(name[:20]) for name in small_segments.names(".log")]
    assert small_segments.names(".snapshot") == [f"{base:020d}.snapshot" for base in bases[1:]]


def test_a_segment_is_rolled_when_its_first_batch_is_too_old(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(segment_ms=100)
    for timestamp_ms in (1_000, 1_100, 1_101, 1_150):
        folder.append(make_batch(1, timestamp_ms=timestamp_ms))
    assert [int(name[:20]) for name in folder.names(".log")] == [0, 2]


def test_a_segment_that_nothing_is_appended_to_is_rolled_all_the_same(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(segment_ms=100)
    folder.append(make_batch(1, timestamp_ms=NOW_MS + 5))
    assert not folder.log.maybe_roll(NOW_MS + 105)
    assert folder.log.maybe_roll(NOW_MS + 106)
    assert not folder.log.maybe_roll(NOW_MS + 999)  # empty now


def test_a_replay_of_old_records_begins_no_segment_at_every_look(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(segment_ms=100)
    folder.append(make_batch(1, timestamp_ms=1_000))
    assert not folder.log.maybe_roll(NOW_MS + 100)
    folder.append(make_batch(1, timestamp_ms=1_050))
    assert folder.log.segment_count == 1
    assert folder.log.maybe_roll(NOW_MS + 101)


def test_a_segment_is_rolled_when_its_index_is_full(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(segment_index_bytes=16, index_interval_bytes=0)
    for _ in range(9):
        folder.append(make_batch(1))
    assert folder.log.segment_count > 2
    assert all((folder.path / name).stat().st_size <= 16 for name in folder.names(".index"))


def test_a_segment_is_rolled_before_its_offsets_overflow(folder: LogFolder, make_batch: MakeBatch) -> None:
    leader = bytearray(make_batch(1))
    for offset in (0, 2**31 - 1, 2**31, 2**31 + 1):
        struct.pack_into(">q", leader, 0, offset)
        folder.log.append_as_follower(bytes(leader))
    assert [int(name[:20]) for name in folder.names(".log")] == [0, 2**31]


def test_a_follower_keeps_offsets_and_leaves_a_cut_batch_out(folder: LogFolder, make_batch: MakeBatch) -> None:
    fetched = make_batch(2, base_offset=5, partition_leader_epoch=3) + make_batch(
        3, base_offset=7, partition_leader_epoch=4, producer_id=1, producer_epoch=0, base_sequence=0
    )
    info = folder.log.append_as_follower(fetched + make_batch(1, base_offset=10)[:-1])
    assert (info.first_offset, info.last_offset, info.record_count, info.size_bytes) == (5, 9, 5, len(fetched))
    assert folder.log.leader_epochs.entries() == [(3, 5), (4, 7)]
    assert folder.log.producers.get(1) is not None
    with pytest.raises(KafkaError, match="ends at 10"):
        folder.log.append_as_follower(make_batch(1, base_offset=9))


def test_a_damaged_batch_of_the_leader_is_refused(folder: LogFolder, make_batch: MakeBatch) -> None:
    batch = bytearray(make_batch(2))
    batch[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        folder.log.append_as_follower(bytes(batch))
    assert caught.value.code == ErrorCode.corrupt_message
    assert folder.log.log_end_offset == 0


def test_flush_messages_forces_the_log_to_disk(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(flush_messages=5)
    assert folder.append(make_batch(4)).flush is None
    assert folder.log.durability.flushed_offset == 0
    assert folder.append(make_batch(1)).flush is not None
    folder.log.durability.poll()
    assert folder.log.durability.flushed_offset == 5


def test_flush_ms_forces_the_log_to_disk(folder: LogFolder, make_batch: MakeBatch) -> None:
    folder.configure(flush_ms=50)
    durability = folder.log.durability
    durability.request_if_due(1_000_000, folder.config.flush_ms)
    folder.append(make_batch(4))
    durability.request_if_due(1_000_049, folder.config.flush_ms)
    durability.poll()
    assert durability.flushed_offset == 0
    durability.request_if_due(1_000_050, folder.config.flush_ms)
    durability.poll()
    assert durability.flushed_offset == 4


def test_kafka_10778_a_log_whose_write_failed_takes_no_records_although_its_disk_works_again(
    folder: LogFolder, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the failed write a part may be in the file, and what follows it would be behind a hole.

    Records of producers, markers and records of a leader are refused alike. The same after a failed sync, roll or
    truncation: test_durability.py, test_recovery.py, test_truncation.py.
    """

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    def refusal(work: Callable[[], object]) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            work()
        return caught.value.code

    folder.append(make_batch(1))
    log, active = folder.log, folder.log.segments.active
    size = active.size
    with monkeypatch.context() as broken:
        broken.setattr(active, "_file", SimpleNamespace(append=fail, path="x"))
        assert refusal(lambda: folder.append(make_batch(1))) is ErrorCode.kafka_storage_error
    marker = partial(
        log.append_end_txn_marker,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        committed=True,
        transaction_version=1,
        leader_epoch=0,
        now_ms=NOW_MS,
    )
    replicated = build_batch([Record(None, b"v", NOW_MS)], base_offset=1, partition_leader_epoch=0)
    for work in (lambda: folder.append(make_batch(1)), marker, lambda: log.append_as_follower(replicated)):
        assert refusal(work) is ErrorCode.kafka_storage_error
    assert (log.log_end_offset, active.size, log.segments.active) == (1, size, active)
