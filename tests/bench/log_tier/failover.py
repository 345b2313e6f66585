"""How long applications wait when a broker is killed or stopped, beside Kafka's three brokers; it stays down meanwhile.

A producer writes to all partitions, a group's member commits, and transactions follow each other. The broker that goes
leads a third of the partitions and coordinates the group and the transactions.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.coordinators import GROUP, TRANSACTION, find_coordinator
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.messages import kio_request
from headwater.logtier.client.replicas import AssignedPartition, ReplicaAdmin
from tests.bench.loads.gap_probes import GroupMember, IdempotentProducer, Probe, Transactions, await_recovery, running
from tests.bench.peers import brokers, clusters
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.peers.clusters import BROKERS, SeparateBrokers
from tests.bench.processes import Failed
from tests.bench.report import Figures, Table, comparison

TOPIC: Final = "measured"
MARKED: Final = "transactions"
PARTITIONS: Final = 12
STOP_S: Final = 60.0
IN_SYNC_S: Final = 120.0
#: The least time for which a broker is away: a wait has begun by then, or there is none.
LEAST_S: Final = 3.0
RECENT_S: Final = 0.5
#: Kafka's API that tells who leads the quorum of controllers, and a version of it; it is none of our client's.
DESCRIBE_QUORUM: Final = 55
DESCRIBE_QUORUM_VERSION: Final = 1

KILLED, KILLED_CONTROLLER = "kill -9", "kill -9 of the controller"
STOPPED, STOPPED_CONTROLLER = "SIGTERM", "SIGTERM of the controller"
ROLLING: Final = "rolling restart"


def measure(folder: Path, rounds: int) -> tuple[list[Table], Figures]:
    """Every event on both clusters in turn."""
    figures: Figures = {}
    with clusters.both_separate(folder) as pair:
        for cluster in pair:
            _create(cluster)
            # Both are warm after it: all code of an election has run once.
            _measured(cluster, STOPPED)
        for round_number in range(rounds):
            for event in (KILLED, KILLED_CONTROLLER, STOPPED, STOPPED_CONTROLLER, ROLLING):
                for cluster in brokers.in_turn(pair, round_number):
                    for name, longest_s in _measured(cluster, event).items():
                        print(f"  {cluster.name}, {event}, {name}: {longest_s:.2f} s", flush=True)
                        figures.setdefault(f"{event}: {name}, s", {}).setdefault(cluster.name, []).append(longest_s)
    title = (
        f"Longest wait while one of {BROKERS} brokers is away, sessions of {clusters.SESSION_MS / 1000:.0f} s, "
        f"{PARTITIONS} partitions of {BROKERS} replicas, acks=all, {rounds} rounds in turn"
    )
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def _create(cluster: SeparateBrokers) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for name, partitions in ((TOPIC, PARTITIONS), (MARKED, BROKERS)):
        admin.create_topics([NewTopic(name, partitions, BROKERS)])[name].result(STOP_S)


def _measured(cluster: SeparateBrokers, event: str) -> dict[str, float]:
    """The longest waits of one event, in s."""
    with ClusterClient(ClientConfig(parse_bootstrap_servers(cluster.bootstrap))) as client:
        admin = ReplicaAdmin(client)
        _settle(admin)
        controller = _controller(cluster, client)
        if event in (KILLED_CONTROLLER, STOPPED_CONTROLLER):
            victim = controller
        else:
            victim = next(each for each in cluster.brokers if each != controller)
        led = {each.partition for each in _partitions(admin, TOPIC) if each.leader == victim}
        producer = IdempotentProducer(cluster.bootstrap, TOPIC, PARTITIONS)
        group = GroupMember(cluster.bootstrap, TOPIC, _coordinated(client, GROUP, victim))
        transactions = Transactions(cluster.bootstrap, MARKED, _coordinated(client, TRANSACTION, victim))
        probes: list[Probe] = [producer, group, transactions]
        with running(probes):
            time.sleep(1)
            for probe in probes:
                probe.successes.begin()
            if event == ROLLING:
                for broker_id in cluster.brokers:
                    cluster.brokers[broker_id].terminate(STOP_S)
                    cluster.start_again(broker_id)
                    _await_in_sync(admin)
            else:
                if event in (KILLED, KILLED_CONTROLLER):
                    cluster.kill(victim)
                else:
                    cluster.brokers[victim].terminate(STOP_S)
                await_recovery(probes, LEAST_S, RECENT_S)
            waits = producer.successes.longest_s()
            found = {
                "partitions it led": max(waits[each] for each in led),
                "other partitions": max(waits[each] for each in waits if each not in led),
            }
            if event == ROLLING:
                found = {"any partition": max(waits.values())}
            found |= {each.successes.name: max(each.successes.longest_s().values()) for each in (group, transactions)}
        if event != ROLLING:
            cluster.start_again(victim)
        return found


def _settle(admin: ReplicaAdmin) -> None:
    """All in sync, and every partition led by its preferred leader."""
    _await_in_sync(admin)
    admin.elect_preferred([(each.topic, each.partition) for each in _partitions(admin)])
    clusters.await_partitions(
        admin, lambda each: each.leader == each.replicas[0], "preferred replicas do not lead", limit_s=IN_SYNC_S
    )


def _await_in_sync(admin: ReplicaAdmin) -> None:
    clusters.await_partitions(
        admin, lambda each: len(each.isr) == BROKERS, "replicas are not in sync", limit_s=IN_SYNC_S
    )


def _partitions(admin: ReplicaAdmin, *topics: str) -> list[AssignedPartition]:
    return admin.assignments(topics or None)[1]


def _coordinated(client: ClusterClient, key_type: int, broker_id: int) -> str:
    """A group or transactional id that a broker coordinates."""
    for key in (f"bench-{number}" for number in range(1_000)):
        if client.retry("a coordinator", partial(find_coordinator, client, key_type, key)) == broker_id:
            return key
    raise Failed(f"no id is coordinated by broker {broker_id}")


def _controller(cluster: SeparateBrokers, client: ClusterClient) -> int:
    """The active controller; brokers of Kafka name any broker in the metadata."""
    if cluster.name == HEADWATER:
        return int(AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=STOP_S).controller_id)
    topics = ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)

    def ask() -> int:
        request = kio_request(DESCRIBE_QUORUM, DESCRIBE_QUORUM_VERSION, {"topics": topics})
        answer = client.any_connection().call(request)
        [topic] = answer.topics
        [partition] = topic.partitions
        return int(partition.leader_id)

    try:
        return client.retry("the leader of the controllers", ask)
    except ClientError as error:
        raise Failed(f"Kafka does not say who its controller is: {error}") from None
