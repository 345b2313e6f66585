"""Large batches for topics with a codec of their own are compressed before they are appended."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.records.compression_ahead import Refusals, compress_ahead
from headwater.logtier.log.appending.record_frames import CheckedRecords, check_keyed_batch
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import HEADER_BYTES, Record, build_batch, check_batch
from headwater.logtier.records.compression import GZIP, NONE
from tests.unit.log.test_recompression import rewrapped
from tests.unit.reading.conftest import FLIGHTS, NOW_MS

if TYPE_CHECKING:
    from tests.unit.reading.conftest import World

ARCHIVE = uuid.UUID(int=8)
LARGE = build_batch([Record(None, bytes(100_000), NOW_MS)])
SMALL = build_batch([Record(None, b"x", NOW_MS)])


@pytest.fixture
def archive(world: World) -> World:
    world.create("archive", ARCHIVE, 2, {"compression.type": "gzip"})
    return world


def produce(*topics: tuple[str, uuid.UUID | None, list[bytes | None]]) -> ProduceRequest:
    return ProduceRequest(
        None,
        -1,
        1000,
        [
            TopicProduceData(
                name,
                topic_id,
                [PartitionProduceData(i, None if each is None else memoryview(each)) for i, each in enumerate(records)],
            )
            for name, topic_id, records in topics
        ],
    )


def ahead(world: World, request: ProduceRequest) -> Refusals | None:
    context = RequestContext(world.services, 0, 9, 1, "tester", "127.0.0.1", "User:ANONYMOUS")

    async def run() -> Any:
        work = compress_ahead(request, context)
        return None if work is None else await work

    refused: Refusals | None = asyncio.run(run())
    return refused


def codecs(request: ProduceRequest) -> list[list[int]]:
    return [
        [check_batch(bytes(data.records)).codec for data in topic.partition_data if data.records]
        for topic in request.topic_data
    ]


@pytest.mark.parametrize("topic", [("archive", None), ("", ARCHIVE)])
def test_large_batches_get_their_topics_codec_and_the_log_leaves_them_alone(
    archive: World, topic: tuple[str, uuid.UUID | None]
) -> None:
    request = produce((*topic, [LARGE, SMALL, None]), ("flights", None, [LARGE]))
    assert ahead(archive, request) == {}
    assert codecs(request) == [[GZIP, NONE], [NONE]]
    records = request.topic_data[0].partition_data[0].records
    assert records is not None
    archive.replicas.append(TopicPartition("archive", 0), records)
    [stored] = archive.replicas.log(TopicPartition("archive", 0)).batches()
    assert bytes(stored[HEADER_BYTES:]) == bytes(records[HEADER_BYTES:])


def test_there_is_nothing_to_do_for_small_batches_other_topics_and_unknown_ones(archive: World) -> None:
    assert ahead(archive, produce(("archive", None, [SMALL]))) is None
    assert ahead(archive, produce(("flights", None, [LARGE]), ("", FLIGHTS, [LARGE]))) is None
    assert ahead(archive, produce(("weather", None, [LARGE]), ("", uuid.UUID(int=99), [LARGE]))) is None
    assert ahead(archive, produce(("archive", None, [SMALL, SMALL, LARGE]))) is None, "no such partition"


def test_a_topic_is_followed_through_its_configs_and_its_end(archive: World) -> None:
    assert archive.replicas.recompressing_topics == {"archive"}
    archive.delete("archive")
    assert archive.replicas.recompressing_topics == set()


def test_a_payload_that_is_not_what_it_says_is_refused_by_its_partition(archive: World) -> None:
    request = produce(("archive", None, [rewrapped(4, bytes(range(256)) * 100), LARGE]))
    refused = ahead(archive, request)
    assert refused is not None
    assert {str(key): error.code for key, error in refused.items()} == {"archive-0": ErrorCode.corrupt_message}
    assert codecs(request)[0][1] == GZIP


def test_records_of_a_compacted_topic_are_checked_ahead_where_that_may_take_long(world: World) -> None:
    world.create("table", uuid.UUID(int=9), 2, {"cleanup.policy": "compact"})
    keyed = build_batch([Record(b"k", bytes(1000), NOW_MS)], codec=GZIP)
    request = produce(("table", None, [keyed, build_batch([Record(None, b"x", NOW_MS)], codec=GZIP)]))
    refused = ahead(world, request)
    assert refused is not None
    assert {str(key): error.code for key, error in refused.items()} == {"table-1": ErrorCode.invalid_record}
    records: Any = request.topic_data[0].partition_data[0].records
    assert isinstance(records, CheckedRecords)
    world.replicas.append(TopicPartition("table", 0), records)
    [stored] = world.replicas.log(TopicPartition("table", 0)).batches()
    assert bytes(stored[HEADER_BYTES:]) == keyed[HEADER_BYTES:]


def test_small_plain_records_of_a_compacted_topic_are_left_to_the_append(world: World) -> None:
    world.create("table", uuid.UUID(int=9), 1, {"cleanup.policy": "compact"})
    assert ahead(world, produce(("table", None, [SMALL]))) is None
    assert ahead(world, produce(("table", None, [LARGE]))) is not None
    assert "table" in world.replicas.compacted_topics
    world.delete("table")
    assert "table" not in world.replicas.compacted_topics


class Held:
    """What is prepared by threads, each of which works until the test lets it end."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[bytes] = []
        self.may_end = threading.Semaphore(0)
        self._world = world
        monkeypatch.setattr("headwater.logtier.handlers.records.compression_ahead._prepared", self._prepare)

    def _prepare(self, records: Any, _: object) -> Any:
        self.begun.append(bytes(records[-1:]))
        self.may_end.acquire()
        return records

    def ask(self, principal: str, mark: bytes) -> asyncio.Future[Any]:
        context = RequestContext(self._world.services, 0, 9, 1, "tester", "127.0.0.1", principal)
        batch = build_batch([Record(None, bytes(100_000), NOW_MS)])[:-1] + mark
        work = compress_ahead(produce(("archive", None, [batch])), context)
        assert work is not None
        return asyncio.ensure_future(work)

    def let_all_end(self) -> None:
        for _ in range(100):
            self.may_end.release()  # no thread stays

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.begun) < count:  # noqa: ASYNC110 (threads tell nobody)
                await asyncio.sleep(0.002)


def test_many_batches_of_one_client_keep_no_other_client_waiting(
    archive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(archive, monkeypatch)

    async def scenario() -> None:
        many = [held.ask("User:many", b"m") for _ in range(20)]
        await asyncio.sleep(0)
        other = held.ask("User:other", b"o")
        for _ in range(4):
            held.may_end.release()
        try:
            async with asyncio.timeout(10):
                await other
        finally:
            held.let_all_end()
        await asyncio.gather(*many)

    asyncio.run(scenario())


def test_a_client_that_goes_away_gives_its_turn_on_when_its_thread_has_ended(
    archive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else threads would be busy for nobody while those that have the turns wait in their queue, unfairly."""
    held = Held(archive, monkeypatch)

    async def scenario() -> None:
        gone = [held.ask("User:gone", b"g") for _ in range(4)]
        try:
            await held.until_begun(2)
            other = held.ask("User:other", b"o")
            await asyncio.sleep(0)
            for each in gone:
                each.cancel()
            late = held.ask("User:late", b"l")
            await asyncio.sleep(0.05)
            for each in gone:
                each.cancel()  # the connection's end and then the broker's: twice, and a third time
                await asyncio.sleep(0)
                each.cancel()
            await asyncio.sleep(0.05)
            assert not gone[0].done()
            assert not gone[1].done()
            held.may_end.release()
            await held.until_begun(3)
            await asyncio.sleep(0.05)
            assert held.begun == [b"g", b"g", b"o"], "the turn was given on once, to the next client"
        finally:
            held.let_all_end()
        await asyncio.gather(other, late)
        assert [type(each) for each in await asyncio.gather(*gone, return_exceptions=True)] == 4 * [
            asyncio.CancelledError
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize("damage", ["checksum", "cut", "too large", "two"])
def test_what_is_refused_anyway_is_left_to_the_append(damage: str) -> None:
    whole = build_batch([Record(None, b"x", NOW_MS)])
    records = {"checksum": whole[:-1] + b"?", "cut": whole[:-1], "too large": whole, "two": whole * 2}[damage]
    limit = len(whole) - 1 if damage == "too large" else 1 << 20
    assert check_keyed_batch(records, limit) is records
