"""aiokafka, a third client: low request versions, its own group and transaction logic."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    IllegalOperation,
    OffsetOutOfRangeError,
    ProducerFenced,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from tests.conformance.conftest import ConfluentClient
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
HEADERS = [("origin", b"EWR"), ("origin", b"JFK"), ("empty", b"")]

Result = TypeVar("Result")


def run(scenario: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(scenario, TIMEOUT_S))


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


async def records_of(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        for some in (await consumer.getmany(timeout_ms=500)).values():
            found += some
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (clients have no event for it; the scenario has a time limit)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_comes_back(
    bootstrap_servers: str, new_topic: TopicFactory, compression: str | None, idempotent: bool
) -> None:
    topic = new_topic()

    async def scenario() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, compression_type=compression, enable_idempotence=idempotent
        )
        async with started(producer):
            sent = [
                await producer.send(topic, b"value %d" % i * 20, key=b"key", headers=HEADERS, timestamp_ms=1000 + i)
                for i in range(200)
            ]
            told = await asyncio.gather(*sent)
            await producer.send_and_wait(topic, None, key=b"tombstone")
        assert [each.offset for each in told] == list(range(200))
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
        async with started(consumer):
            found = await records_of(consumer, 201)
        assert [r.value for r in found[:-1]] == [b"value %d" % i * 20 for i in range(200)]
        assert [r.timestamp for r in found[:-1]] == [1000 + i for i in range(200)]
        assert [list(r.headers) for r in found[:-1]] == [HEADERS] * 200
        assert (found[-1].key, found[-1].value) == (b"tombstone", None)

    run(scenario())


def test_what_other_clients_write_is_read_and_the_other_way_round(
    bootstrap_servers: str, new_topic: TopicFactory, second_client: ConfluentClient, record: Any
) -> None:
    topic = new_topic()
    second_client.produce(topic, [record(b"k", b"from librdkafka %d" % i) for i in range(50)], compression="lz4")

    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, compression_type="zstd")
        async with started(producer):
            await producer.send_and_wait(topic, b"from aiokafka", partition=0)
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
        async with started(consumer):
            found = await records_of(consumer, 51)
        assert found[49].value == b"from librdkafka 49"

    run(scenario())
    assert second_client.consume(topic, 51)[50].value == b"from aiokafka"


def test_offsets_are_found_by_time_and_at_both_ends(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)

    async def scenario() -> None:
        async with started(AIOKafkaProducer(bootstrap_servers=bootstrap_servers)) as producer:
            for i in range(10):
                await producer.send_and_wait(topic, b"x", partition=0, timestamp_ms=1_000_000 + 100 * i)
        async with started(AIOKafkaConsumer(bootstrap_servers=bootstrap_servers)) as consumer:
            consumer.assign([partition])
            found = await consumer.offsets_for_times({partition: 1_000_450})
            assert (found[partition].offset, found[partition].timestamp) == (5, 1_000_500)
            assert await consumer.offsets_for_times({partition: 2_000_000}) == {partition: None}
            assert await consumer.beginning_offsets([partition]) == {partition: 0}
            assert await consumer.end_offsets([partition]) == {partition: 10}

    run(scenario())


def test_an_offset_out_of_range_is_told_as_such(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)

    async def scenario() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="none")
        async with started(consumer):
            consumer.assign([partition])
            consumer.seek(partition, 99)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.getone()

    run(scenario())


# -- groups


@pytest.mark.parametrize(
    "assignor",
    [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor],
    ids=["range", "roundrobin", "sticky"],
)
def test_a_group_shares_partitions_and_goes_on_from_what_was_committed(
    bootstrap_servers: str, new_topic: TopicFactory, assignor: Any
) -> None:
    topic = new_topic(partitions=4)
    group = f"group-{uuid.uuid4().hex[:8]}"

    def member() -> Any:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(assignor,),
            heartbeat_interval_ms=100,
            metadata_max_age_ms=500,
        )

    async def produce(numbers: range) -> None:
        async with started(AIOKafkaProducer(bootstrap_servers=bootstrap_servers)) as producer:
            for i in numbers:
                await producer.send_and_wait(topic, b"%d" % i, partition=i % 4)

    async def scenario() -> None:
        await produce(range(40))
        async with started(member()) as first:
            values = [int(r.value) for r in await records_of(first, 40)]
            assert sorted(values) == list(range(40))
            await first.commit()
            second = member()
            await second.start()
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            assert first.assignment() | second.assignment() == {TopicPartition(topic, i) for i in range(4)}
            await produce(range(40, 80))
            shares = await asyncio.gather(records_of(first, 20), records_of(second, 20))
            assert sorted(int(r.value) for share in shares for r in share) == list(range(40, 80))
            await asyncio.gather(first.commit(), second.commit())
            await second.stop()
            await until(lambda: len(first.assignment()) == 4)
            committed = [await first.committed(TopicPartition(topic, i)) for i in range(4)]
            assert committed == [20] * 4

    run(scenario())


def test_rebalances_are_told_to_the_listener_and_metadata_is_committed(
    bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic(partitions=2)
    heard: list[tuple[str, int]] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> Awaitable[None] | None:
            heard.append(("revoked", len(revoked)))
            return None

        def on_partitions_assigned(self, assigned: Any) -> Awaitable[None] | None:
            heard.append(("assigned", len(assigned)))
            return None

    async def scenario() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=f"group-{uuid.uuid4().hex[:8]}")
        consumer.subscribe([topic], listener=Listener())
        async with started(consumer):
            await until(lambda: ("assigned", 2) in heard)
            await consumer.commit({TopicPartition(topic, 1): (7, "up to the seventh")})
            assert await consumer.committed(TopicPartition(topic, 1)) == 7

    run(scenario())


# -- transactions


def test_a_transaction_is_seen_whole_or_not_at_all(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic, other = new_topic(), new_topic()
    group = f"group-{uuid.uuid4().hex[:8]}"
    partition = TopicPartition(topic, 0)

    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=f"t-{uuid.uuid4().hex[:8]}")
        async with started(producer):
            async with producer.transaction():
                await producer.send(topic, b"committed", partition=0)
                await producer.send(other, b"committed", partition=0)
                await producer.send_offsets_to_transaction({partition: 5}, group)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"aborted", partition=0)
                    await producer.send_offsets_to_transaction({partition: 9}, group)
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send(topic, b"committed again", partition=0)
        for isolation, wanted in (
            ("read_committed", [b"committed", b"committed again"]),
            ("read_uncommitted", [b"committed", b"aborted", b"committed again"]),
        ):
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap_servers,
                group_id=f"{group}-{isolation}",
                isolation_level=isolation,
                auto_offset_reset="earliest",
            )
            async with started(consumer):
                assert [r.value for r in await records_of(consumer, len(wanted))] == wanted
        async with started(AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=group)) as consumer:
            assert await consumer.committed(partition) == 5

    run(scenario())


def test_the_second_producer_of_a_transactional_id_fences_the_first(
    bootstrap_servers: str, new_topic: TopicFactory
) -> None:
    topic = new_topic()
    name = f"t-{uuid.uuid4().hex[:8]}"

    async def scenario() -> None:
        first = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=name)
        second = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id=name)
        async with started(first):
            await first.begin_transaction()
            await first.send_and_wait(topic, b"of the first", partition=0)
            async with started(second):
                with pytest.raises((ProducerFenced, IllegalOperation)):
                    await first.send_and_wait(topic, b"too late", partition=0)
                    await first.commit_transaction()
                async with second.transaction():
                    await second.send(topic, b"of the second", partition=0)
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        async with started(consumer):
            assert [r.value for r in await records_of(consumer, 1)] == [b"of the second"]

    run(scenario())


# -- administration


def test_topics_are_created_described_grown_configured_and_deleted(bootstrap_servers: str) -> None:
    topic = f"test-{uuid.uuid4().hex[:8]}"

    async def scenario() -> None:
        admin: Any
        async with administration(bootstrap_servers) as admin:
            made = await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "60000"})])
            assert [each[1] for each in made.topic_errors] == [0]
            again = await admin.create_topics([NewTopic(topic, 2, 1)])
            assert [each[1] for each in again.topic_errors] == [TopicAlreadyExistsError.errno]
            [described] = await admin.describe_topics([topic])
            assert (described["error_code"], len(described["partitions"])) == (0, 2)
            await admin.create_partitions({topic: NewPartitions(3)})
            [described] = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 3
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "70000"})
            await admin.alter_configs([resource])
            [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            [(_, _, _, _, entries)] = answer.resources
            assert {entry[0]: entry[1] for entry in entries}["retention.ms"] == "70000"
            assert topic in await admin.list_topics()
            await admin.delete_topics([topic])
            assert topic not in await admin.list_topics()
            gone = await admin.delete_topics([topic])
            assert [each[1] for each in gone.topic_error_codes] == [UnknownTopicOrPartitionError.errno]

    run(scenario())


def test_groups_and_their_offsets_are_listed(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic()
    group = f"group-{uuid.uuid4().hex[:8]}"

    async def scenario() -> None:
        admin: Any
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap_servers, group_id=group)
        async with started(consumer), administration(bootstrap_servers) as admin:
            await until(lambda: len(consumer.assignment()) == 1)
            await consumer.commit({TopicPartition(topic, 0): 3})
            assert (group, "consumer") in await admin.list_consumer_groups()
            [answer] = await admin.describe_consumer_groups([group])
            [(code, name, state, kind, _, members, *_)] = answer.groups
            assert (code, name, state, kind, len(members)) == (0, group, "Stable", "consumer", 1)
            offsets = await admin.list_consumer_group_offsets(group)
            assert offsets[TopicPartition(topic, 0)].offset == 3

    run(scenario())


@asynccontextmanager
async def administration(bootstrap_servers: str) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()
