"""Two replicas of a partition side by side: equal bytes, planted differences, and what cleaners leave."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from headwater.logtier.records.batch import (
    ATTRIBUTES,
    CRC,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    Record,
    RecordBatchHeader,
    build_batch,
    decode_records,
    end_transaction_marker,
)
from headwater.logtier.records.compression import CODECS
from headwater.verification.replica_comparison import ReplicaBatch, ReplicaPair, whole_batches
from headwater.verification.unmatched_records import Unmatched, UnmatchedRecords


def batch(base_offset: int, *records: Record, **fields: int) -> bytes:
    return build_batch(list(records), base_offset=base_offset, **{"partition_leader_epoch": 3, **fields})


def keyed(key: str, value: str | None) -> Record:
    return Record(key.encode(), None if value is None else value.encode(), 1_000)


def replica(*batches: bytes) -> list[ReplicaBatch]:
    return whole_batches(memoryview(b"".join(batches)))


def pair(*, is_compacted: bool = False) -> ReplicaPair:
    return ReplicaPair(1, 2, is_compacted=is_compacted)


FIRST = batch(0, keyed("a", "1"), keyed("b", "2"))
SECOND = batch(2, keyed("c", "3"))


def test_equal_replicas_do_not_differ() -> None:
    assert pair().compare(replica(FIRST, SECOND), replica(FIRST, SECOND)) is None


def test_a_truncated_batch_at_the_end_of_a_fetch_is_left_to_the_next_one() -> None:
    assert [each.base_offset for each in replica(FIRST, SECOND[:-1])] == [0]


@pytest.mark.parametrize(
    ("other", "offset", "reason"),
    [
        ([batch(0, keyed("a", "1"), keyed("b", "X")), SECOND], 1, "the value of the record differs"),
        ([batch(0, keyed("X", "1"), keyed("b", "2")), SECOND], 0, "the key of the record differs"),
        (
            [batch(0, keyed("a", "1"), keyed("b", "2")._replace(timestamp_ms=7)), SECOND],
            1,
            "the timestamp of the record differs",
        ),
        ([FIRST, batch(2, keyed("c", "3"), partition_leader_epoch=4)], 2, "the leader epoch differs, 3 and 4 on"),
        ([FIRST, batch(2, keyed("c", "3"), producer_id=9)], 2, "the producer id differs, -1 and 9 on"),
        ([FIRST, batch(2, keyed("c", "3"), attributes=TRANSACTIONAL)], 2, "the attributes differ, 0x0 and 0x10 on"),
        ([FIRST, batch(2, keyed("c", "3"), keyed("d", "4"))], 2, "the last offset differs, 0 and 1 on"),
        ([FIRST], 2, "broker 2 lacks the batch of offset 2, which broker 1 has"),
        ([SECOND], 0, "broker 2 lacks the batch of offset 0-1, which broker 1 has"),
        ([FIRST, SECOND, batch(3, keyed("d", "4"))], 3, "broker 1 lacks the batch of offset 3, which broker 2 has"),
        ([FIRST, SECOND[:-2] + b"XX"], 2, "the checksum of the batch is wrong on broker 2"),
        (
            [batch(0, keyed("a", "1"), keyed("b", "2"), codec=CODECS["gzip"]), SECOND],
            0,
            "the batches have equal records in different bytes",
        ),
    ],
)
def test_each_difference_is_found_at_its_offset(other: list[bytes], offset: int, reason: str) -> None:
    found = pair().compare(replica(FIRST, SECOND), replica(*other))
    assert found is not None
    assert (found.offset, found.brokers) == (offset, (1, 2))
    assert reason in found.reason


def test_cleaned_batches_are_equal_if_their_records_are() -> None:
    """A cleaner compresses anew, and stores when tombstones expire in place of the first timestamp."""
    plain = batch(0, keyed("a", "1"), keyed("b", "2"))
    packed = batch(0, keyed("a", "1"), keyed("b", "2"), codec=CODECS["gzip"], attributes=DELETE_HORIZON)
    compacted = pair(is_compacted=True)
    assert compacted.compare(replica(plain), replica(packed)) is None
    assert not len(compacted.unmatched)


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_wrong_checksum_is_found_among_cleaned_batches_too(is_alone: bool) -> None:
    damaged = bytearray(batch(0, keyed("a", "1"), keyed("b", "2"), codec=CODECS["gzip"]))
    damaged[CRC] ^= 1
    found = pair(is_compacted=True).compare(replica(SECOND if is_alone else FIRST), replica(bytes(damaged)))
    assert found is not None
    assert (found.offset, "damaged" in found.reason or "checksum" in found.reason) == (0, True)


@pytest.mark.parametrize("changed", [{"partition_leader_epoch": 4}, {"producer_epoch": 1}, {"base_sequence": 5}])
def test_no_cleaner_changes_an_epoch_or_a_sequence(changed: dict[str, int]) -> None:
    found = pair(is_compacted=True).compare(replica(SECOND), replica(batch(2, keyed("c", "3"), **changed)))
    assert found is not None
    assert found.offset == 2


def test_a_record_that_both_have_is_compared_though_cleaners_ran() -> None:
    one = batch(0, keyed("a", "1"), keyed("b", "2"))
    other = _without(batch(0, keyed("a", "1"), keyed("b", "X")), 0)
    found = pair(is_compacted=True).compare(replica(one), replica(other))
    assert found is not None
    assert (found.offset, found.reason) == (1, "the value of the record differs")


def _without(data: bytes, delta: int) -> bytes:
    """A batch as a cleaner leaves it, without one record: offsets and sequence numbers stay."""
    header = RecordBatchHeader.parse(data)
    kept = [record for record in decode_records(data) if record.offset != header.base_offset + delta]
    # Each record alone, for its bytes: the deltas of offsets are below 64, one byte each, after length and attributes.
    body = bytearray()
    for record in kept:
        single = bytearray(build_batch([record])[HEADER_BYTES:])
        single[3] = (record.offset - header.base_offset) * 2
        body += single
    base_offset, _, *values, _ = HEADER.unpack_from(data)
    out = bytearray(HEADER.pack(base_offset, HEADER_BYTES - LOG_OVERHEAD + len(body), *values, len(kept))) + body
    out[CRC:ATTRIBUTES] = crc32c(memoryview(out)[ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(out)


def test_a_replaced_record_may_be_missing_and_the_last_of_a_key_may_not() -> None:
    one = [batch(0, keyed("a", "1"), keyed("b", "2")), batch(2, keyed("a", "3"))]
    other = [_without(one[0], 0), one[1]]
    compacted = pair(is_compacted=True)
    assert compacted.compare(replica(*one), replica(*other)) is None
    assert compacted.unmatched.remaining() == []
    lost = pair(is_compacted=True)
    assert lost.compare(replica(*one), replica(one[1])) is None
    assert lost.unmatched.remaining() == [Unmatched(1, keeper=1, lacking=2)]


def test_the_later_record_may_follow_in_another_window_or_behind_the_end() -> None:
    for explain in (False, True):
        compacted = pair(is_compacted=True)
        assert compacted.compare(replica(SECOND), []) is None
        assert [each.offset for each in compacted.unmatched.remaining()] == [2]
        later = replica(batch(9, keyed("c", "9")))
        if explain:
            compacted.explain(later)
        else:
            assert compacted.compare(later, later) is None
        assert compacted.unmatched.remaining() == []


def test_each_replica_may_lack_others_of_one_key() -> None:
    """The later of the two counts, in whatever order they stand in a batch."""
    whole = batch(0, keyed("k", "1"), keyed("k", "2"), keyed("z", "3"))
    for first, second in ((0, 1), (1, 0)):
        compacted = pair(is_compacted=True)
        assert compacted.compare(replica(_without(whole, first)), replica(_without(whole, second))) is None
        [remaining] = compacted.unmatched.remaining()
        assert remaining.offset == 1


def end_marker(*, committed: bool) -> bytes:
    return end_transaction_marker(
        committed=committed,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1_000,
        base_offset=11,
        partition_leader_epoch=3,
    )


def test_what_cleaners_remove_without_a_later_record_may_be_missing() -> None:
    transactional = {"attributes": TRANSACTIONAL, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    aborted = batch(10, keyed("t", "1"), **transactional)
    cases = [
        [batch(2, keyed("gone", None))],
        [batch(2, Record(None, b"no key", 1_000))],
        [aborted, end_marker(committed=False)],
    ]
    for present in cases:
        compacted = pair(is_compacted=True)
        assert compacted.compare(replica(*present), []) is None
        assert compacted.unmatched.remaining() == []
    committed = pair(is_compacted=True)
    marker = end_marker(committed=True)
    assert committed.compare(replica(aborted, marker), replica(marker)) is None
    assert [each.offset for each in committed.unmatched.remaining()] == [10]


def test_the_records_that_are_remembered_have_a_limit_and_the_rest_is_counted() -> None:
    unmatched = UnmatchedRecords(records_max=100)
    keys = [b"key-%d" % number for number in range(10_000)]
    for offset, key in enumerate(keys):
        unmatched.add(key, Unmatched(offset, 1, 2))
        assert len(unmatched) <= 100
    assert len(unmatched) + unmatched.dropped == 10_000
    assert len(unmatched) > 0
    # Those that are followed are followed over the whole log.
    assert unmatched.remaining()[-1].offset > 5_000
    for key in keys:
        unmatched.see(key)
    assert unmatched.remaining() == []


def test_records_below_the_log_start_are_forgotten() -> None:
    unmatched = UnmatchedRecords()
    unmatched.add(b"a", Unmatched(1, 1, 2, producer_id=7))
    unmatched.add(b"b", Unmatched(5, 1, 2))
    unmatched.forget_below(3)
    unmatched.end_transaction(7, committed=False)
    assert [each.offset for each in unmatched.remaining()] == [5]
