"""Which fetched records are taken for cold, and who is to send them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headwater.logtier.handlers.cold_records import COLD_BYTES_MIN, COLD_FETCHES, warm_up
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.fetch_response import FetchedPartition, RecordSlice
from headwater.logtier.runtime.read_ahead import ReadAhead, Slice, SliceT


@dataclass
class Records:
    size: int
    position: int = 0
    file: object = None


class Cache(ReadAhead):
    """A page cache that has the slices from a size on, or not."""

    def __init__(self, cold_from: int, *, is_far_cold: bool = True) -> None:
        super().__init__()
        self.cold_from = cold_from
        self.is_far_cold = is_far_cold
        self.looked = 0
        self.warmed: list[Slice] = []

    def is_cold(self, records: Slice) -> bool:
        self.looked += 1
        return records.size >= self.cold_from

    def is_cold_far_ahead(self, records: Slice) -> bool:
        return self.is_far_cold

    def warm(self, slices: list[SliceT]) -> asyncio.Future[list[tuple[SliceT, OSError]]]:  # type: ignore[override]
        self.warmed.extend(slices)
        future: asyncio.Future[list[tuple[SliceT, OSError]]] = asyncio.get_running_loop().create_future()
        future.set_result([])
        return future


@dataclass
class Connection:
    is_ready: bool = True
    cold_fetches: int = 0
    asked: list[bool] = field(default_factory=list)

    def sends_cold(self) -> bool:
        self.asked.append(self.is_ready)
        return self.is_ready


def fetched(*sizes: int) -> list[FetchedPartition]:
    found: list[FetchedPartition] = []
    for index, size in enumerate(sizes):
        records: RecordSlice = Records(size)  # type: ignore[assignment]
        found.append(FetchedPartition(index, ErrorCode.none, records=records))
    return found


def marks(partitions: list[FetchedPartition]) -> list[bool]:
    return [each.is_cold for each in partitions]


def test_what_is_there_is_sent_as_it_is_and_nobody_is_started() -> None:
    connection, found = Connection(), [*fetched(9, 0, 9_000_000), FetchedPartition(3, ErrorCode.none)]
    cache = Cache(cold_from=10_000_000)
    assert warm_up(found, cache, connection) is None
    assert marks(found) == [False] * 4
    assert cache.looked == 2, "not at what is empty"
    assert connection.asked == []


def test_cold_records_are_marked_whatever_their_size() -> None:
    connection, found = Connection(), fetched(9, 10, COLD_BYTES_MIN)
    cache = Cache(cold_from=10)
    assert warm_up(found, cache, connection) is None
    assert marks(found) == [False, True, True]
    assert cache.warmed == []


def test_they_are_read_ahead_where_nobody_else_sends_them() -> None:
    async def scenario() -> None:
        for connection in (None, Connection(is_ready=False)):
            for _ in range(3):
                found, cache = fetched(9, 10), Cache(cold_from=10)
                assert warm_up(found, cache, connection) is not None
                assert cache.warmed == [found[1].records]
                assert marks(found) == [False, False]

    asyncio.run(scenario())


def test_who_reads_old_data_is_known_while_what_comes_far_behind_is_cold() -> None:
    connection = Connection()
    assert warm_up(fetched(COLD_BYTES_MIN), Cache(cold_from=0), connection) is None
    read_ahead = Cache(cold_from=1 << 40)
    for number in range(3 * COLD_FETCHES):
        if number == 2 * COLD_FETCHES:
            read_ahead.is_far_cold = False
        found = fetched(COLD_BYTES_MIN, COLD_BYTES_MIN - 1)
        assert warm_up(found, read_ahead, connection) is None
        assert marks(found) == [True, False]
    assert read_ahead.looked == 3 * COLD_FETCHES, "at the small ones only"
    found = fetched(COLD_BYTES_MIN)
    assert warm_up(found, read_ahead, connection) is None
    assert marks(found) == [False], "it has caught up: what it reads is looked at again"


def test_who_met_one_cold_slice_among_others_is_no_reader_of_old_data() -> None:
    connection = Connection()
    read_ahead = Cache(cold_from=2 * COLD_BYTES_MIN, is_far_cold=False)
    for _ in range(2):
        found = fetched(2 * COLD_BYTES_MIN, COLD_BYTES_MIN)
        assert warm_up(found, read_ahead, connection) is None
        assert marks(found) == [True, False]
    assert read_ahead.looked == 4, "at each, every time"


def test_it_is_known_as_soon_as_somebody_else_sends() -> None:
    async def scenario() -> None:
        connection = Connection(is_ready=False)
        found, cache = fetched(COLD_BYTES_MIN), Cache(cold_from=0)
        assert warm_up(found, cache, connection) is not None
        connection.is_ready = True
        found, cache = fetched(COLD_BYTES_MIN), Cache(cold_from=1 << 40)
        assert warm_up(found, cache, connection) is None
        assert cache.looked == 0
        assert marks(found) == [True]

    asyncio.run(scenario())


def test_a_known_reader_is_looked_at_while_nobody_else_sends() -> None:
    async def scenario() -> None:
        connection = Connection()
        warm_up(fetched(COLD_BYTES_MIN), Cache(cold_from=0), connection)
        connection.is_ready = False
        found, cache = fetched(COLD_BYTES_MIN), Cache(cold_from=0)
        assert warm_up(found, cache, connection) is not None
        assert cache.looked == 1
        assert marks(found) == [False]

    asyncio.run(scenario())


def test_without_a_look_at_the_cache_everything_counts_as_there() -> None:
    found = fetched(COLD_BYTES_MIN)
    assert warm_up(found, None, Connection(cold_fetches=3)) is None
    assert marks(found) == [False]
