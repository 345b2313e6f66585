"""Three broker processes on a real ZooKeeper: one dies, the others go on, and it returns; mistakes are one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, ClusterMetadata
from kazoo.client import KazooClient

from tests.waiting import until

if TYPE_CHECKING:
    from tests.bench.processes import Child
    from tests.conformance.cluster.conftest import ClusterProcesses, MakeCluster

pytestmark = pytest.mark.slow

PATIENCE_S = 60
IDS = (1, 2, 3)


def seen_by(cluster: ClusterProcesses, broker_id: int) -> ClusterMetadata:
    """The cluster as a client of a broker sees it."""
    admin = AdminClient({"bootstrap.servers": cluster.address(broker_id), "log_level": 0})
    return admin.list_topics(timeout=PATIENCE_S)


def await_members(cluster: ClusterProcesses, *members: int) -> int:
    """Wait until clients of all members see exactly them, and one controller among them; return it."""

    def agree() -> bool:
        found = [seen_by(cluster, each) for each in members]
        controllers = {each.controller_id for each in found}
        return all(set(each.brokers) == set(members) for each in found) and len(controllers & set(members)) == 1

    until(agree)
    return seen_by(cluster, members[0]).controller_id


@contextmanager
def zookeeper_client(cluster: ClusterProcesses) -> Iterator[KazooClient]:
    """A client of the cluster's ZooKeeper, below the chroot."""
    client = KazooClient(cluster.connect)
    client.start(timeout=PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def epoch(cluster: ClusterProcesses, broker_id: int) -> int:
    """The broker epoch: the czxid of the registration in ZooKeeper."""
    with zookeeper_client(cluster) as client:
        return int(client.get(f"/brokers/ids/{broker_id}")[1].czxid)


def begun(cluster: ClusterProcesses, **properties: str) -> int:
    """Start three brokers; return the controller."""
    cluster.serve(*IDS, **properties)
    return await_members(cluster, *IDS)


def test_a_killed_controller_is_replaced_and_returns_in_a_new_epoch(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=6_000)
    first = begun(cluster)
    first_epoch = epoch(cluster, first)
    cluster.kill(first)
    others = [each for each in IDS if each != first]
    assert await_members(cluster, *others) != first
    cluster.serve(first)
    assert await_members(cluster, *IDS) != first
    assert epoch(cluster, first) > first_epoch


def test_a_killed_broker_that_is_back_within_its_session_replaces_its_registration(make_cluster: MakeCluster) -> None:
    """KIP-380, KAFKA-7165: it bounced unnoticed, or gave up at the node of its own former session."""
    cluster = make_cluster(session_ms=10_000)
    controller = begun(cluster)
    broker_id = next(each for each in IDS if each != controller)
    first_epoch = epoch(cluster, broker_id)
    cluster.kill(broker_id)
    child = cluster.begin(broker_id)
    cluster.await_serving(broker_id)
    assert f"broker {broker_id} replaces its registration of the process before" in child.output.read_text()
    assert epoch(cluster, broker_id) > first_epoch
    await_members(cluster, *IDS)


def test_a_broker_that_stops_is_gone_at_once_and_ends_cleanly(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(session_ms=30_000)
    controller = begun(cluster)
    stopped_epoch = epoch(cluster, controller)
    cluster.stop(controller)
    with zookeeper_client(cluster) as client:  # its session would keep it there
        assert client.exists(f"/brokers/ids/{controller}") is None
    await_members(cluster, *(each for each in IDS if each != controller))
    marker = cluster.folder / f"data-{controller}" / ".kafka_cleanshutdown"
    assert marker.read_text() == f'{{"version":0,"brokerEpoch":{stopped_epoch}}}'


def refusal(child: Child) -> str:
    """The last line of a broker that does not start; there is no stack trace."""
    assert child.process.wait(PATIENCE_S) == 1, child.tail()
    text = child.output.read_text()
    assert "Traceback" not in text
    line = text.splitlines()[-1]
    assert line.startswith("headwater: broker: ")
    return line


def test_each_mistake_is_one_line(make_cluster: MakeCluster) -> None:
    # Who asks for the id of a live broker waits for the end of that one's session, which must not come.
    cluster, other = make_cluster(session_ms=6_000), make_cluster(session_ms=6_000)
    cluster.serve(1, 2)
    cluster.stop(2)
    # The id of a live broker, from another folder; the folder of another broker, of another cluster.
    in_use = other.begin(1, zookeeper_connect=cluster.connect)
    elsewhere = str(cluster.folder / "data-2")
    assert "node 2, but node.id is 3" in refusal(other.begin(3, zookeeper_connect=cluster.connect, log_dirs=elsewhere))
    line = refusal(other.begin(2, log_dirs=elsewhere))
    assert f"ZooKeeper has no cluster, and log folder {elsewhere} belongs to cluster " in line
    # ZooKeeper refuses the login, or is not there.
    login = 'a.DigestLoginModule required username="headwater" password="wrong";'
    assert "ZooKeeper refuses the login of headwater" in refusal(other.begin(4, zookeeper_sasl_jaas_config=login))
    nowhere = other.begin(5, zookeeper_connect="127.0.0.1:1", zookeeper_connection_timeout_ms="1000")
    assert "127.0.0.1:1: ZooKeeper cannot be reached" in refusal(nowhere)
    assert "another broker is registered with broker.id 1" in refusal(in_use)
    assert set(seen_by(cluster, 1).brokers) == {1}
