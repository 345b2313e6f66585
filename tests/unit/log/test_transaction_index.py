"""The index of aborted transactions: Kafka's bytes, and what a look-up finds."""

from __future__ import annotations

import pytest

from headwater.logtier.log.producers.producer_snapshot_codec import decode_snapshot, encode_snapshot
from headwater.logtier.log.producers.producer_state import ProducerStates
from headwater.logtier.log.segments.transaction_index import AbortedTransaction, TransactionIndex

# A segment that begins at offset 13, as DumpLogSegments of Kafka 4.1.1 shows these bytes: producer 1, offsets 15-17 and
# 21-22, last stable offset 18 for both.
TWO = bytes.fromhex(
    "0000 0000000000000001 000000000000000f 0000000000000011 0000000000000012"
    "0000 0000000000000001 0000000000000015 0000000000000016 0000000000000012"
)


def test_the_file_is_kafkas() -> None:
    index = TransactionIndex()
    index.append(AbortedTransaction(1, 15, 17, 18))
    index.append(AbortedTransaction(1, 21, 22, 18))
    assert index.to_bytes() == TWO
    again = TransactionIndex.from_bytes(TWO, 13)
    assert again is not None
    assert again.entries() == index.entries()
    assert (index.is_unsaved, again.is_unsaved) == (True, False)


@pytest.mark.parametrize(
    "damaged",
    [
        TWO[:-1],
        b"\x00\x01" + TWO[2:],
        TWO[34:] + TWO[:34],
        TWO[:34] * 2,
        TWO[:17] + b"\x12" + TWO[18:],
    ],
    ids=["cut", "unknown version", "out of order", "twice", "ends before it begins"],
)
def test_a_damaged_file_is_recognised(damaged: bytes) -> None:
    assert TransactionIndex.from_bytes(damaged, 13) is None


def test_a_file_of_another_segment_is_recognised() -> None:
    assert TransactionIndex.from_bytes(TWO, 18) is None


def test_a_look_up_ends_where_later_transactions_cannot_matter() -> None:
    index = TransactionIndex.from_bytes(TWO, 13)
    assert index is not None
    first, second = index.entries()
    assert index.search(0, 18) == ([first], True)
    assert index.search(0, 19) == ([first], False)
    assert index.search(17, 30) == ([first, second], False)
    assert index.search(18, 30) == ([second], False)
    assert index.search(23, 30) == ([], False)


def test_truncation_forgets_transactions_whose_marker_is_gone() -> None:
    index = TransactionIndex.from_bytes(TWO, 13)
    assert index is not None
    index.truncate_to(23)
    assert (len(index), index.is_unsaved) == (2, False)
    index.truncate_to(22)
    assert (len(index), index.is_unsaved) == (1, True)


def test_a_snapshot_with_an_open_transaction_is_kafkas() -> None:
    """As DumpLogSegments of Kafka 4.1.1 shows it: currentTxnFirstOffset 12, coordinator epoch -1."""
    states = ProducerStates()
    states.update(1, 3, 8, 0, 12, 1_000_000, is_transactional=True)
    entry = bytes.fromhex(
        "0000000000000001 0003 00000008 000000000000000c 00000000 00000000000f4240 ffffffff000000000000000c"
    )
    data = encode_snapshot(states)
    assert data[6:] == b"\x00\x00\x00\x01" + entry
    assert decode_snapshot(data).last_stable_offset(100) == 12
