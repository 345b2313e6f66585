"""The bytes of `__transaction_state`: as Apache Kafka 4.1.1 writes and reads them."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.state_topic.record_codec import CorruptStateRecordError
from headwater.logtier.transaction.metadata import STATES_BY_NUMBER, TransactionMetadata, TransactionState
from headwater.logtier.transaction.records import parse_key, parse_value, transaction_key, transaction_value

METADATA = TransactionMetadata(
    1005,
    2,
    1005,
    timeout_ms=60_000,
    state=TransactionState.PREPARE_ABORT,
    partitions=frozenset({TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("bb", 7)}),
    start_ms=1_795_261_843_314,
    last_update_ms=1_795_261_843_315,
    client_version=2,
)


def test_the_bytes_of_a_key() -> None:
    assert transaction_key("payments").hex(" ", 2) == "0000 0008 7061 796d 656e 7473"
    assert parse_key(transaction_key("päyments")) == "päyments"


def test_the_bytes_of_a_value() -> None:
    expected = b"".join(
        (
            struct.pack(">hqhib", 1, 1005, 2, 60_000, 3),
            b"\x03",  # two topics
            b"\x02a\x03" + struct.pack(">ii", 0, 1) + b"\0",
            b"\x03bb\x02" + struct.pack(">i", 7) + b"\0",
            struct.pack(">qq", 1_795_261_843_315, 1_795_261_843_314),
            b"\x02",  # two tagged fields
            b"\x00\x08" + struct.pack(">q", 1005),
            b"\x02\x02" + struct.pack(">h", 2),
        )
    )
    assert transaction_value(METADATA) == expected


def test_an_empty_transaction_has_no_partitions_and_no_defaults() -> None:
    metadata = TransactionMetadata(5, 0, timeout_ms=1, last_update_ms=2)
    assert (
        transaction_value(metadata) == struct.pack(">hqhib", 1, 5, 0, 1, 0) + b"\0" + struct.pack(">qq", 2, -1) + b"\0"
    )


@pytest.mark.parametrize("state", [STATES_BY_NUMBER[number] for number in range(6)])
def test_what_is_written_is_read(state: TransactionState) -> None:
    metadata = replace(METADATA, state=state, next_producer_id=1006)
    if state is TransactionState.EMPTY:
        metadata = replace(metadata, partitions=frozenset())
    assert parse_value(transaction_value(metadata)) == metadata


def test_values_of_version_0_are_read() -> None:
    data = b"".join(
        (
            struct.pack(">hqhib", 0, 1005, 2, 60_000, 4),
            struct.pack(">i", 1) + b"\0\x01a" + struct.pack(">ii", 1, 3),
            struct.pack(">qq", 20, 10),
        )
    )
    assert parse_value(data) == TransactionMetadata(
        1005,
        2,
        timeout_ms=60_000,
        state=TransactionState.COMPLETE_COMMIT,
        partitions=frozenset({TopicPartition("a", 3)}),
        start_ms=10,
        last_update_ms=20,
    )


def test_a_key_of_a_later_version_is_passed_over() -> None:
    assert parse_key(b"\0\x01whatever") is None


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_a_cut_key_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptStateRecordError):
        parse_key(transaction_key("payments")[:size])


@pytest.mark.parametrize("size", range(0, 60, 3))
def test_a_cut_value_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptStateRecordError):
        parse_value(transaction_value(METADATA)[:size])


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">h", 2) + transaction_value(METADATA)[2:],
        struct.pack(">hqhib", 1, 5, 0, 1, 9) + b"\0" * 18,
        struct.pack(">hqhib", 1, 5, 0, 1, 1) + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hqhib", 1, 5, 0, 1, 1) + b"\xff\xff\xff\xff\xff\xff",
    ],
)
def test_hostile_values_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptStateRecordError):
        parse_value(data)
