"""Produce and consume, Apache Kafka and Headwater in turn, so that what else the machine does falls on both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Protocol

from tests.bench.loads import drivers
from tests.bench.loads.drivers import DRIVERS
from tests.bench.loads.load import Load
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, Broker
from tests.bench.processes import cpu_seconds, ended_children_cpu_seconds, idle_seconds, resident_mib
from tests.bench.report import Figures, Table, comparison, ratios

SETTLE_S = 1.0
WARM_UP_MESSAGES = 200_000


def measure(folder: Path, driver_names: list[str], load: Load, rounds: int) -> tuple[list[Table], Figures]:
    """Starts both brokers, runs the rounds (one more to warm up), ends both; tables and all raw figures."""
    figures: Figures = {}
    with brokers.both(folder) as pair:
        for round_number in range(rounds + 1):
            for driver_name in driver_names:
                for broker in brokers.in_turn(pair, round_number):
                    size = load if round_number else replace(load, messages=min(WARM_UP_MESSAGES, load.messages))
                    topic = f"bench-{round_number}-{driver_name}"
                    row = one_round(broker, driver_name, size, topic, with_clients=True)
                    if round_number:
                        keep(figures, broker, row, f"{driver_name}: ")
        for broker in pair:
            figures.setdefault("resident memory after it all, MiB", {})[broker.name] = [resident_mib(broker.child.pid)]
    return [comparison(f"{load}, {rounds} rounds in turn", figures, KAFKA, HEADWATER)], figures


def measure_matrix(
    folder: Path, driver_names: list[str], messages: int, rounds: int
) -> tuple[list[Table], dict[str, Figures]]:
    """Every combination of codec, partitions, batch size and acks: one table of ratios, all raw figures."""
    figures: dict[str, Figures] = {}
    with brokers.both(folder) as pair:
        for driver_name in driver_names:
            for broker in pair:
                one_round(broker, driver_name, Load(WARM_UP_MESSAGES), f"warm-up-{driver_name}")
        for number, (driver_name, load) in enumerate(_combinations(driver_names, messages)):
            name = f"{driver_name}, {load.codec}, {load.partitions} p, {load.batch_bytes >> 10} KiB, acks={load.acks}"
            print(f" {name}", flush=True)
            for round_number in range(rounds):
                for broker in brokers.in_turn(pair, round_number):
                    row = one_round(broker, driver_name, load, f"bench-{number}-{round_number}")
                    keep(figures.setdefault(name, {}), broker, row)
    return [ratios(f"{messages:,} messages of 200 bytes, {rounds} rounds", figures, KAFKA, HEADWATER)], figures


def _combinations(driver_names: list[str], messages: int) -> Iterator[tuple[str, Load]]:
    for driver_name, codec, partitions, batch_bytes, acks in product(
        driver_names, ("none", "lz4", "zstd"), (1, 6), (16_384, 65_536), ("1", "all")
    ):
        yield driver_name, Load(messages, partitions=partitions, batch_bytes=batch_bytes, codec=codec, acks=acks)


class Named(Protocol):
    """What a column of a table is about."""

    @property
    def name(self) -> str: ...


def keep(figures: Figures, broker: Named, row: dict[str, float], prefix: str = "") -> None:
    """Add one round's figures."""
    for figure, value in row.items():
        figures.setdefault(prefix + figure, {}).setdefault(broker.name, []).append(value)


def one_round(
    broker: Broker, driver_name: str, load: Load, topic: str, *, with_clients: bool = False
) -> dict[str, float]:
    """A fresh topic, filled and read once."""
    driver = DRIVERS[driver_name]
    drivers.client("create", broker.bootstrap, topic, load)
    try:
        row = phase(broker, "produce", driver.produce, topic, load, with_clients=with_clients)
        row |= phase(broker, "consume", driver.consume, topic, load, with_clients=with_clients)
    finally:
        drivers.client("delete", broker.bootstrap, topic, load)
    speeds = f"produce {row['produce, messages/s']:,.0f}/s, consume {row['consume, messages/s']:,.0f}/s"
    print(f"  {broker.name}, {driver_name}: {speeds}", flush=True)
    return row


def phase(
    broker: Broker,
    what: str,
    action: Callable[[str, str, Load], float],
    topic: str,
    load: Load,
    *,
    with_clients: bool = False,
) -> dict[str, float]:
    """Speed by the client's clock; the broker's CPU time, with what it puts off until just after.

    `with_clients`: that of the client, too, from its start to its end, and for how long cores had nothing to do then.
    """
    brokers.warm_memory(load)
    millions = load.messages / 1e6
    before, clients_before, idle_before = cpu_seconds(broker.child.pid), ended_children_cpu_seconds(), idle_seconds()
    speed = action(broker.bootstrap, topic, load)
    clients, idle = ended_children_cpu_seconds() - clients_before, idle_seconds() - idle_before
    time.sleep(SETTLE_S)
    spent = cpu_seconds(broker.child.pid) - before
    row = {f"{what}, messages/s": speed, f"{what}, broker CPU s/million": spent / millions}
    if with_clients:
        row |= {f"{what}, client CPU s/million": clients / millions, f"{what}, idle cores s/million": idle / millions}
    return row
