"""A read for rows up to a time loses no row that the stated disorder admits, however timestamps and batches lie."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.client.fetcher import FetchConfig, FetchedRecords
from headwater.logtier.records.batch import (
    TIMESTAMP_TYPE_LOG_APPEND,
    Record,
    RecordBatchHeader,
    build_batch,
    end_transaction_marker,
)
from headwater.pipelines.datasource import reading
from headwater.pipelines.datasource.offsets import OffsetRange, split_ranges
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.time_bounds import first_later_ms, reaching

OPTIONS = ReadOptions.parse({"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"})
FAR_MS = 1_000_000


@dataclass(frozen=True)
class Piece:
    """What is appended next: records by (step of the latest time, how far behind it), or a marker of a transaction."""

    records: tuple[tuple[int, int], ...]
    is_marker: bool
    is_append_time: bool


@dataclass(frozen=True)
class Log:
    """One partition."""

    batches: tuple[bytes, ...]
    rows: dict[int, int]  # timestamps of records by offset; markers have none
    end: int

    def first_at_or_after(self, timestamp_ms: int) -> int:
        """ListOffsets as brokers answer it: markers count, too."""
        offset = 0
        for batch in self.batches:
            header = RecordBatchHeader.parse(batch)
            for number in range(header.record_count):
                if self.rows.get(offset + number, header.max_timestamp_ms) >= timestamp_ms:
                    return offset + number
            offset = header.last_offset + 1
        return self.end


def log_of(pieces: list[Piece], disorder_ms: int, skew_ms: int | None = None) -> Log:
    """`skew_ms` is the disorder of brokers' times, if another."""
    batches: list[bytes] = []
    rows: dict[int, int] = {}
    offset, latest = 0, 0
    for piece in pieces:
        if piece.is_marker:
            # The coordinator's clock, whatever the records' times are.
            marker = end_transaction_marker(
                committed=True,
                producer_id=1,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=FAR_MS,
                base_offset=offset,
            )
            batches.append(marker)
            offset += 1
            continue
        times = []
        for step, behind in piece.records:
            latest += step
            limit_ms = disorder_ms if skew_ms is None or not piece.is_append_time else skew_ms
            times.append(max(0, latest - min(behind, limit_ms)))
        if piece.is_append_time:
            times = [times[-1]] * len(times)
        attributes = TIMESTAMP_TYPE_LOG_APPEND if piece.is_append_time else 0
        records = [Record(b"k", b"v", time_ms) for time_ms in times]
        batches.append(build_batch(records, base_offset=offset, attributes=attributes))
        rows |= {offset + number: time_ms for number, time_ms in enumerate(times)}
        offset += len(times)
    return Log(tuple(batches), rows, offset)


class Cluster:
    """As far as the reader asks, once the fetches themselves are replaced."""

    def partitions(self, topic: str) -> list[int]:
        return [0]

    def topic_id(self, topic: str) -> uuid.UUID | None:
        return None


def bound(log: Log, share: float) -> int:
    """A time among those of the rows: most others would leave all of them out, or none."""
    times = sorted(log.rows.values())
    return times[int(share * (len(times) - 1))] if times else 0


def read(log: Log, part: OffsetRange, batches_a_fetch: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """The offsets of the rows, and how many batches were fetched."""
    fetched_count = 0

    def fetch(
        cluster: Any, topic: str, partition: int, start: int, end: int, config: FetchConfig, planned_epoch: int
    ) -> Generator[FetchedRecords, None, None]:
        nonlocal fetched_count
        wanted = [(RecordBatchHeader.parse(batch).last_offset, batch) for batch in log.batches]
        wanted = [(last, batch) for last, batch in wanted if last >= start]
        while wanted and start < end:
            taken, wanted = wanted[:batches_a_fetch], wanted[batches_a_fetch:]
            fetched_count += len(taken)
            start = taken[-1][0] + 1
            yield FetchedRecords(memoryview(b"".join(batch for _, batch in taken)), start)

    offsets: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(reading, "read_partition", fetch)
        rows = reading._RangeReader(Cluster(), part, OPTIONS, set()).read()  # type: ignore[arg-type]
        for batch in rows:
            offsets += batch["offset"].to_pylist()  # type: ignore[arg-type]
    return offsets, fetched_count


RECORDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=4).map(tuple)


# Every fourth batch is a marker.
PIECES = st.lists(
    st.builds(Piece, RECORDS, st.integers(0, 3).map(lambda n: n == 0), st.booleans()), min_size=2, max_size=14
)


@given(PIECES, st.integers(0, 60), st.floats(0, 1), st.integers(0, 5), st.integers(1, 4), st.data())
def test_no_row_within_the_stated_disorder_is_lost(
    drawn: list[Piece], disorder_ms: int, share: float, start: int, batches_a_fetch: int, data: st.DataObject
) -> None:
    log = log_of(drawn, disorder_ms)
    high_ms = bound(log, share)
    later_ms = first_later_ms(high_ms, disorder_ms)
    assert later_ms is not None
    part = reaching(
        OffsetRange("t", 0, min(start, log.end), log.end),
        log.first_at_or_after(later_ms),
        later_ms,
        append_time_only=False,
    )
    wanted = [offset for offset, time_ms in log.rows.items() if offset >= part.start and time_ms <= high_ms]
    found: list[int] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        for piece in split_ranges(
            [part], data.draw(st.sampled_from([None, 1, 3])), data.draw(st.sampled_from([None, 2]))
        ):
            found += read(log, piece, batches_a_fetch, monkeypatch)[0]
    assert len(set(found)) == len(found)
    assert set(wanted) <= set(found)
    assert all(offset >= part.start for offset in found)


@given(PIECES, st.integers(0, 60), st.floats(0, 1), st.integers(1, 4))
def test_with_brokers_times_by_default_one_batch_of_producers_times_leads_to_the_end(
    drawn: list[Piece], skew_ms: int, share: float, batches_a_fetch: int
) -> None:
    """The disorder is only that of the brokers' clocks: batches of producers may say anything."""
    log = log_of(drawn, 60, skew_ms)
    high_ms = bound(log, share)
    later_ms = first_later_ms(high_ms, skew_ms)
    assert later_ms is not None
    whole = OffsetRange("t", 0, 0, log.end)
    part = reaching(whole, log.first_at_or_after(later_ms), later_ms, append_time_only=True)
    if part.reach is not None:
        assert split_ranges([part], 8, 1) == [part], "its batches decide together"
    with pytest.MonkeyPatch.context() as monkeypatch:
        found, _ = read(log, part, batches_a_fetch, monkeypatch)
    headers = [RecordBatchHeader.parse(batch) for batch in log.batches]
    decisive = [
        header
        for header in headers
        if not header.is_control and (not header.is_log_append_time or header.max_timestamp_ms >= later_ms)
    ]
    if not decisive or not decisive[0].is_log_append_time:
        assert found == list(log.rows)
    else:
        assert found == [offset for offset in log.rows if offset <= decisive[0].last_offset]
        of_brokers = {
            offset
            for header in headers
            if header.is_log_append_time and not header.is_control
            for offset in range(header.base_offset, header.last_offset + 1)
        }
        assert {offset for offset in of_brokers if log.rows[offset] <= high_ms} <= set(found)


@given(PIECES, st.integers(0, 60), st.floats(0, 1))
def test_a_read_ends_with_the_first_batch_that_is_late_enough(
    drawn: list[Piece], disorder_ms: int, share: float
) -> None:
    """What is read behind the hint is the price of markers; without any it is one batch."""
    log = log_of([piece for piece in drawn if not piece.is_marker], disorder_ms)
    high_ms = bound(log, share)
    later_ms = first_later_ms(high_ms, disorder_ms)
    assert later_ms is not None
    hint = log.first_at_or_after(later_ms)
    part = reaching(OffsetRange("t", 0, 0, log.end), hint, later_ms, append_time_only=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        found, _ = read(log, part, 1, monkeypatch)
    late = [RecordBatchHeader.parse(batch) for batch in log.batches]
    ends = [header.last_offset for header in late if header.max_timestamp_ms >= later_ms]
    assert found == list(range(min(ends, default=log.end - 1) + 1))
