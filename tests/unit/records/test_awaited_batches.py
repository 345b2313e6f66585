"""Which batches of a connection wait until a refused one has come again."""

from headwater.logtier.records.awaited_batches import (
    HELD_BACK_MAX,
    PARTITIONS_MAX,
    AwaitedBatches,
    BatchSequence,
    sequence_of,
)
from headwater.logtier.records.batch import Record, build_batch

HERE, THERE = ("flights", 0), ("flights", 1)
LAST = 2**31 - 1


def batch(base_sequence: int, epoch: int = 0, producer_id: int = 7) -> BatchSequence:
    return BatchSequence(producer_id, epoch, base_sequence)


def test_what_comes_behind_a_refused_batch_is_held_back_until_its_log_takes_one() -> None:
    awaited = AwaitedBatches()
    assert not awaited
    awaited.refused(HERE, batch(3))
    assert awaited
    assert awaited.hold_back(HERE, batch(4))
    assert not awaited.hold_back(HERE, batch(3))
    assert not awaited.hold_back(THERE, batch(4))
    for other in (None, batch(0, producer_id=8)):
        awaited.appended(HERE, other)
        assert awaited.hold_back(HERE, batch(4))
    awaited.appended(HERE, batch(3))
    assert not awaited.hold_back(HERE, batch(4))
    assert not awaited


def test_another_epoch_or_producer_is_not_held_back() -> None:
    awaited = AwaitedBatches()
    awaited.refused(HERE, batch(3))
    assert not awaited.hold_back(HERE, batch(4, epoch=1))
    assert not awaited.hold_back(HERE, batch(4, producer_id=8))
    assert not awaited.hold_back(HERE, None)


def test_the_first_of_several_refused_batches_is_awaited() -> None:
    awaited = AwaitedBatches()
    for refused in (4, 5, 3):
        awaited.refused(HERE, batch(refused))
    assert awaited.hold_back(HERE, batch(4))
    assert not awaited.hold_back(HERE, batch(3))
    awaited.refused(HERE, batch(0, epoch=1))
    assert awaited.hold_back(HERE, batch(1, epoch=1))


def test_a_gap_that_stays_is_told_in_the_end() -> None:
    awaited = AwaitedBatches()
    for _ in range(2):
        awaited.refused(HERE, batch(3))
        assert [awaited.hold_back(HERE, batch(4)) for _ in range(HELD_BACK_MAX)] == [True] * HELD_BACK_MAX
    assert not awaited.hold_back(HERE, batch(4))
    assert not awaited


def test_sequence_numbers_wrap() -> None:
    awaited = AwaitedBatches()
    awaited.refused(HERE, batch(LAST))
    assert awaited.hold_back(HERE, batch(0))
    assert not awaited.hold_back(HERE, batch(LAST - 1))


def test_the_partitions_have_a_limit() -> None:
    awaited = AwaitedBatches()
    for number in range(PARTITIONS_MAX + 1):
        awaited.refused(("flights", number), batch(0))
    assert len(awaited) == PARTITIONS_MAX
    assert not awaited.hold_back(HERE, batch(1))
    assert awaited.hold_back(("flights", PARTITIONS_MAX), batch(1))


def test_only_batches_of_idempotent_producers_have_a_place() -> None:
    records = [Record(None, b"x", 1_000)]
    sent = build_batch(records, producer_id=7, producer_epoch=1, base_sequence=5)
    assert sequence_of(sent) == batch(5, epoch=1)
    assert sequence_of(sent[:60]) is None
    assert sequence_of(None) is None
    assert sequence_of(build_batch(records)) is None
    assert sequence_of(build_batch(records, producer_id=7, producer_epoch=1)) is None
