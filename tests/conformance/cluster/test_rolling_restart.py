"""One broker after the other is restarted, as docs/how-to/rolling_restart.md says, and no application has an error."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.clients import NumberProducer
from tests.faults.movers import read_committed
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IDS = (1, 2, 3)
SOURCE, TARGET = "numbers", "moved"
PARTITIONS = 3
PATIENCE_S = 120
REQUEST_S = 60.0
RECORDS_MAX = 200
RECORDS_PER_TRANSACTION = 10
#: Between two transactions: without it, the brokers would do nothing else.
PAUSE_S = 0.05
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_num_partitions": "3",
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_num_partitions": "3",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
    "leader_imbalance_check_interval_seconds": "2",
}


class Application:
    """An application in a thread of its own. Any error is one too many: of a call, of a message, or a fatal one.

    librdkafka also reports lost connections and addresses that do not answer, in every restart; it heals them itself.
    """

    def __init__(self, name: str, addresses: str, group_protocol: str = "classic") -> None:
        self.name = name
        self._group_protocol = group_protocol
        self.errors: list[str] = []
        #: Rebalances of its group.
        self.assignments = 0
        self._common: dict[str, Any] = {
            "bootstrap.servers": addresses,
            "client.id": name,
            "error_cb": self._failed,
            "log_level": 0,
        }
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run_to_the_end, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """End the application; a client that does not return is an error."""
        self._ending.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.errors.append(f"{self.name}: its client does not return")

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(f"{self.name}: {error}")

    def _run_to_the_end(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 (of a thread: the test reports it)
            self.errors.append(f"{self.name}: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError

    def _good(self, messages: list[Message]) -> list[Message]:
        """The messages; what a consumer gets in place of one is an error."""
        self.errors += [f"{self.name}: {each.error()}" for each in messages if each.error() is not None]
        return [each for each in messages if each.error() is None]

    def _subscribed(self) -> Consumer:
        consumer = Consumer(
            {
                **self._common,
                "group.id": self.name,
                "group.protocol": self._group_protocol,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([SOURCE], on_assign=self._assigned)
        return consumer

    def _assigned(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.assignments += 1


class GroupMember(Application):
    """A consumer in a group, which commits what it has read.

    Attributes:
        seen: The values, by partition, in the order in which they came.
    """

    def __init__(self, name: str, addresses: str, group_protocol: str) -> None:
        super().__init__(name, addresses, group_protocol)
        self.seen: dict[int, list[bytes]] = {each: [] for each in range(PARTITIONS)}

    def _run(self) -> None:
        consumer = self._subscribed()
        try:
            while not self._ending.is_set():
                messages = self._good(consumer.consume(RECORDS_MAX, 0.3))
                for message in messages:
                    partition, value = message.partition(), message.value()
                    assert partition is not None
                    assert value is not None
                    self.seen[partition].append(value)
                if messages:
                    consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def count(self) -> int:
        return sum(map(len, self.seen.values()))


class TransactionalWriter(Application):
    """Writes in transactions, which all succeed at the first attempt.

    It sends no offsets to its transactions: librdkafka 2.10 to 2.16 never returns from that when the coordinator of the
    group leaves the metadata, as in every rolling restart, also of Kafka (its issue 5511).

    Attributes:
        committed: The values of the transactions that were committed.
    """

    def __init__(self, name: str, addresses: str) -> None:
        super().__init__(name, addresses)
        self.committed: list[bytes] = []

    def _run(self) -> None:
        producer = Producer({**self._common, "transactional.id": self.name, "linger.ms": 5})
        producer.init_transactions(REQUEST_S)
        while not self._ending.is_set():
            first = len(self.committed)
            values = [b"%d" % number for number in range(first, first + RECORDS_PER_TRANSACTION)]
            producer.begin_transaction()
            for value in values:
                producer.produce(TARGET, value=value)
            producer.commit_transaction(REQUEST_S)
            self.committed += values
            self._ending.wait(PAUSE_S)


def is_healthy(cluster: ClusterProcesses) -> bool:
    """What an administrator asks before the next broker."""
    command = [sys.executable, "-m", "headwater", "cluster", "health", "-b", cluster.address(IDS[0])]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0


def gone_on(writer: TransactionalWriter, members: Sequence[GroupMember]) -> Callable[[], bool]:
    """A function that returns whether all have done more since now; it fails with their errors."""
    committed, read = len(writer.committed), [each.count() for each in members]

    def has_gone_on() -> bool:
        assert [error for each in (writer, *members) for error in each.errors] == []
        return len(writer.committed) > committed and all(
            each.count() > of for each, of in zip(members, read, strict=True)
        )

    return has_gone_on


def leaders(admin: AdminClient) -> dict[tuple[str, int], tuple[int, int]]:
    """The leader and the preferred leader of each partition."""
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    return {
        (name, number): (partition.leader, partition.replicas[0])
        for name, topic in topics.items()
        for number, partition in topic.partitions.items()
    }


def test_a_rolling_restart_is_no_error_in_any_application(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=6_000)
    cluster.serve(*IDS, **PROPERTIES)
    addresses = cluster.servers()
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    for future in admin.create_topics([NewTopic(each, PARTITIONS, 3) for each in (SOURCE, TARGET)]).values():
        future.result(PATIENCE_S)
    producer = NumberProducer("producer", addresses, SOURCE)
    members = tuple(GroupMember(f"{each}-member", addresses, each) for each in ("classic", "consumer"))
    writer = TransactionalWriter("writer", addresses)
    applications: tuple[NumberProducer | Application, ...] = (producer, *members, writer)
    for application in applications:
        application.start()
    try:
        until(gone_on(writer, members), "nothing is consumed")
        assignments = [each.assignments for each in members]
        for broker_id in IDS:
            cluster.stop(broker_id)
            cluster.serve(broker_id, **PROPERTIES)
            until(lambda: is_healthy(cluster), "the cluster is not healthy")
            until(gone_on(writer, members), "the applications do not go on")
        until(lambda: all(each[0] == each[1] for each in leaders(admin).values()), "leaderships did not return")
        assert producer.finish(PATIENCE_S) == 0
        sent = sorted(each.value for each in producer.acknowledged)
        writer.finish()
        until(lambda: min(each.count() for each in members) >= len(sent), "not all was consumed")
    finally:
        producer.finish(0)
        for each in (*members, writer):
            each.finish()
    assert [error for application in applications for error in application.errors] == []
    assert [each.assignments for each in members] == assignments, "a group has rebalanced"
    for each in members:
        assert sorted(value for seen in each.seen.values() for value in seen) == sent
    committed = read_committed(addresses, TARGET, PARTITIONS, len(writer.committed), PATIENCE_S)
    assert sorted(committed) == sorted(writer.committed)
    for broker_id in IDS:
        cluster.stop(broker_id)
        assert "Traceback" not in (cluster.folder / f"{broker_id}.log").read_text()
