"""Three brokers beside Kafka's three, acks=all with three replicas and min.insync.replicas=2; start and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.loads.drivers import DRIVERS
from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import SETTLE_S, keep
from tests.bench.peers import brokers, clusters, headwater_processes
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.peers.clusters import BROKERS, Cluster
from tests.bench.processes import children, resident_mib
from tests.bench.report import Figures, Table, comparison, listing

#: Rounds that do not count: a JVM compiles for as long.
WARM_UP_ROUNDS = 5
IDLE_S = 5


def measure(
    folder: Path, driver_names: list[str], load: Load, rounds: int, warm_up: int
) -> tuple[list[Table], Figures]:
    """Starts both clusters, runs the rounds, ends both; tables and all raw figures."""
    size = replace(load, acks="all", replicas=BROKERS, min_isr=BROKERS - 1)
    figures: Figures = {}
    with clusters.both(folder) as pair:
        for round_number in range(warm_up + rounds):
            for driver_name in driver_names:
                for cluster in brokers.in_turn(pair, round_number):
                    row = _one_round(cluster, driver_name, size, f"bench-{round_number}-{driver_name}")
                    if round_number >= warm_up:
                        keep(figures, cluster, row, f"{driver_name}: ")
    title = f"{size}, {BROKERS} replicas, min.insync.replicas={BROKERS - 1}, {rounds} rounds in turn after {warm_up}"
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def measure_start(folder: Path, runs: int) -> tuple[list[Table], dict[str, list[float]]]:
    """`headwater up --brokers 3` until it is ready, and the memory of each idle process; one more run to warm up."""
    figures: dict[str, list[float]] = {
        f"headwater up --brokers {BROKERS}: ready, s": [],
        "resident memory of an idle broker, MiB (median of the brokers)": [],
        "resident memory of ZooKeeper, MiB": [],
    }
    for run in range(runs + 1):
        row = _start(folder / f"up-{run}")
        if run:
            for values, value in zip(figures.values(), row, strict=True):
                values.append(value)
    return [listing(f"Start of {BROKERS} brokers, {runs} runs", figures)], figures


def _start(folder: Path) -> tuple[float, float, float]:
    begun_s = time.perf_counter()
    child, _ = headwater_processes.start_cluster(folder, BROKERS)
    try:
        headwater_processes.await_ready(child)
        ready_s = time.perf_counter() - begun_s
        time.sleep(IDLE_S)
        found = children(child.pid)
        memory = [resident_mib(pid) for pid, command in found.items() if "broker" in command]
        java = [pid for each, command in found.items() if "zookeeper" in command for pid in children(each)]
        return ready_s, statistics.median(memory), sum(resident_mib(pid) for pid in java)
    finally:
        child.stop()


def _one_round(cluster: Cluster, driver_name: str, load: Load, topic: str) -> dict[str, float]:
    """A fresh topic, filled and read once."""
    driver = DRIVERS[driver_name]
    drivers.client("create", cluster.bootstrap, topic, load)
    try:
        row = _phase(cluster, "produce", driver.produce, topic, load)
        row |= _phase(cluster, "consume", driver.consume, topic, load)
    finally:
        drivers.client("delete", cluster.bootstrap, topic, load)
    print(f"  {cluster.name}, {driver_name}: produce {row['produce, messages/s']:,.0f}/s", flush=True)
    return row


def _phase(
    cluster: Cluster, what: str, action: Callable[[str, str, Load], float], topic: str, load: Load
) -> dict[str, float]:
    brokers.warm_memory(load, clients=load.replicas)
    before = cluster.cpu_seconds()
    speed = action(cluster.bootstrap, topic, load)
    time.sleep(SETTLE_S)
    spent = cluster.cpu_seconds() - before
    return {f"{what}, messages/s": speed, f"{what}, brokers' CPU s/million": spent / (load.messages / 1e6)}
