"""Three broker processes whose ZooKeeper is killed, then frozen beyond the session; at last a broker is frozen so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.exceptions import NoNodeError

from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.client.produce_codec import ProducedPartition, produce_request
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.records.batch import Record, build_batch
from tests.conformance.cluster.conftest import PASSWORD, USER, ClusterProcesses, MakeCluster
from tests.conformance.cluster.test_members import begun, epoch
from tests.faults.clients import NumberProducer, WatchingConsumer
from tests.stopped_process import stop as stop_process
from tests.waiting import until
from tests.zookeeper import ServerOptions, ZooKeeperServer, running_zookeeper

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC, PARTITIONS = "flights", 3
IDS = (1, 2, 3)
#: None ends because the machine is busy.
SESSION_MS = 6_000
#: Longer than a session, and than the time in which a server ends it.
AWAY_S = 1.5 * SESSION_MS / 1000
PATIENCE_S = 120
#: As Kafka's admin clients: an answer comes before they give up.
REQUEST_TIMEOUT_S = 30
PROPERTIES = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "offsets_topic_num_partitions": "2",
    "offsets_topic_replication_factor": "3",
}


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that this test alone uses, and ends."""
    with running_zookeeper(tmp_path / "zookeeper", ServerOptions(users={USER: PASSWORD})) as server:
        yield server


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ClusterProcesses:
    cluster = make_cluster(session_ms=SESSION_MS)
    begun(cluster, **PROPERTIES)
    return cluster


class Load:
    """Producers and a consumer of one topic."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.producers = [NumberProducer(f"p{number}", bootstrap_servers, TOPIC) for number in range(2)]
        self.consumer = WatchingConsumer("c", bootstrap_servers, TOPIC, PARTITIONS)
        for each in self.producers:
            each.start()
        self.consumer.start()

    def acknowledged(self) -> list[int]:
        """How many records of each partition were acknowledged."""
        return [
            sum(1 for producer in self.producers for each in list(producer.acknowledged) if each.partition == index)
            for index in range(PARTITIONS)
        ]

    def progress(self) -> None:
        """Wait until records that were produced from now on are acknowledged in each partition."""
        before = [count + 1 for count in self.acknowledged()]
        until(lambda: all(now > count for now, count in zip(self.acknowledged(), before, strict=True)))

    def finish(self) -> None:
        """Stop, and check that everything acknowledged was read.

        A record may be there twice: librdkafka begins another producer epoch, and repeats what it has not heard of,
        when the first of several requests under way is refused with NOT_ENOUGH_REPLICAS, and the next comes out of
        order.
        """
        assert [each.finish(PATIENCE_S) for each in self.producers] == [0, 0]
        wanted = self.acknowledged()
        try:
            until(lambda: all(len(self.consumer.seen[index]) >= wanted[index] for index in range(PARTITIONS)))
        finally:
            self.consumer.finish()
        assert not self.consumer.errors + [error for each in self.producers for error in each.errors]
        seen = self.consumer.seen
        acknowledged = [each for producer in self.producers for each in producer.acknowledged]
        found = {(index, value) for index in range(PARTITIONS) for value in seen[index]}
        assert [each for each in acknowledged if (each.partition, each.value) not in found] == []


@contextmanager
def load(cluster: ClusterProcesses) -> Iterator[Load]:
    working = Load(cluster.servers())
    try:
        yield working
    except BaseException:
        for each in working.producers:
            each.finish(0)
        working.consumer.finish()
        raise
    working.finish()


def admin(cluster: ClusterProcesses) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.servers(), "log_level": 0})


def create(client: AdminClient, topic: str, partitions: int = 1) -> None:
    [created] = client.create_topics([NewTopic(topic, partitions, 3)], request_timeout=PATIENCE_S).values()
    created.result(PATIENCE_S)


def leader(client: AdminClient, index: int) -> int:
    return client.list_topics(TOPIC, timeout=PATIENCE_S).topics[TOPIC].partitions[index].leader


def epochs(cluster: ClusterProcesses) -> list[int]:
    return [epoch(cluster, each) for each in IDS]


def test_an_outage_and_a_pause_of_zookeeper_and_of_a_broker_lose_nothing_and_leave_no_stale_answer(
    cluster: ClusterProcesses, zookeeper: ZooKeeperServer
) -> None:
    client = admin(cluster)
    create(client, TOPIC, PARTITIONS)
    with load(cluster) as working:
        working.progress()
        killed_zookeeper(cluster, zookeeper, client, working)
        frozen_zookeeper(cluster, zookeeper, working)
        frozen_leader(cluster, client, working)
        working.progress()


def killed_zookeeper(cluster: ClusterProcesses, server: ZooKeeperServer, client: AdminClient, working: Load) -> None:
    """Away for longer than a session: nothing but changes of the metadata stops, and all sessions go on."""
    before = epochs(cluster)
    server.kill()
    killed_s = time.monotonic()
    creating = client.create_topics([NewTopic("refused", 1, 3)], request_timeout=REQUEST_TIMEOUT_S)["refused"]
    while time.monotonic() < killed_s + AWAY_S:
        working.progress()
    with pytest.raises(KafkaException) as refused:
        creating.result(PATIENCE_S)
    # The controller itself refuses what it has begun to execute; what is forwarded finds none in time.
    assert refused.value.args[0].code() in (ErrorCode.request_timed_out, ErrorCode.not_controller)
    working.progress()
    server.start()
    server.await_ready()
    create(client, "after")
    assert epochs(cluster) == before, "a session ended although the server was away"


def frozen_zookeeper(cluster: ClusterProcesses, server: ZooKeeperServer, working: Load) -> None:
    """All sessions end at once when it goes on, unless it reads what has come before it looks at its clock.

    If they do, the brokers register again, and lead in new epochs.
    """
    server.freeze()
    time.sleep(AWAY_S)
    working.progress()
    server.thaw()

    def are_registered() -> bool:
        try:
            return len(epochs(cluster)) == len(IDS)
        except NoNodeError:
            return False

    working.progress()
    until(are_registered)
    working.progress()


def frozen_leader(cluster: ClusterProcesses, client: AdminClient, working: Load) -> None:
    """Requests that came while it was stopped are the first that it sees: others lead by then."""
    until(lambda: leader(client, 0) in IDS)
    frozen = leader(client, 0)
    child = cluster.children[frozen]
    connections = [connect(cluster.ports[frozen]) for _ in range(3)]
    stop_process(child.pid)
    try:
        with ThreadPoolExecutor(3) as threads:
            asked: list[Any] = [
                threads.submit(connection.call, request)
                for connection, request in zip(connections, (end(), unsafe(), end()), strict=True)
            ]
            time.sleep(AWAY_S)
            until(lambda: leader_of_others(cluster, frozen) not in (frozen, -1))
            working.progress()
            os.kill(child.pid, signal.SIGCONT)
            ends_and_codes = [each.result() for each in asked]
    finally:
        os.kill(child.pid, signal.SIGCONT)
        for connection in connections:
            connection.close()
    codes = [
        int(ends_and_codes[0].topics[0].partitions[0].error_code),
        int(ends_and_codes[1][0].error_code),
        int(ends_and_codes[2].topics[0].partitions[0].error_code),
    ]
    assert codes == [ErrorCode.not_leader_or_follower] * 3, "it answered as the leader that it was"


def leader_of_others(cluster: ClusterProcesses, frozen: int) -> int:
    """The leader of the first partition, as the other brokers know it."""
    others = cluster.servers(*(each for each in IDS if each != frozen))
    return leader(AdminClient({"bootstrap.servers": others, "log_level": 0}), 0)


def connect(port: int) -> BlockingConnection:
    return BlockingConnection(
        "127.0.0.1",
        port,
        client_id="asks-a-frozen-broker",
        connect_timeout_ms=PATIENCE_S * 1000,
        request_timeout_ms=PATIENCE_S * 1000,
        receive_buffer_bytes=-1,
    )


def end() -> Request[Any]:
    """The request for the end of the first partition."""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topic = {"name": TOPIC, "partitions": (partition,)}
    return kio_request(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": (topic,)})


def unsafe() -> Request[list[ProducedPartition]]:
    """A record with acks=1, for which no other replica has to be there."""
    batch = build_batch([Record(None, b"stale:0", int(time.time() * 1000))])
    request = produce_request(12, {TOPIC: [(0, batch)]}, timeout_ms=PATIENCE_S * 1000)
    # The body begins with the absent transactional id, in one byte, and the acks.
    return replace(request, body=request.body[:1] + (1).to_bytes(2, "big") + request.body[3:])
