"""The fence record: which batch is written, which is skipped, which is refused; and how the record is found again."""

from __future__ import annotations

import pytest

from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch, end_transaction_marker
from headwater.pipelines.sinks.commit_metadata import user_metadata
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import (
    Batch,
    CheckpointMismatch,
    Fence,
    Step,
    latest_committed,
    latest_values,
    next_step,
)

KEY = b"headwater.flights.clean"
DONE = Fence(Batch("c", 7, ({"flights": {"0": 12}},)))


@pytest.mark.parametrize(
    ("fence", "batch", "step"),
    [
        (None, Batch("c", 0, (1,)), Step.WRITE),
        (DONE, Batch("c", 8, ({"flights": {"0": 20}},)), Step.WRITE),
        (DONE, Batch("c", 11, ({"flights": {"0": 20}},)), Step.WRITE),
        (DONE, DONE.batch, Step.SKIP),
        # A new checkpoint counts from 0 again: its batches are others.
        (DONE, Batch("other", 0, (1,)), Step.WRITE),
        (DONE, Batch("other", 7, ({"flights": {"0": 12}},)), Step.WRITE),
    ],
    ids=["first run", "next", "batches without anything to write between", "crash before the checkpoint's commit",
         "new checkpoint", "new checkpoint, same number and offsets"],
)  # fmt: skip
def test_a_batch_is_written_once(fence: Fence | None, batch: Batch, step: Step) -> None:
    assert next_step(fence, batch) is step


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (Batch("c", 7, ({"flights": {"0": 13}},)), "with other source offsets"),
        (Batch("c", 5, ({"flights": {"0": 9}},)), "up to micro-batch 7"),
        (Batch("c", 0, ({"flights": {"0": 12}},)), "up to micro-batch 7"),
    ],
    ids=["planned anew with other offsets", "an older copy", "from its beginning"],
)
def test_a_checkpoint_that_was_set_back_is_refused(batch: Batch, said: str) -> None:
    with pytest.raises(CheckpointMismatch, match=said) as caught:
        next_step(DONE, batch)
    assert "bring back the later one" in str(caught.value)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"version":2,"checkpoint":"c","batch":1,"offsets":[]}', b"\xff"])
def test_a_fence_of_a_later_release_or_garbage_is_told(value: bytes) -> None:
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        Fence.decode(value)


def record(key: bytes, value: bytes | None, offset: int, producer_id: int | None, epoch: int = 0) -> bytes:
    if producer_id is None:
        return build_batch([Record(key, value, 1)], base_offset=offset)
    return build_batch(
        [Record(key, value, 1)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )


def marker(offset: int, producer_id: int, *, committed: bool) -> bytes:
    return end_transaction_marker(
        committed=committed,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=1,
        base_offset=offset,
    )


COMMITTED = [record(KEY, b"1", 0, 5), marker(1, 5, committed=True)]


@pytest.mark.parametrize(
    ("log", "value"),
    [
        ([], None),
        (COMMITTED, b"1"),
        ([record(KEY, b"1", 0, 5), marker(1, 5, committed=False)], None),
        ([*COMMITTED, record(KEY, b"2", 2, 5), marker(3, 5, committed=False)], b"1"),
        # Another stage's open transaction in between, whose records a read_committed reader would stop before.
        ([record(b"other", b"x", 0, 6), record(KEY, b"1", 1, 5), marker(2, 5, committed=True)], b"1"),
        # Another producer's marker decides nothing.
        ([record(KEY, b"1", 0, 5), marker(1, 6, committed=False), marker(2, 5, committed=True)], b"1"),
        # The id was forgotten by the coordinator: the key goes on under a new producer id.
        ([*COMMITTED, record(KEY, b"2", 2, 9), marker(3, 9, committed=True)], b"2"),
        # Compaction took the marker away; of an aborted transaction it would have taken the record first.
        ([record(KEY, b"1", 0, 5)], b"1"),
        # Removed by hand.
        ([*COMMITTED, record(KEY, None, 2, None)], None),
    ],
    ids=["empty", "committed", "aborted", "aborted after committed", "behind another's open transaction",
         "another's marker", "new producer id", "compacted", "tombstone"],
)  # fmt: skip
def test_the_last_committed_fence_is_found(log: list[bytes], value: bytes | None) -> None:
    assert latest_committed([b"".join(log)], KEY) == value
    assert latest_committed(log, KEY) == value


def test_an_open_transaction_is_told_from_one_whose_marker_was_compacted() -> None:
    log = [*COMMITTED, record(KEY, b"2", 2, 6)]
    assert latest_values(log, KEY, stable_offset=2) == (b"1", b"2")
    assert latest_values(log, KEY, stable_offset=3) == (b"2", None)
    assert latest_values([*log, marker(3, 6, committed=True)], KEY, stable_offset=2) == (b"2", None)
    assert latest_values([*log, marker(3, 6, committed=False)], KEY, stable_offset=2) == (b"1", None)
    both = [*log, record(KEY, b"3", 3, 7)]
    assert latest_values(both, KEY, stable_offset=2) == (b"1", b"3")
    assert latest_values([], KEY, stable_offset=0) == (None, None)


def test_a_batch_cut_off_at_the_end_of_a_fetch_is_left_for_the_next() -> None:
    whole = record(KEY, b"1", 0, 5) + marker(1, 5, committed=True)
    cut = record(KEY, b"2", 2, 5)[:-1]
    assert latest_committed([whole + cut], KEY) == b"1"


def test_a_delta_commit_names_its_batch_and_offsets() -> None:
    text = user_metadata("flights", "clean", DONE.batch)
    assert text == (
        '{"headwater":{"version":1,"pipeline":"flights","stage":"clean","checkpoint":"c","batch":7,'
        '"offsets":[{"flights":{"0":12}}]}}'
    )
