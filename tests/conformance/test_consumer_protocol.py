"""Groups of the consumer protocol (KIP-848) with librdkafka: the broker assigns, members only keep it informed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.conftest import BrokerProcess

if TYPE_CHECKING:
    from tests.conftest import StartBroker

pytestmark = pytest.mark.slow

REBALANCE_S = 40
PARTITIONS = 6
PROPERTIES = {
    "group.consumer.min.session.timeout.ms": "1000",
    # A member that is not run for a moment stays: whoever is put out reads again what it had read.
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
}

Owned = set[tuple[str, int]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose members send heartbeats often."""
    broker = BrokerProcess(tmp_path_factory.mktemp("consumer-protocol") / "data", 0, PROPERTIES)
    try:
        broker.await_ready()
        yield broker
        broker.stop()
    finally:
        broker.close()


class Member:
    """A member of a group, with everything it has read."""

    def __init__(self, address: str, group: str, topics: Sequence[str], **settings: Any) -> None:
        protocol = {"group.protocol": "consumer"} if settings.pop("is_modern", True) else CLASSIC
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **protocol,
                **settings,
            }
        )
        self.values: list[bytes] = []
        self.consumer.subscribe(list(topics))

    def poll(self) -> None:
        for message in self.consumer.consume(1000, 0.05):
            error, value = message.error(), message.value()
            if error is not None:
                # A topic of a subscription that is deleted or not there yet, and a broker that has just been killed.
                assert error.retriable() or error.code() in PASSING, error
            else:
                assert value is not None
                self.values.append(value)

    def owned(self) -> Owned:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def leave(self) -> None:
        self.consumer.close()


CLASSIC = {
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 200,
    "partition.assignment.strategy": "cooperative-sticky",
}
PASSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}
Join = Callable[..., Member]


@pytest.fixture
def join(broker: BrokerProcess) -> Iterator[Join]:
    """Adds a member to a group; whoever is still there leaves after the test."""
    members: list[Member] = []

    def add(group: str, *topics: str, **settings: Any) -> Member:
        member = Member(broker.address, group, topics, **settings)
        members.append(member)
        return member

    yield add
    for member in members:
        member.leave()


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> str:
    """A topic of this test alone."""
    name = f"t-{abs(hash(request.node.name)) % 10**9}"
    create(admin, name)
    return name


def create(admin: AdminClient, name: str, partitions: int = PARTITIONS) -> None:
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)


def every(topic: str, partitions: int = PARTITIONS) -> Owned:
    return {(topic, index) for index in range(partitions)}


def poll_until(done: Callable[[], bool], *members: Member) -> None:
    deadline = time.monotonic() + REBALANCE_S
    while not done():
        assert time.monotonic() < deadline, f"not reached; {[sorted(member.owned()) for member in members]}"
        for member in members:
            member.poll()


def shared(wanted: Owned, *members: Member) -> Callable[[], bool]:
    """Every partition is owned once, and all have about the same number."""

    def is_reached() -> bool:
        owned = [member.owned() for member in members]
        sizes = [len(each) for each in owned]
        return sum(sizes) == len(wanted) and set().union(*owned) == wanted and max(sizes) - min(sizes) <= 1

    return is_reached


def fill(address: str, topic: str, count: int, partitions: int = PARTITIONS) -> list[bytes]:
    producer = Producer({"bootstrap.servers": address})
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(30) == 0
    return values


def test_members_come_and_go_and_every_record_is_read_once(
    broker: BrokerProcess, join: Join, topic: str, admin: AdminClient
) -> None:
    values = fill(broker.address, topic, 600)
    one = join(topic, topic)
    poll_until(lambda: len(one.values) == 600, one)
    assert sorted(one.values) == sorted(values)
    one.consumer.commit(asynchronous=False)
    two, three = join(topic, topic), join(topic, topic)
    poll_until(shared(every(topic), one, two, three), one, two, three)
    one.values.clear()
    values = fill(broker.address, topic, 300)
    poll_until(lambda: len(one.values + two.values + three.values) >= 300, one, two, three)
    assert sorted(one.values + two.values + three.values) == sorted(values)
    three.leave()
    poll_until(shared(every(topic), one, two), one, two)
    described = admin.describe_consumer_groups([topic])[topic].result()
    assert described.type is ConsumerGroupType.CONSUMER
    assert described.state.name == "STABLE"
    assert sorted(len(member.assignment.topic_partitions) for member in described.members) == [3, 3]
    listed = {group.group_id: group.type for group in admin.list_consumer_groups().result().valid}
    assert listed[topic] is ConsumerGroupType.CONSUMER


def test_a_group_goes_on_where_it_committed(broker: BrokerProcess, join: Join, topic: str) -> None:
    fill(broker.address, topic, 60)
    one = join(topic, topic)
    poll_until(lambda: len(one.values) == 60, one)
    one.consumer.commit(asynchronous=False)
    one.leave()
    more = fill(broker.address, topic, 30)
    two = join(topic, topic)
    poll_until(lambda: len(two.values) == 30, two)
    assert sorted(two.values) == sorted(more)


def test_partitions_that_are_added_and_topics_that_go_are_followed(join: Join, topic: str, admin: AdminClient) -> None:
    create(admin, f"{topic}-other")
    one, two = join(topic, topic, f"{topic}-other"), join(topic, topic, f"{topic}-other")
    both = every(topic) | every(f"{topic}-other")
    poll_until(shared(both, one, two), one, two)
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(30)
    poll_until(shared(both | every(topic, PARTITIONS + 2), one, two), one, two)
    admin.delete_topics([f"{topic}-other"])[f"{topic}-other"].result(30)
    poll_until(shared(every(topic, PARTITIONS + 2), one, two), one, two)


def test_a_regular_expression_follows_the_topics_that_match(join: Join, topic: str, admin: AdminClient) -> None:
    one = join(topic, f"^{topic}.*")
    poll_until(shared(every(topic), one), one)
    create(admin, f"{topic}-new", 2)
    create(admin, f"not-{topic}", 1)
    poll_until(shared(every(topic) | every(f"{topic}-new", 2), one), one)


def test_a_member_that_crashes_is_replaced_after_its_session(
    broker: BrokerProcess, join: Join, topic: str, tmp_path: Path
) -> None:
    crashing = tmp_path / "member.py"
    crashing.write_text(
        textwrap.dedent(
            f"""
            from confluent_kafka import Consumer
            consumer = Consumer({{"bootstrap.servers": {broker.address!r}, "group.id": {topic!r},
                                  "group.protocol": "consumer"}})
            consumer.subscribe([{topic!r}])
            while True:
                consumer.poll(0.1)
                print(len(consumer.assignment()), flush=True)
            """
        )
    )
    one = join(topic, topic)
    poll_until(shared(every(topic), one), one)
    child = subprocess.Popen([sys.executable, str(crashing)], stdout=subprocess.DEVNULL)
    try:
        poll_until(lambda: len(one.owned()) == PARTITIONS // 2, one)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    poll_until(shared(every(topic), one), one)


def test_a_static_member_comes_back_to_its_partitions(join: Join, topic: str) -> None:
    one = join(topic, topic, **{"group.instance.id": "one"})
    two = join(topic, topic, **{"group.instance.id": "two"})
    poll_until(shared(every(topic), one, two), one, two)
    before = two.owned()
    two.leave()
    again = join(topic, topic, **{"group.instance.id": "two"})
    poll_until(lambda: bool(again.owned()), one, again)
    assert again.owned() == before
    assert one.owned() == every(topic) - before


def test_a_member_may_ask_for_the_range_assignor(join: Join, topic: str) -> None:
    one = join(topic, topic, **{"group.remote.assignor": "range"})
    two = join(topic, topic, **{"group.remote.assignor": "range"})
    poll_until(shared(every(topic), one, two), one, two)
    ranges = sorted(sorted(index for _, index in member.owned()) for member in (one, two))
    assert ranges == [[0, 1, 2], [3, 4, 5]]


def test_classic_members_are_replaced_one_by_one_without_a_stop(
    broker: BrokerProcess, join: Join, topic: str, admin: AdminClient
) -> None:
    def kind() -> Any:
        return next(each.type for each in admin.list_consumer_groups().result().valid if each.group_id == topic)

    old = [join(topic, topic, is_modern=False) for _ in range(2)]
    poll_until(shared(every(topic), *old), *old)
    assert kind() is ConsumerGroupType.CLASSIC
    first = join(topic, topic)
    poll_until(shared(every(topic), *old, first), *old, first)
    assert kind() is ConsumerGroupType.CONSUMER
    old[0].consumer.commit(offsets=[TopicPartition(topic, min(old[0].owned())[1], 0)], asynchronous=False)
    old[0].leave()
    second = join(topic, topic)
    poll_until(shared(every(topic), old[1], first, second), old[1], first, second)
    # And back: the last of the new ones goes.
    first.leave()
    second.leave()
    poll_until(lambda: kind() is ConsumerGroupType.CLASSIC and old[1].owned() == every(topic), old[1])


def test_a_groups_own_configs_are_kept_and_described(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(
        ResourceType.GROUP,
        topic,
        incremental_configs=[
            ConfigEntry("consumer.session.timeout.ms", "50000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    described = admin.describe_configs([resource])[resource].result(30)
    assert described["consumer.session.timeout.ms"].value == "50000"
    assert described["consumer.heartbeat.interval.ms"].value == "200"


def test_a_broker_that_is_killed_in_the_middle_of_rebalances_loses_no_member(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    prng = random.Random(848)
    broker = start_broker(tmp_path / "data", 0, PROPERTIES)
    port, group, topic = broker.port, "killed", "killed-topic"
    create(AdminClient({"bootstrap.servers": broker.address}), topic, 12)
    wanted = every(topic, 12)
    members: list[Member] = []
    try:
        for size in range(1, 6):
            members.append(Member(broker.address, group, [topic]))
            ends = time.monotonic() + prng.uniform(0.05, 1.0)
            while time.monotonic() < ends:
                for member in members:
                    member.poll()
            broker.kill()
            broker = start_broker(tmp_path / "data", port, PROPERTIES)
            if size % 2:
                poll_until(shared(wanted, *members), *members)
        members.pop(0).leave()
        broker.kill()
        broker = start_broker(tmp_path / "data", port, PROPERTIES)
        poll_until(shared(wanted, *members), *members)
    finally:
        for member in members:
            member.leave()
