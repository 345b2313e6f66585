"""Which record batches a read_committed reader leaves out, among interleaved transactions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headwater.logtier.records.batch import TRANSACTIONAL, Record, build_batch, end_transaction_marker
from headwater.logtier.records.columns import decode_columns


class Log:
    """A partition's batches, with the aborted transactions as a broker would tell them."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.starts: list[int] = []
        self.end = 0
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.values: dict[int, list[int]] = {}
        self.committed: set[int] = set()

    def _append(self, batch: bytes, count: int) -> None:
        self.starts.append(self.end)
        self.batches.append(batch)
        self.end += count

    def write(self, producer_id: int, count: int, *, transactional: bool = True) -> None:
        records = [Record(None, b"%d" % (self.end + index), 0) for index in range(count)]
        batch = build_batch(
            records,
            base_offset=self.end,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        if transactional:
            self.open.setdefault(producer_id, self.end)
            self.values.setdefault(producer_id, []).extend(range(self.end, self.end + count))
        else:
            self.committed.update(range(self.end, self.end + count))
        self._append(batch, count)

    def finish(self, producer_id: int, *, commit: bool) -> None:
        written = self.values.pop(producer_id, [])
        if commit:
            self.committed.update(written)
        elif producer_id in self.open:
            self.aborted.append((producer_id, self.open[producer_id], self.end))
        self.open.pop(producer_id, None)
        marker = end_transaction_marker(
            committed=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=self.end,
        )
        self._append(marker, 1)

    def fetch(self, offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        """What a broker answers: from the batch with that offset on, and the transactions that reach so far."""
        first = max((index for index, start in enumerate(self.starts) if start <= offset), default=0)
        told = [(producer, start) for producer, start, last in self.aborted if last >= offset]
        return b"".join(self.batches[first:]), told


def visible(log: Log, offset: int) -> list[int]:
    data, aborted = log.fetch(offset)
    offsets: list[int] = []
    for batch in decode_columns(data, "t", 0, start_offset=offset, aborted=aborted):
        columns: Any = batch.to_pydict()
        assert [b"%d" % at for at in columns["offset"]] == columns["value"]
        offsets += columns["offset"]
    return offsets


def test_batches_of_an_aborted_transaction_are_left_out_until_its_marker() -> None:
    log = Log()
    log.write(1, 2)
    log.finish(1, commit=False)
    log.write(1, 2)
    log.finish(1, commit=True)
    assert visible(log, 0) == [3, 4]


def test_another_producers_records_between_stay() -> None:
    log = Log()
    log.write(1, 1)
    log.write(2, 1)
    log.write(9, 1, transactional=False)
    log.write(1, 1)
    log.finish(2, commit=True)
    log.finish(1, commit=False)
    assert visible(log, 0) == [1, 2]


def test_a_fetch_that_begins_inside_an_aborted_transaction_leaves_out_its_rest() -> None:
    log = Log()
    for _ in range(3):
        log.write(1, 2)
    log.finish(1, commit=False)
    log.write(1, 1)
    log.finish(1, commit=True)
    for offset in range(log.end):
        assert visible(log, offset) == [7] if offset <= 7 else not visible(log, offset)


@pytest.mark.parametrize("seed", range(20))
def test_random_interleavings_show_what_was_committed_from_any_offset(seed: int) -> None:
    choose = random.Random(seed)
    log = Log()
    for _ in range(60):
        producer = choose.randrange(4)
        if choose.random() < 0.6:
            log.write(producer, choose.randint(1, 3), transactional=producer != 3)
        else:
            log.finish(producer, commit=choose.random() < 0.5)
    for producer in list(log.open):
        log.finish(producer, commit=bool(producer % 2))
    for offset in range(0, log.end, 5):
        assert visible(log, offset) == sorted(at for at in log.committed if at >= offset)
