"""Consumer groups: sharing, rebalancing, what a group has committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

if TYPE_CHECKING:
    from tests.conftest import TopicFactory

pytestmark = pytest.mark.slow

PARTITIONS = 4
REBALANCE_S = 120


class ConfluentMember:
    """A group member by librdkafka."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str, **settings: Any) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
                **settings,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> list[tuple[int, bytes]]:
        """What came within a moment: (partition, value)."""
        rows = []
        for message in self.consumer.consume(1000, 0.1):
            error, partition, value = message.error(), message.partition(), message.value()
            assert error is None, error
            assert partition is not None
            assert value is not None
            rows.append((partition, value))
        return rows

    def assigned(self) -> set[int]:
        return {p.partition for p in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def leave(self) -> None:
        self.consumer.close()


class KafkaPythonMember:
    """A group member by kafka-python."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )
        # A leader that joins before it knows the topic joins once more when it does; if a poll's time is over while it
        # does so, kafka-python 3.0.12 forgets the assignment, sends no more heartbeats and is put out of the group.
        self.consumer.partitions_for_topic(topic)

    def poll(self) -> list[tuple[int, bytes]]:
        # A second, for the same reason: on a busy machine a join of two members takes longer than a tenth of it.
        return [(row.partition, row.value) for rows in self.consumer.poll(1000).values() for row in rows]

    def assigned(self) -> set[int]:
        return {p.partition for p in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit()

    def leave(self) -> None:
        self.consumer.close(autocommit=False)


Member = ConfluentMember | KafkaPythonMember
Join = Callable[..., Member]


@pytest.fixture(params=[ConfluentMember, KafkaPythonMember], ids=["confluent-kafka", "kafka-python"])
def join(request: pytest.FixtureRequest, bootstrap_servers: str) -> Iterator[Join]:
    """Adds a member to a group; whoever is still there leaves after the test."""
    members: list[Member] = []

    def add(group: str, topic: str) -> Member:
        member: Member = request.param(bootstrap_servers, group, topic)
        members.append(member)
        return member

    yield add
    for member in members:
        member.leave()


def fill(bootstrap_servers: str, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Numbered values, dealt to the partitions in turn."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    values = [b"%d" % i for i in range(first, first + count)]
    for i, value in enumerate(values):
        producer.produce(topic, value, partition=i % PARTITIONS)
    assert producer.flush(30) == 0
    return values


def poll_until(done: Callable[[], bool], *members: Member) -> list[tuple[int, bytes]]:
    """Polls the members in turn until the condition holds, and returns all they received."""
    rows: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + REBALANCE_S
    while not done():
        assert time.monotonic() < deadline, f"not reached; assignments {[m.assigned() for m in members]}"
        for member in members:
            rows += member.poll()
    return rows


def poll_count(count: int, *members: Member) -> list[tuple[int, bytes]]:
    """Polls until so many records came in all."""
    rows: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + REBALANCE_S
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{len(rows)} of {count} records; {[m.assigned() for m in members]}"
        for member in members:
            rows += member.poll()
    return rows


def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(
    bootstrap_servers: str, join: Join, new_topic: TopicFactory
) -> None:
    topic = new_topic(PARTITIONS)
    every = set(range(PARTITIONS))
    first = join(topic, topic)
    poll_until(lambda: first.assigned() == every, first)
    second = join(topic, topic)
    poll_until(
        lambda: (
            len(first.assigned()) == len(second.assigned()) == PARTITIONS // 2
            and first.assigned() | second.assigned() == every
        ),
        first,
        second,
    )
    values = fill(bootstrap_servers, topic, 400)
    shared = poll_count(400, first, second)
    assert sorted(value for _, value in shared) == sorted(values)
    first.commit()
    second.commit()
    second.leave()
    poll_until(lambda: first.assigned() == every, first)
    more = fill(bootstrap_servers, topic, 400, first=400)
    assert sorted(value for _, value in poll_count(400, first)) == sorted(more)


def test_a_group_goes_on_where_it_committed(bootstrap_servers: str, join: Join, new_topic: TopicFactory) -> None:
    topic = new_topic(PARTITIONS)
    fill(bootstrap_servers, topic, 100)
    one = join(topic, topic)
    poll_count(100, one)
    one.commit()
    one.leave()
    more = fill(bootstrap_servers, topic, 100, first=100)
    other = join(topic, topic)
    assert sorted(value for _, value in poll_count(100, other)) == sorted(more)


def test_committed_offsets_keep_their_metadata(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic(PARTITIONS)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 1, 42, "as agreed")], asynchronous=False)
        committed = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], 30)
    finally:
        consumer.close()
    assert [(p.offset, p.metadata) for p in committed if p.partition == 1] == [(42, "as agreed")]
    assert all(p.offset < 0 for p in committed if p.partition != 1)


def test_a_static_member_comes_back_to_its_partitions(bootstrap_servers: str, new_topic: TopicFactory) -> None:
    topic = new_topic(PARTITIONS)

    def member(name: str) -> ConfluentMember:
        return ConfluentMember(bootstrap_servers, topic, topic, **{"group.instance.id": name})

    one, two = member("one"), member("two")
    poll_until(lambda: len(one.assigned()) == len(two.assigned()) == PARTITIONS // 2, one, two)
    before = two.assigned()
    two.leave()
    again = member("two")
    poll_until(lambda: bool(again.assigned()), one, again)
    assert again.assigned() == before
    assert one.assigned() == set(range(PARTITIONS)) - before
    one.leave()
    again.leave()


def test_groups_are_listed_described_and_read_by_an_admin(
    bootstrap_servers: str, admin: AdminClient, join: Join, new_topic: TopicFactory
) -> None:
    topic = new_topic(PARTITIONS)
    fill(bootstrap_servers, topic, 40)
    member = join(topic, topic)
    poll_count(40, member)
    member.commit()
    listed = {g.group_id for g in admin.list_consumer_groups(request_timeout=30).result().valid}
    assert topic in listed
    described = admin.describe_consumer_groups([topic], request_timeout=30)[topic].result()
    assert described.state.name == "STABLE"
    [one] = described.members
    assert {p.partition for p in one.assignment.topic_partitions} == set(range(PARTITIONS))
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result()
    assert {p.partition: p.offset for p in offsets.topic_partitions} == dict.fromkeys(range(PARTITIONS), 10)
