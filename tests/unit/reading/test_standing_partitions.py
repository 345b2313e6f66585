"""Partitions of a session without news: they are not read again before they move, and nothing of them is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.handlers.records import delete_records, fetch
from headwater.logtier.handlers.records.fetch import READ_ALL_MS
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication import fetches
from headwater.logtier.replication.partition_reads import PartitionReads
from tests.unit.reading.conftest import FLIGHTS, World
from tests.unit.reading.test_fetch_sessions import ALL, BY_ID, BY_NAME, Consumer, fields_of

if TYPE_CHECKING:
    from headwater.logtier.protocol.fetch_response import FetchedPartition
    from headwater.logtier.replication.partition_reads import FetchPartition

NONE = ErrorCode.none


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The partitions that were read."""
    seen: list[str] = []
    read_one = PartitionReads.read_one

    def noted(self: PartitionReads, wanted: FetchPartition, *rest: Any) -> FetchedPartition:
        seen.append(str(wanted.topic_partition))
        return read_one(self, wanted, *rest)

    monkeypatch.setattr(PartitionReads, "read_one", noted)
    yield seen


def test_a_fetch_reads_what_moved_and_what_the_request_speaks_of(world: World, reads: list[str]) -> None:
    consumer = Consumer(world, BY_ID)
    world.append("flights", 0, b"early")
    consumer.fetch(ALL)
    consumer.fetch([("flights", 0, 1)])  # the first request of a session reads all once more
    reads.clear()
    assert consumer.fetch() == []
    assert reads == []
    world.append("airports", 0, b"late")
    [(topic, *_, size)] = consumer.fetch()
    assert (topic, size > 0, reads) == ("airports", True, ["airports-0"])
    assert consumer.fetch([("airports", 0, 1)]) == []
    reads.clear()
    assert consumer.fetch([("flights", 1, 0)]) == []
    assert reads == ["flights-1"]


def test_all_are_read_from_time_to_time(world: World, reads: list[str]) -> None:
    """So that a leader knows of its followers, and a log start that retention moved is told."""
    consumer = Consumer(world, BY_ID)
    world.append("flights", 0, b"a", b"b")
    consumer.fetch([("flights", 0, 2), ("airports", 0, 0)])
    consumer.fetch()
    log = world.replicas.log(TopicPartition("flights", 0))
    log.delete_records_before(1, 2)  # without a sign, as retention does
    reads.clear()
    assert (consumer.fetch(), reads) == ([], [])
    world.clock.ms += READ_ALL_MS
    assert consumer.fetch() == [("flights", 0, NONE, 2, 0)]
    assert reads == ["flights-0", "airports-0"]


def test_a_fetch_that_waits_is_woken_by_a_partition_that_was_not_read(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    consumer.fetch()

    async def main() -> None:
        for number, (topic, partition) in enumerate([("airports", 0), ("flights", 1), ("airports", 0)]):
            fields = fields_of(BY_ID, consumer.session, [], max_wait=60_000)
            waiting = asyncio.ensure_future(world.answer(fetch, BY_ID, **fields))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            assert world.replicas.delayed_operations == 1
            world.append(topic, partition, b"late")
            async with asyncio.timeout(10):
                answer = await waiting
            assert [
                (each.topic_id == FLIGHTS, part.partition_index, len(part.records) > 0)
                for each in answer.responses
                for part in each.partitions
            ] == [(topic == "flights", partition, True)]
            consumer.session = (answer.session_id, consumer.session[1] + 1)
            moved = [(topic, partition, number // 2 + 1)]
            answer = await world.answer(fetch, BY_ID, **fields_of(BY_ID, consumer.session, moved))
            consumer.session = (answer.session_id, consumer.session[1] + 1)
            assert world.replicas.delayed_operations == 0

    asyncio.run(main())


def test_a_wait_that_ends_without_news_or_with_its_client_leaves_nothing(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    assert consumer.fetch(max_wait=5) == []
    assert consumer.fetch(max_wait=5) == []

    async def main() -> None:
        fields = fields_of(BY_ID, consumer.session, [], max_wait=60_000)
        waiting = asyncio.ensure_future(world.answer(fetch, BY_ID, **fields))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.01)
        world.append("airports", 0, b"late")

    asyncio.run(main())
    assert world.replicas.delayed_operations == 0
    consumer.session = (consumer.session[0], consumer.session[1] + 1)
    assert [each[0] for each in consumer.fetch()] == ["airports"], "what moved for nobody is told later"


def test_a_topic_that_is_made_anew_is_read_again(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    consumer.fetch()
    world.delete("flights")
    gone = ErrorCode.unknown_topic_or_partition
    assert {(each[1], each[2]) for each in consumer.fetch()} == {(0, gone), (1, gone)}
    world.create("flights", FLIGHTS, 2)
    world.append("flights", 1, b"new")
    assert sorted((each[:2], each[4] > 0) for each in consumer.fetch()) == [
        (("flights", 0), False),
        (("flights", 1), True),
    ]


def test_a_session_that_ends_hears_of_nothing(world: World) -> None:
    changes = world.replicas.partition_replication.delayed_fetches
    first, second = Consumer(world, BY_ID), Consumer(world, BY_ID)
    first.fetch(ALL)
    second.fetch(ALL[:1])
    assert {len(each) for each in changes._listeners.values()} == {1, 2}
    first.fetch((), [("airports", 0)])
    world.append("airports", 0, b"late")
    assert TopicPartition("airports", 0) not in changes._listeners, "it has left the session"
    for consumer in (first, second):
        world.ask(fetch, BY_ID, **fields_of(BY_ID, (consumer.session[0], -1), ALL[:1]))
    assert changes._listeners == {}


def test_a_fetch_with_a_least_size_counts_all_partitions(world: World, reads: list[str]) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    consumer.fetch()
    reads.clear()
    consumer.fetch(min_bytes=100)
    assert sorted(reads) == ["airports-0", "flights-0", "flights-1"]


class Device:
    """The device of one log, which is waited for: each wait goes on when the test says so."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[asyncio.Future[None]] = []
        log = world.replicas.log(TopicPartition("flights", 0))
        read = type(log).read

        async def warm(*_: object) -> None:
            self.waits.append(asyncio.get_running_loop().create_future())
            await self.waits[-1]

        def cold(log_read: Any, *arguments: Any, may_wait: bool = True, **options: Any) -> Any:
            if log_read is log and not may_wait:
                raise BlockingIOError
            return read(log_read, *arguments, may_wait=True, **options)

        monkeypatch.setattr(fetches, "warm", warm)
        monkeypatch.setattr(type(log), "read", cold)
        world.replicas.fetches._read_ahead = object()  # type: ignore[assignment]


def test_what_moves_while_an_answer_waits_for_the_device_is_for_the_next_fetch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    consumer.fetch()
    device = Device(world, monkeypatch)

    async def main() -> None:
        fields = fields_of(BY_ID, consumer.session, [], max_wait=60_000)
        waiting = asyncio.ensure_future(world.answer(fetch, BY_ID, **fields))
        await asyncio.sleep(0.01)
        for topic in ("flights", "airports", "airports"):
            world.append(topic, 0, b"late")
            await asyncio.sleep(0.01)
        assert len(device.waits) == 1
        device.waits[0].set_result(None)
        async with asyncio.timeout(10):
            answer = await waiting
        assert {each.topic_id for each in answer.responses} >= {FLIGHTS}
        consumer.session = (answer.session_id, consumer.session[1] + 1)

    asyncio.run(main())
    assert "airports" in [each[0] for each in consumer.fetch([("flights", 0, 1)])]


def test_a_session_that_is_taken_from_a_fetch_that_waits_ends_the_wait(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    consumer.fetch()

    async def main() -> None:
        fields = fields_of(BY_ID, consumer.session, [], max_wait=60_000)
        waiting = asyncio.ensure_future(world.answer(fetch, BY_ID, **fields))
        await asyncio.sleep(0.01)
        world.services.fetch_sessions.remove(consumer.session[0])
        async with asyncio.timeout(10):
            assert (await waiting).responses == ()
        assert world.replicas.delayed_operations == 0

    asyncio.run(main())


def test_sessions_of_clients_that_are_gone_hear_of_one_change_and_of_no_other(world: World) -> None:
    changes = world.replicas.partition_replication.delayed_fetches
    for _ in range(2):
        consumer = Consumer(world, BY_ID)
        consumer.fetch(ALL)
        consumer.fetch()
    assert len(changes._listeners[TopicPartition("airports", 0)]) == 2
    world.append("airports", 0, b"late")
    assert TopicPartition("airports", 0) not in changes._listeners


def test_partitions_that_come_and_go_leave_nothing(world: World) -> None:
    consumer = Consumer(world, BY_NAME)
    consumer.fetch(ALL)
    for number in range(5):
        consumer.fetch([(f"none{number}", 0, 0)], [(f"none{number - 1}", 0)] if number else [])
    consumer.fetch((), [("flights", 0)])
    listened = world.replicas.partition_replication.delayed_fetches._listeners
    assert set(listened) == {TopicPartition("flights", 1), TopicPartition("airports", 0)}


def test_a_partition_that_is_named_and_forgotten_in_one_request_is_forgotten(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    consumer.fetch([("flights", 0, 0)], [("flights", 0)])
    world.append("flights", 0, b"late")
    assert consumer.fetch() == []


def test_a_fetch_whose_session_another_connection_has_emptied_is_refused(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL[:1])
    session_id, epoch = consumer.session

    async def main() -> None:
        fields = fields_of(BY_ID, (session_id, epoch), ALL[:1], max_wait=60_000)
        waiting = asyncio.ensure_future(world.answer(fetch, BY_ID, **fields))
        await asyncio.sleep(0.01)
        await world.answer(fetch, BY_ID, **fields_of(BY_ID, (session_id, epoch + 1), [], [ALL[0][:2]]))
        async with asyncio.timeout(10):
            assert (await waiting).error_code is ErrorCode.invalid_fetch_session_epoch

    asyncio.run(main())


@given(st.data())
def test_a_reader_with_a_session_sees_what_one_without_sees(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    world = World(Path(tmp_path_factory.mktemp("world")))
    consumer = Consumer(world, BY_ID)
    partitions = [(topic, partition) for topic, partition, _ in ALL]
    ends = dict.fromkeys(partitions, 0)
    starts = dict.fromkeys(partitions, 0)
    positions = dict.fromkeys(partitions, 0)
    asked = [(*key, 0) for key in partitions]
    for _ in range(data.draw(st.integers(5, 15))):
        key = data.draw(st.sampled_from(partitions))
        match data.draw(st.sampled_from(["append", "fetch", "fetch", "delete"])):
            case "append":
                world.append(*key, b"x")
                ends[key] += 1
            case "delete":
                starts[key] = data.draw(st.integers(starts[key], ends[key]))
                partition = [{"partition_index": key[1], "offset": starts[key]}]
                world.ask(delete_records, 2, topics=[{"name": key[0], "partitions": partition}], timeout=1000)
            case _:
                limit = data.draw(st.sampled_from([1, 1 << 20]))
                found = consumer.fetch(asked, max_bytes=limit)
                asked = []
                for topic, index, error, _, size in found:
                    if error or size:
                        # A reader goes on behind what it has got, and begins anew where it fell out of the log.
                        each = (topic, index)
                        positions[each] = starts[each] if error else positions[each] + 1
                        asked.append((*each, positions[each]))
    for _ in range(sum(ends.values()) + 4):
        found = consumer.fetch(asked)
        asked = []
        for topic, index, error, _, size in found:
            each = (topic, index)
            if error or size:
                positions[each] = starts[each] if error else ends[each] if size else positions[each]
                asked.append((*each, positions[each]))
    assert positions == ends
    assert consumer.fetch(asked) == []
