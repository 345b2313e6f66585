"""Incremental fetch sessions (KIP-227) through the Fetch handler: what is answered, and what is not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from headwater.logtier.handlers.records import (
    delete_records,
    fetch,
)
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.security.operations import AclOperation, ResourceType
from tests.unit.reading.conftest import AIRPORTS, FLIGHTS, Denying

if TYPE_CHECKING:
    from tests.unit.reading.conftest import World

IDS = {"flights": FLIGHTS, "airports": AIRPORTS}
BY_NAME, BY_ID = 12, 16
VERSIONS = [BY_NAME, BY_ID]

Wanted = Sequence[tuple[str, int, int]]
"""Topic, partition, offset."""


def fields_of(
    version: int,
    session: tuple[int, int],
    wanted: Wanted,
    forgotten: Sequence[tuple[str, int]] = (),
    **fields: Any,
) -> dict[str, Any]:
    def named(topic: str) -> dict[str, Any]:
        return {"topic": topic, "topic_id": IDS.get(topic, uuid.UUID(int=99))}

    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            {
                **named(topic),
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
            for topic, partition, offset in wanted
        ],
        "forgotten_topics_data": [{**named(topic), "partitions": [partition]} for topic, partition in forgotten],
        "rack_id": "",
        **fields,
    }


class Consumer:
    """A client that goes on with its session as long as it is told to."""

    def __init__(self, world: World, version: int) -> None:
        self.world = world
        self.version = version
        self.session = (0, 0)

    def fetch(
        self, wanted: Wanted = (), forgotten: Sequence[tuple[str, int]] = (), **fields: Any
    ) -> list[tuple[str, int, ErrorCode, int, int]]:
        """(topic, partition, error, high watermark, bytes) of every partition that is answered."""
        response = self.world.ask(
            fetch, self.version, **fields_of(self.version, self.session, wanted, forgotten, **fields)
        )
        assert response.error_code is ErrorCode.none
        self.session = (response.session_id, self.session[1] + 1) if response.session_id else (0, 0)
        names = {topic_id: name for name, topic_id in IDS.items()}
        return [
            (
                topic.topic if self.version < 13 else names.get(topic.topic_id, "?"),
                partition.partition_index,
                partition.error_code,
                partition.high_watermark,
                len(partition.records or b""),
            )
            for topic in response.responses
            for partition in topic.partitions
        ]

    def refused(self, session: tuple[int, int]) -> ErrorCode:
        response = self.world.ask(fetch, self.version, **fields_of(self.version, session, ()))
        assert (response.session_id, response.responses) == (0, ())
        return ErrorCode(response.error_code)


NONE = ErrorCode.none
ALL = [("flights", 0, 0), ("flights", 1, 0), ("airports", 0, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_answers_only_what_changed(world: World, version: int) -> None:
    consumer = Consumer(world, version)
    assert consumer.fetch(ALL) == [("flights", 0, NONE, 0, 0), ("flights", 1, NONE, 0, 0), ("airports", 0, NONE, 0, 0)]
    assert consumer.session[0]
    assert consumer.fetch() == []
    world.append("flights", 1, b"late")
    [(topic, partition, error, high_watermark, size)] = consumer.fetch()
    assert (topic, partition, error, high_watermark, size > 0) == ("flights", 1, NONE, 1, True)
    # The records are told again until the client asks for what is after them.
    assert len(consumer.fetch()) == 1
    assert consumer.fetch([("flights", 1, 1)]) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_is_forgotten_is_read_no_more_and_one_that_is_added_is_told(
    world: World, version: int
) -> None:
    consumer = Consumer(world, version)
    consumer.fetch(ALL[:2])
    assert consumer.fetch([("airports", 0, 0)], [("flights", 1)]) == [("airports", 0, NONE, 0, 0)]
    world.append("flights", 1, b"late")
    assert consumer.fetch() == []


def test_a_session_without_partitions_ends(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL[:1])
    session = consumer.session
    assert consumer.fetch((), [("flights", 0)]) == []
    assert consumer.session == (0, 0)
    assert consumer.refused((session[0], 2)) is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_is_told_every_time_and_its_end_as_well(world: World, version: int) -> None:
    consumer = Consumer(world, version)
    consumer.fetch(ALL[:1])
    out_of_range = ("flights", 0, ErrorCode.offset_out_of_range, -1, 0)
    assert consumer.fetch([("flights", 0, 9)]) == [out_of_range]
    assert consumer.fetch() == [out_of_range]
    assert consumer.fetch([("flights", 0, 0)]) == [("flights", 0, NONE, 0, 0)]
    assert consumer.fetch() == []


def test_an_epoch_that_is_not_the_next_one_is_refused_and_the_session_goes_on(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    session_id, epoch = consumer.session
    assert consumer.refused((session_id, epoch + 1)) is ErrorCode.invalid_fetch_session_epoch
    assert consumer.refused((session_id, -7)) is ErrorCode.invalid_fetch_session_epoch
    assert consumer.refused((session_id + 1, epoch)) is ErrorCode.fetch_session_id_not_found
    assert consumer.refused((0, 5)) is ErrorCode.fetch_session_id_not_found
    assert consumer.fetch() == []


def test_a_session_by_name_is_not_gone_on_with_by_id(world: World) -> None:
    by_name = Consumer(world, BY_NAME)
    by_name.fetch(ALL)
    assert Consumer(world, BY_ID).refused(by_name.session) is ErrorCode.fetch_session_topic_id_error
    assert by_name.fetch() == []


def test_the_final_epoch_ends_a_session(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    session_id = consumer.session[0]
    response = world.ask(fetch, BY_ID, **fields_of(BY_ID, (session_id, -1), ALL[:1]))
    assert (response.session_id, len(response.responses)) == (0, 1)
    assert consumer.refused((session_id, 1)) is ErrorCode.fetch_session_id_not_found


def test_a_full_fetch_without_a_slot_is_answered_without_a_session(world: World) -> None:
    for _ in range(2):
        Consumer(world, BY_ID).fetch(ALL)
    third = Consumer(world, BY_ID)
    assert len(third.fetch(ALL)) == 3
    assert third.session == (0, 0)


def test_a_moved_log_start_is_told(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    world.append("flights", 0, b"a", b"b", b"c")
    consumer.fetch([("flights", 0, 3)])
    assert consumer.fetch() == []
    world.ask(
        delete_records,
        2,
        topics=[{"name": "flights", "partitions": [{"partition_index": 0, "offset": 2}]}],
        timeout=1000,
    )
    assert consumer.fetch() == [("flights", 0, NONE, 3, 0)]
    assert consumer.fetch() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_no_partition_starves_under_a_byte_budget(world: World, version: int) -> None:
    for topic, partition, _ in ALL:
        for _ in range(3):
            world.append(topic, partition, b"x" * 500)
    consumer = Consumer(world, version)
    # The first batch comes whole; after it the budget is used up.
    served = [
        [(topic, partition) for topic, partition, _, _, size in consumer.fetch(wanted, max_bytes=100) if size]
        for wanted in (ALL, [], [], [], [], [])
    ]
    everyone = [[(topic, partition)] for topic, partition, _ in ALL]
    assert served == everyone * 2


def test_a_deleted_topic_and_one_made_anew_under_its_name_are_told_apart(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    world.delete("airports")
    assert consumer.fetch() == [("airports", 0, ErrorCode.unknown_topic_or_partition, -1, 0)]
    world.create("airports", uuid.UUID(int=66), 1)
    assert consumer.fetch() == [("airports", 0, ErrorCode.inconsistent_topic_id, -1, 0)]


def test_an_unknown_topic_id_becomes_known_within_the_session(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    assert consumer.fetch([("weather", 0, 0)]) == [("?", 0, ErrorCode.unknown_topic_id, -1, 0)]
    world.create("weather", uuid.UUID(int=99), 1)
    assert consumer.fetch() == [("?", 0, NONE, 0, 0)]


def test_a_right_that_is_taken_away_ends_reading_within_the_session(world: World) -> None:
    consumer = Consumer(world, BY_ID)
    consumer.fetch(ALL)
    world.services.authorizer = Denying((AclOperation.read, ResourceType.topic, "airports"))
    assert consumer.fetch() == [("airports", 0, ErrorCode.topic_authorization_failed, -1, 0)]
    world.services.authorizer = None
    assert consumer.fetch() == [("airports", 0, NONE, 0, 0)]


def test_a_replica_needs_the_right_of_brokers(world: World) -> None:
    world.services.authorizer = Denying((AclOperation.cluster_action, ResourceType.cluster, "kafka-cluster"))
    consumer = Consumer(world, BY_NAME)
    [answer] = consumer.fetch(ALL[:1], replica_id=2)
    assert answer[2] is ErrorCode.topic_authorization_failed


def test_who_only_claims_to_be_a_replica_reads_no_more_than_a_consumer(world: World) -> None:
    """A session begun as a replica would read to the log end as a consumer, who needs no right of brokers."""
    world.services.authorizer = Denying((AclOperation.cluster_action, ResourceType.cluster, "kafka-cluster"))
    consumer = Consumer(world, BY_NAME)
    assert [answer[2] for answer in consumer.fetch(ALL[:2], replica_id=2)] == [ErrorCode.topic_authorization_failed] * 2
    assert consumer.session == (0, 0)


def test_a_session_stays_that_of_a_replica_or_of_a_consumer(world: World) -> None:
    as_replica, as_consumer = Consumer(world, BY_NAME), Consumer(world, BY_NAME)
    as_replica.fetch(ALL[:2], replica_id=2)
    as_consumer.fetch(ALL[:2])
    assert as_replica.refused(as_replica.session) is ErrorCode.fetch_session_id_not_found
    fields = fields_of(BY_NAME, as_consumer.session, (), replica_id=2)
    assert world.ask(fetch, BY_NAME, **fields).error_code is ErrorCode.fetch_session_id_not_found
    assert as_consumer.fetch() == []


def test_an_incremental_fetch_waits_for_any_partition_of_its_session(world: World) -> None:
    async def scenario() -> Any:
        full = await world.answer(fetch, BY_ID, **fields_of(BY_ID, (0, 0), ALL))
        waiting = asyncio.ensure_future(
            world.answer(fetch, BY_ID, **fields_of(BY_ID, (full.session_id, 1), (), max_wait=60_000))
        )
        await asyncio.sleep(0)
        world.append("airports", 0, b"landed")
        return await waiting

    response = asyncio.run(scenario())
    [topic] = response.responses
    assert (topic.topic_id, topic.partitions[0].high_watermark) == (AIRPORTS, 1)


def test_a_fetch_that_was_overtaken_in_its_session_is_refused(world: World) -> None:
    async def scenario() -> Any:
        full = await world.answer(fetch, BY_ID, **fields_of(BY_ID, (0, 0), ALL))
        overtaken = asyncio.ensure_future(
            world.answer(fetch, BY_ID, **fields_of(BY_ID, (full.session_id, 1), (), max_wait=60_000))
        )
        await asyncio.sleep(0)
        await world.answer(fetch, BY_ID, **fields_of(BY_ID, (full.session_id, 2), ()))
        world.append("airports", 0, b"landed")
        return await overtaken

    assert asyncio.run(scenario()).error_code is ErrorCode.invalid_fetch_session_epoch
