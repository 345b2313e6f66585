"""How long after the end of a broker's session all partitions that it led have other leaders; with their logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.replicas import AssignedPartition, ReplicaAdmin
from tests.bench.peers import clusters
from tests.bench.peers.clusters import SeparateBrokers
from tests.bench.processes import Failed
from tests.bench.report import Table, listing

VICTIM: Final = 1
#: The victim leads all partitions; the two others have as many replicas.
REPLICAS: Final = [VICTIM, 2, 3]
PARTITIONS_A_TOPIC: Final = 100
TOPICS_A_REQUEST: Final = 10
POLL_S: Final = 0.05
LIMIT_S: Final = 600.0


def measure(folder: Path, partitions: int, rounds: int) -> tuple[list[Table], dict[str, list[float]]]:
    """Kills the broker that leads all partitions, and starts it again, so many times."""
    figures: dict[str, list[float]] = {}
    with clusters.separate_headwater(folder / "brokers", "1g") as cluster:
        _create(cluster, partitions)
        zookeeper = KazooClient(cluster.zookeeper)
        zookeeper.start(LIMIT_S)
        try:
            for _ in range(rounds):
                for name, seconds in _one_round(cluster, zookeeper).items():
                    print(f"  {partitions:,} partitions, {name}: {seconds:.2f}", flush=True)
                    figures.setdefault(name, []).append(seconds)
        finally:
            zookeeper.stop()
            zookeeper.close()
    title = f"A broker that leads {partitions:,} partitions of {len(REPLICAS)} replicas is killed, {rounds} rounds"
    return [listing(title, figures)], figures


def _create(cluster: SeparateBrokers, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [
        NewTopic(f"many-{number}", PARTITIONS_A_TOPIC, replica_assignment=[REPLICAS] * PARTITIONS_A_TOPIC)
        for number in range(partitions // PARTITIONS_A_TOPIC)
    ]
    for start in range(0, len(topics), TOPICS_A_REQUEST):
        for result in admin.create_topics(topics[start : start + TOPICS_A_REQUEST], request_timeout=LIMIT_S).values():
            result.result(LIMIT_S)


def _one_round(cluster: SeparateBrokers, zookeeper: KazooClient) -> dict[str, float]:
    """Seconds of each phase."""
    survivors = ",".join(f"127.0.0.1:{port}" for each, port in cluster.ports.items() if each != VICTIM)
    with ClusterClient(ClientConfig(parse_bootstrap_servers(survivors))) as client:
        admin = ReplicaAdmin(client)
        _await(admin, lambda each: len(each.isr) == len(REPLICAS) and each.leader == VICTIM)
        cluster.kill(VICTIM)
        while zookeeper.exists(f"/bench/brokers/ids/{VICTIM}"):
            time.sleep(POLL_S)
        ended_s = time.monotonic()
        _await(admin, lambda each: each.leader not in (None, VICTIM))
        led_s = time.monotonic()
        _produce_to_all(survivors, admin)
        written_s = time.monotonic()
        cluster.start_again(VICTIM)
        serves_s = time.monotonic()
        _await(admin, lambda each: len(each.isr) == len(REPLICAS))
        complete_s = time.monotonic()
        admin.elect_preferred([(each.topic, each.partition) for each in admin.assignments()[1]])
        _await(admin, lambda each: each.leader == VICTIM)
        return {
            "all have other leaders after the session's end, s": led_s - ended_s,
            "each has acknowledged a record after that, s": written_s - led_s,
            "the broker starts, s": serves_s - written_s,
            "it is in all ISRs after that, s": complete_s - serves_s,
            "it leads all again, s": time.monotonic() - complete_s,
        }


def _produce_to_all(bootstrap_servers: str, admin: ReplicaAdmin) -> None:
    """A record with acks=all to each partition: its leader serves."""
    refused: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5})
    for each in admin.assignments()[1]:
        producer.produce(each.topic, b"led", partition=each.partition, on_delivery=note)
    if producer.flush(LIMIT_S) or refused:
        raise Failed(f"partitions took no record: {refused[:3]}")


def _await(admin: ReplicaAdmin, is_so: Callable[[AssignedPartition], bool]) -> None:
    clusters.await_partitions(admin, is_so, "the partitions were not as expected", limit_s=LIMIT_S)
