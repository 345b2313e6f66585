"""Produce and consume on brokers that have just been started: what a JVM that is not warm yet costs is in it."""

from __future__ import annotations

from pathlib import Path

from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import keep, one_round
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, STARTERS
from tests.bench.report import Figures, Table, comparison


def measure(folder: Path, driver_names: list[str], load: Load, rounds: int) -> tuple[list[Table], Figures]:
    """Every round starts each broker anew on an empty folder, alone on the machine."""
    figures: Figures = {}
    for round_number in range(rounds):
        for driver_name in driver_names:
            for name in (list(STARTERS), list(STARTERS)[::-1])[round_number % 2]:
                with brokers.one(name, folder / f"{round_number}-{driver_name}") as broker:
                    keep(figures, broker, one_round(broker, driver_name, load, "fresh"), f"{driver_name}: ")
    return [comparison(f"{load}; brokers just started, {rounds} rounds in turn", figures, KAFKA, HEADWATER)], figures
