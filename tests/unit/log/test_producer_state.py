"""Idempotent producers: duplicates, gaps, fencing, wrap, expiry, snapshots."""

from __future__ import annotations

import pytest

from headwater.logtier.log.producers.producer_snapshot_codec import SnapshotError, decode_snapshot, encode_snapshot
from headwater.logtier.log.producers.producer_state import ProducerState, ProducerStates
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.records.batch import (
    Record,
    RecordBatchHeader,
    build_batch,
    decode_end_transaction_marker,
    end_transaction_marker,
)

PRODUCER = 5
#: End of a log that has records.
END = 1_000


def take(states: ProducerStates, epoch: int, sequence: int, count: int, offset: int) -> None:
    assert states.check(PRODUCER, epoch, sequence, count - 1, offset) is None
    states.update(PRODUCER, epoch, sequence, count - 1, offset + count - 1, 1_000)


def error(states: ProducerStates, epoch: int, sequence: int, count: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check(PRODUCER, epoch, sequence, count - 1, END)
    return caught.value.code


def contents(states: ProducerStates) -> dict[int, list[object]]:
    return {
        producer_id: [
            list(value) if name == "batches" else value
            for name in ProducerState.__slots__
            for value in [getattr(state, name)]
        ]
        for producer_id, state in states
    }


def test_an_unknown_producer_begins_anywhere_in_a_log_that_has_records() -> None:
    take(ProducerStates(), 3, 812, 2, END)


def test_a_producer_begins_a_log_with_its_first_batch() -> None:
    """KAFKA-15591: the batch before was refused, as the topic was new here, and comes again.

    If this one were taken, the other could never be: the producer would give it up after delivery.timeout.ms.
    """
    with pytest.raises(KafkaError, match="sequence 17 to a log without records, expected is 0") as caught:
        ProducerStates().check(PRODUCER, 0, 17, 4, 0)
    assert caught.value.code == ErrorCode.out_of_order_sequence_number
    take(ProducerStates(), 0, 0, 17, 0)


def test_sequences_must_be_contiguous() -> None:
    states = ProducerStates()
    take(states, 0, 0, 3, 0)
    take(states, 0, 3, 1, 3)
    assert error(states, 0, 5, 1) == ErrorCode.out_of_order_sequence_number
    assert error(states, 0, 2, 1) == ErrorCode.out_of_order_sequence_number
    take(states, 0, 4, 1, 4)


def test_a_part_of_an_appended_batch_is_no_duplicate() -> None:
    states = ProducerStates()
    take(states, 0, 0, 4, 0)
    duplicate = states.check(PRODUCER, 0, 0, 3, END)
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.last_offset) == (0, 3)
    assert error(states, 0, 0, 2) == ErrorCode.out_of_order_sequence_number
    assert error(states, 0, 1, 3) == ErrorCode.out_of_order_sequence_number


def test_five_batches_are_recognised_and_the_sixth_last_is_not() -> None:
    """The five-batch deduplication window. A producer has five requests under way at most."""
    states = ProducerStates()
    for i in range(6):
        take(states, 0, i, 1, i)
    for i in range(1, 6):
        found = states.check(PRODUCER, 0, i, 0, END)
        assert found is not None
        assert found.first_offset == i
    assert error(states, 0, 0, 1) == ErrorCode.out_of_order_sequence_number


def test_sequences_wrap_after_the_largest_int32() -> None:
    states = ProducerStates()
    take(states, 0, 2**31 - 3, 2, 10)
    take(states, 0, 2**31 - 1, 3, 12)
    take(states, 0, 2, 1, 15)
    found = states.check(PRODUCER, 0, 2**31 - 1, 2, END)
    assert found is not None
    assert found.first_offset == 12


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    states = ProducerStates()
    take(states, 1, 0, 1, 0)
    assert error(states, 0, 1, 1) == ErrorCode.invalid_producer_epoch
    assert error(states, 2, 1, 1) == ErrorCode.out_of_order_sequence_number
    take(states, 2, 0, 1, 1)
    assert error(states, 1, 0, 1) == ErrorCode.invalid_producer_epoch
    # The same sequence of another epoch is no duplicate.
    take(states, 3, 0, 1, 2)


def test_a_transaction_marker_with_a_newer_epoch_fences_the_older_one() -> None:
    states = ProducerStates()
    take(states, 1, 0, 1, 0)
    marker = end_transaction_marker(
        committed=False, producer_id=PRODUCER, producer_epoch=2, coordinator_epoch=0, timestamp_ms=1
    )
    states.replay(RecordBatchHeader.parse(marker), decode_end_transaction_marker(marker))
    assert error(states, 1, 1, 1) == ErrorCode.invalid_producer_epoch
    # Sequences begin anew with the epoch, though nothing of it was appended yet.
    assert error(states, 2, 7, 1) == ErrorCode.out_of_order_sequence_number
    take(states, 2, 0, 1, 2)


def test_silent_producers_are_forgotten() -> None:
    states = ProducerStates()
    take(states, 0, 0, 1, 0)
    assert states.remove_expired(1_999, 1_000) == 0
    assert states.remove_expired(2_000, 1_000) == 1
    take(states, 0, 99, 1, 1)


def test_kafka_9144_a_marker_keeps_its_producer_from_being_forgotten() -> None:
    """KAFKA-9144: only records counted as a sign of life. A producer whose silent transaction was aborted was forgotten
    at once, and a former coordinator's marker was appended after its successor's.
    """
    states = ProducerStates()
    states.update(PRODUCER, 0, 0, 0, 0, 1_000, is_transactional=True)
    marker = end_transaction_marker(
        committed=False, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=7, timestamp_ms=9_000
    )
    states.replay(RecordBatchHeader.parse(marker), decode_end_transaction_marker(marker))
    assert states.remove_expired(9_999, 1_000) == 0
    with pytest.raises(KafkaError) as caught:
        states.check_marker(PRODUCER, 1, 6, 1)
    assert caught.value.code is ErrorCode.transaction_coordinator_fenced


def test_kafka_9144_a_follower_takes_markers_whose_coordinator_epoch_goes_back() -> None:
    """KAFKA-9144: logs in which it happened could neither be replicated nor recovered."""
    states = ProducerStates()
    for coordinator_epoch in (7, 6):
        marker = end_transaction_marker(
            committed=True,
            producer_id=PRODUCER,
            producer_epoch=0,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=1_000,
        )
        states.replay(RecordBatchHeader.parse(marker), decode_end_transaction_marker(marker))
    state = states.get(PRODUCER)
    assert state is not None
    assert state.coordinator_epoch == 6


def test_a_snapshot_brings_everything_back() -> None:
    states = ProducerStates()
    for producer_id in range(4):
        for i in range(producer_id * 2):
            states.update(producer_id, 1, (2**31 - 4 + i * 2) & 0x7FFFFFFF, 1, i * 2 + 1, 500 + i)
    marker = end_transaction_marker(
        committed=True, producer_id=9, producer_epoch=3, coordinator_epoch=1, timestamp_ms=77
    )
    states.replay(RecordBatchHeader.parse(marker), decode_end_transaction_marker(marker))
    states.update(8, 2, 0, 1, 901, 600, is_transactional=True)
    states.update(7, 2, 0, 1, 11, 600, is_transactional=True)
    again = decode_snapshot(encode_snapshot(states))
    assert contents(again) == contents(states)
    assert again.last_stable_offset(2_000) == 10


def test_batches_without_a_producer_are_not_remembered() -> None:
    states = ProducerStates()
    states.replay(RecordBatchHeader.parse(build_batch([Record(None, b"x", 1)])))
    assert len(states) == 0


@pytest.mark.parametrize("cut", [0, 5, 9, 30])
def test_a_cut_snapshot_is_refused(cut: int) -> None:
    states = ProducerStates()
    take(states, 0, 0, 1, 0)
    with pytest.raises(SnapshotError):
        decode_snapshot(encode_snapshot(states)[:cut])


def test_a_snapshot_of_another_version_or_with_a_flipped_bit_is_refused() -> None:
    data = bytearray(encode_snapshot(ProducerStates()))
    with pytest.raises(SnapshotError, match="version 2"):
        decode_snapshot(b"\x00\x02" + bytes(data[2:]))
    data[-1] ^= 1
    with pytest.raises(SnapshotError, match="checksum"):
        decode_snapshot(bytes(data))
