"""All partitions of a broker moved to another one, unthrottled, beside Kafka's three brokers; what producers notice.

A topic without replicas is filled on one broker, in a fast way, and written back. Then all its partitions are
reassigned, while a client writes to another topic of three replicas and reads it; the same client has run alone before.
So that the rate can be judged, a file is written to the same disk just before. What the move reads has been written a
short time ago: as much of it is in the page cache as there is room.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.reassignments import alter_partition_reassignments, list_partition_reassignments
from headwater.logtier.client.replicas import BROKER_RESOURCE, ReplicaAdmin
from tests.bench.loads import drivers, prepared_sender
from tests.bench.loads.load import Load
from tests.bench.loads.load_client import create_topic
from tests.bench.log_tier import latency
from tests.bench.log_tier.throughput import keep
from tests.bench.peers import brokers, clusters
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.peers.clusters import Cluster
from tests.bench.processes import Failed
from tests.bench.report import Figures, Table, comparison

PARTITIONS = 6
FILLED = "filled"
POLL_S = 0.1
#: For how long deleted logs keep their place on the disk; both sides' default is a minute.
DELETION_DELAY_S = 10
DELETION_S = 120.0
KNOWN_S = 10.0
#: Free memory that is not warmed.
SPARE_GIBIBYTES = 1


@dataclass(frozen=True)
class Amounts:
    """How much of everything: bytes of the moved log and of the file, seconds of the client alone."""

    moved_bytes: int
    file_bytes: int
    seconds: float

    def warm_up(self) -> Amounts:
        """Little to move, but messages enough for a JVM to have compiled what an unbatched one needs."""
        return replace(self, moved_bytes=self.moved_bytes // 10, seconds=self.seconds * 1.5)


USUAL = Amounts(moved_bytes=10 * 10**9, file_bytes=2 * 10**9, seconds=10)
QUICK = Amounts(moved_bytes=500 * 10**6, file_bytes=100 * 10**6, seconds=5)


def measure(folder: Path, amounts: Amounts, rounds: int) -> tuple[list[Table], Figures]:
    """Both clusters in turn; a fresh topic in each round, and nothing left of the one before."""
    figures: Figures = {}
    with clusters.both(folder) as pair:
        for cluster in pair:
            _delete_soon(cluster)
            _one_round(cluster, amounts.warm_up(), "warm-up")
        for round_number in range(rounds):
            for cluster in brokers.in_turn(pair, round_number):
                _await_deletion(pair)
                keep(figures, cluster, _one_round(cluster, amounts, str(round_number)))
    title = (
        f"{amounts.moved_bytes / 1e9:g} GB in {PARTITIONS} partitions moved to another broker beside "
        f"{latency.RATE:,} messages/s, {clusters.REPLICATED}, {rounds} rounds in turn after one to warm up"
    )
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def _one_round(cluster: Cluster, amounts: Amounts, name: str) -> dict[str, float]:
    load = clusters.replicated(Load())
    before = latency.one_run(cluster, f"before-{name}", load, amounts.seconds)
    topic = f"{FILLED}-{name}"
    batch_bytes = len(prepared_sender.prepared_batch())
    requests = math.ceil(amounts.moved_bytes / PARTITIONS / batch_bytes)
    with _filled(cluster, topic, requests) as target:
        disk = _disk_rate(cluster.folder, amounts.file_bytes)
        _warm_free_memory(amounts.moved_bytes)
        during, seconds = latency.beside(cluster, f"during-{name}", load, lambda: _move(cluster, topic, target))
        stored = drivers.client("stored", cluster.bootstrap, topic, load)["messages"]
        if stored != requests * PARTITIONS * prepared_sender.RECORDS:
            raise Failed(f"{cluster.name}: {topic} has {stored} messages after the move")
    rate = requests * PARTITIONS * batch_bytes / seconds / 1e6
    print(f"  {cluster.name}, {topic}: {rate:,.0f} MB/s, the disk {disk:,.0f} MB/s", flush=True)
    row = {"move, MB/s": rate, "disk, MB/s": disk, "move / disk": rate / disk}
    for kind, quiet in before.items():
        row[f"{kind}, p99 before, ms"] = quiet["p99"]
        row[f"{kind}, p99 during, ms"] = during[kind]["p99"]
        row[f"{kind}, p99 during / before"] = during[kind]["p99"] / quiet["p99"]
    return row


@contextmanager
def _filled(cluster: Cluster, topic: str, requests: int) -> Iterator[int]:
    """A topic whose partitions are all on one broker, filled and written back; the broker to move them to."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    addresses = admin.list_topics(timeout=drivers.LIMIT_S).brokers
    origin, target, *_ = sorted(addresses)
    # Alone, a replica would not be enough for the cluster's min.insync.replicas.
    config = {"min.insync.replicas": "1"}
    assignment = [[origin]] * PARTITIONS
    create_topic(cluster.bootstrap, NewTopic(topic, PARTITIONS, replica_assignment=assignment, config=config))
    try:
        share = [(str(addresses[origin].host), addresses[origin].port, partition) for partition in range(PARTITIONS)]
        drivers.run(prepared_sender.command(topic, share, requests))
        os.sync()
        yield target
    finally:
        drivers.client("delete", cluster.bootstrap, topic, Load())


def _warm_free_memory(size: int) -> None:
    """Warm as much as a copy needs, or as is free: nothing leaves the page cache for it."""
    free_gibibytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**30
    brokers.warm_gibibytes(max(1, min(math.ceil(size / 2**30), free_gibibytes - SPARE_GIBIBYTES)))


def _move(cluster: Cluster, topic: str, target: int) -> float:
    """Reassign all partitions; seconds until the last one is on the target alone."""
    keys = [(topic, partition) for partition in range(PARTITIONS)]
    with ClusterClient(ClientConfig(parse_bootstrap_servers(cluster.bootstrap))) as client:
        begun_s = time.monotonic()
        refusals = alter_partition_reassignments(client, dict.fromkeys(keys, (target,))).values()
        if any(refusals):
            raise Failed(f"{cluster.name} does not move {topic}: {next(filter(None, refusals))}")
        while list_partition_reassignments(client, keys):
            if time.monotonic() - begun_s > drivers.LIMIT_S:
                raise Failed(f"{cluster.name}: {topic} is not moved after {drivers.LIMIT_S} s")
            time.sleep(POLL_S)
        seconds = time.monotonic() - begun_s
        # The broker that answers may not know it yet.
        clusters.await_partitions(
            ReplicaAdmin(client),
            lambda each: each.replicas == (target,),
            f"{cluster.name}: {topic} has other replicas than those asked for",
            topics=[topic],
            limit_s=KNOWN_S,
        )
    return seconds


def _disk_rate(folder: Path, size: int) -> float:
    """MB/s of a file that is written and synced."""
    block = os.urandom(2**20)
    path = folder / "written"
    begun_s = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(block)
        os.fdatasync(file.fileno())
    seconds = time.monotonic() - begun_s
    path.unlink()
    return (size >> 20 << 20) / seconds / 1e6


def _delete_soon(cluster: Cluster) -> None:
    """Let logs of deleted topics, and those that have moved away, leave the disk before their time."""
    change = {"log.segment.delete.delay.ms": str(DELETION_DELAY_S * 1000)}
    with ClusterClient(ClientConfig(parse_bootstrap_servers(cluster.bootstrap))) as client:
        admin = ReplicaAdmin(client)
        admin.alter_configs(BROKER_RESOURCE, {str(broker_id): change for broker_id in admin.assignments()[0]})


def _await_deletion(pair: list[Cluster]) -> None:
    """Return when they have: what is measured next shall not be beside their removal."""
    deadline_s = time.monotonic() + DELETION_S
    while any(
        name.startswith(f"{FILLED}-") for cluster in pair for _, names, _ in os.walk(cluster.folder) for name in names
    ):
        if time.monotonic() > deadline_s:
            raise Failed(f"logs of deleted topics are still there after {DELETION_S:.0f} s")
        time.sleep(POLL_S)
