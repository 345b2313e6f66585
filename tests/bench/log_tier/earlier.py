"""Headwater beside an earlier checkout of itself, in turn: whether a change has cost speed.

Both run in this environment, so that Python and the libraries are the same; each checkout's packages come first on
`PYTHONPATH`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier import start_up
from tests.bench.log_tier.throughput import WARM_UP_MESSAGES, keep, one_round
from tests.bench.peers import (
    brokers,
    headwater_processes,
)
from tests.bench.peers.brokers import HEADWATER, Broker
from tests.bench.processes import Failed, resident_mib
from tests.bench.report import Figures, Table, comparison

EARLIER = "earlier"
SPARK_RECORDS = 3_000_000
SPARK_READS = 3
_TREE = Path(__file__).resolve().parents[3]


def measure(
    folder: Path, checkout: Path, driver_names: list[str], load: Load, rounds: int
) -> tuple[list[Table], dict[str, Figures]]:
    """Start nodes of each checkout, produce and consume through a broker of each, then Spark's batch read.

    Args:
        checkout: The root folder of the earlier checkout.

    Raises:
        Failed: The folder is no checkout, or a broker or client failed.
    """
    if not (checkout / "platform" / "headwater").is_dir():
        raise Failed(f"{checkout} is no checkout of Headwater: --earlier names the folder that holds its platform/")
    trees = {EARLIER: checkout.resolve(), HEADWATER: _TREE}
    started = _starts(folder, trees, rounds)
    served: Figures = {}
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(_broker(name, tree, folder)) for name, tree in trees.items()]
        for round_number in range(rounds + 1):
            size = load if round_number else replace(load, messages=min(WARM_UP_MESSAGES, load.messages))
            for driver_name in driver_names:
                for broker in brokers.in_turn(pair, round_number):
                    row = one_round(broker, driver_name, size, f"bench-{round_number}-{driver_name}")
                    if round_number:
                        keep(served, broker, row, f"{driver_name}: ")
        for broker in pair:
            keep(served, broker, {"resident memory after it all, MiB": resident_mib(broker.child.pid)})
        read = _spark_reads(pair, trees, rounds)
    tables = [
        comparison(f"start on a new folder, {rounds} rounds in turn", started, EARLIER, HEADWATER),
        comparison(f"{load}, {rounds} rounds in turn", served, EARLIER, HEADWATER),
        comparison(f"Spark's batch read, {SPARK_RECORDS:,} records, {rounds} rounds", read, EARLIER, HEADWATER),
    ]
    return tables, {"start": started, "broker": served, "spark": read}


def _starts(folder: Path, trees: dict[str, Path], rounds: int) -> Figures:
    figures: Figures = {}
    for round_number in range(rounds + 1):
        for name in brokers.in_turn(list(trees), round_number):
            with _import_from(trees[name]):
                row = start_up.up(folder / f"start-{round_number}-{name.lower()}")
            if round_number:  # the first one warms the page cache
                for what, value in row.items():
                    figures.setdefault(what, {}).setdefault(name, []).append(value)
    return figures


def _spark_read_of(tree: Path) -> Path:
    """A checkout's program that reads a topic by Spark, in the folder of its time."""
    bench = tree / "tests" / "bench"
    return next(path for path in (bench / "spark" / "spark_read.py", bench / "spark_read.py") if path.exists())


def _spark_reads(pair: list[Broker], trees: dict[str, Path], rounds: int) -> Figures:
    figures: Figures = {}
    for round_number in range(rounds):
        for broker in brokers.in_turn(pair, round_number):
            script = _spark_read_of(trees[broker.name])
            sizes = ["--records", str(SPARK_RECORDS), "--runs", str(SPARK_READS)]
            with _import_from(trees[broker.name]):
                out = drivers.run([sys.executable, str(script), "--bootstrap", broker.bootstrap, *sizes])
            rate = float(json.loads(out.splitlines()[-1])["rows_per_s_median"])
            print(f"  {broker.name}: Spark reads {rate:,.0f} rows/s", flush=True)
            keep(figures, broker, {"batch read of a topic, rows/s": rate})
    return figures


@contextlib.contextmanager
def _broker(name: str, tree: Path, folder: Path) -> Iterator[Broker]:
    with _import_from(tree):
        child, port = headwater_processes.start_broker(folder / name.lower())
    try:
        yield Broker(name, child, port, folder / name.lower())
    finally:
        child.stop()


@contextlib.contextmanager
def _import_from(tree: Path) -> Iterator[None]:
    """What is started meanwhile takes its packages from `tree`."""
    usual = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tree / "platform"), str(tree)])
    try:
        yield
    finally:
        if usual is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = usual
