"""Produce and consume, Apache Kafka and Headwater in turn, so that what else the machine does falls on both."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench import apache_kafka, drivers, headwater_processes
from tests.bench.drivers import DRIVERS
from tests.bench.load_client import BATCH_BYTES, MESSAGE_BYTES, PARTITIONS
from tests.bench.processes import Child, cpu_seconds, resident_mib
from tests.bench.report import Figures, Table, comparison

SETTLE_S = 1.0
# Several times what one round writes; see `warm_memory`.
WARM_GIBIBYTES = 3
WARM_UP_MESSAGES = 200_000


@dataclass(frozen=True)
class Broker:
    """One of the two under test."""

    name: str
    child: Child
    port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def measure(folder: Path, driver_names: list[str], messages: int, rounds: int) -> tuple[list[Table], Figures]:
    """Starts both brokers, runs the rounds (one more to warm up), ends both; tables and all raw figures."""
    figures: Figures = {}
    children: list[Child] = []
    try:
        brokers = []
        for name, start in (("Apache Kafka", apache_kafka.start), ("Headwater", headwater_processes.start_broker)):
            child, port = start(folder / name.lower().replace(" ", "-"))
            children.append(child)
            brokers.append(Broker(name, child, port))
        for round_number in range(rounds + 1):
            for driver_name in driver_names:
                # Neither is always the one whose round begins while the kernel writes back what the other one wrote.
                for broker in brokers if round_number % 2 else reversed(brokers):
                    count = messages if round_number else min(WARM_UP_MESSAGES, messages)
                    row = one_round(broker, driver_name, count, f"bench-{round_number}-{driver_name}")
                    if round_number:
                        for figure, value in row.items():
                            figures.setdefault(f"{driver_name}: {figure}", {}).setdefault(broker.name, []).append(value)
        for broker in brokers:
            figures.setdefault("resident memory after it all, MiB", {})[broker.name] = [resident_mib(broker.child.pid)]
    finally:
        for child in children:
            child.stop()
    title = (
        f"{messages:,} messages of {MESSAGE_BYTES} bytes, {PARTITIONS} partitions, acks=1, "
        f"{BATCH_BYTES // 1024} KiB batches, {rounds} rounds in turn"
    )
    return [comparison(title, figures, "Apache Kafka", "Headwater")], figures


def one_round(broker: Broker, driver_name: str, messages: int, topic: str) -> dict[str, float]:
    """A fresh topic, filled and read once."""
    driver = DRIVERS[driver_name]
    drivers.client("create", broker.bootstrap, topic)
    try:
        row = phase(broker, "produce", driver.produce, topic, messages)
        row |= phase(broker, "consume", driver.consume, topic, messages)
    finally:
        drivers.client("delete", broker.bootstrap, topic)
    speeds = f"produce {row['produce, messages/s']:,.0f}/s, consume {row['consume, messages/s']:,.0f}/s"
    print(f"  {broker.name}, {driver_name}: {speeds}", flush=True)
    return row


def phase(
    broker: Broker, what: str, action: Callable[[str, str, int], float], topic: str, messages: int
) -> dict[str, float]:
    """Speed by the client's clock; the broker's CPU time, with what it puts off until just after."""
    drivers.run([sys.executable, "-m", "tests.bench.warm_memory", str(WARM_GIBIBYTES)])
    before = cpu_seconds(broker.child.pid)
    speed = action(broker.bootstrap, topic, messages)
    time.sleep(SETTLE_S)
    spent = cpu_seconds(broker.child.pid) - before
    return {f"{what}, messages/s": speed, f"{what}, broker CPU s/million": spent / messages * 1e6}
