"""Three brokers beside Kafka's three, acks=all, three replicas, min.insync.replicas=2; latency; start and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.bench.loads import drivers
from tests.bench.loads.drivers import DRIVERS
from tests.bench.loads.load import Load
from tests.bench.log_tier import latency
from tests.bench.log_tier.throughput import SETTLE_S, keep
from tests.bench.peers import brokers, clusters, headwater_processes
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.peers.clusters import BROKERS, Cluster
from tests.bench.processes import children, resident_mib
from tests.bench.report import Figures, Table, comparison, listing

#: Rounds that do not count: a JVM compiles for as long.
WARM_UP_ROUNDS = 5
#: Fewer of these, in which each message is a request of its own.
LATENCY_WARM_UP_ROUNDS = 3
IDLE_S = 5

Result = TypeVar("Result")


def measure(
    folder: Path, driver_names: list[str], load: Load, rounds: int, warm_up: int
) -> tuple[list[Table], Figures]:
    """Starts both clusters, runs the rounds, ends both; tables and all raw figures."""
    size = clusters.replicated(load)
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


def measure_latency(folder: Path, seconds: float, rounds: int, warm_up: int) -> tuple[list[Table], Figures]:
    """From sending to receiving at a thousand messages a second, in turn."""
    load = clusters.replicated(Load())
    figures: Figures = {}
    with clusters.both(folder) as pair:
        for round_number in range(warm_up + rounds):
            for cluster in brokers.in_turn(pair, round_number):
                row = latency.one_run(cluster, f"latency-{round_number}", load, seconds)
                if round_number >= warm_up:
                    latency.note(figures, cluster, f"acks={load.acks}", row)
    title = (
        f"{latency.RATE:,} messages/s of {load.message_bytes} bytes, {load.partitions} partitions, "
        f"{clusters.REPLICATED}, {seconds:.0f} s, {rounds} rounds in turn after {warm_up}"
    )
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
    speed, spent = with_cpu(cluster, load, lambda: action(cluster.bootstrap, topic, load))
    return {f"{what}, messages/s": speed, f"{what}, brokers' CPU s/million": spent}


def with_cpu(cluster: Cluster, load: Load, action: Callable[[], Result]) -> tuple[Result, float]:
    """What an action on a load returns; the brokers' CPU s/million, with what they put off until just after it.

    Memory is warmed before it.
    """
    brokers.warm_memory(load, clients=load.replicas)
    before = cluster.cpu_seconds()
    result = action()
    time.sleep(SETTLE_S)
    return result, (cluster.cpu_seconds() - before) / (load.messages / 1e6)
