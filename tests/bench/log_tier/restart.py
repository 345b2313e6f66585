"""kill -9 with a large log, and how long until the broker serves again with all of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier.scale import figures_of
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, STARTERS, Broker
from tests.bench.processes import Failed
from tests.bench.report import Figures, Table, comparison

TOPIC = "restart"
LIMIT_S = 600


def measure(folder: Path, gibibytes: float, rounds: int) -> tuple[list[Table], Figures]:
    """Fill, kill, start; again so many times without filling."""
    load = Load(messages=int(gibibytes * 2**30 / 212))  # 200 bytes and what a record has around them
    figures: Figures = {}
    for name in STARTERS:
        with brokers.one(name, folder) as broker:
            drivers.client("create", broker.bootstrap, TOPIC, load)
            drivers.client("produce", broker.bootstrap, TOPIC, load)
            times = []
            for _ in range(rounds):
                os.killpg(broker.child.pid, signal.SIGKILL)
                broker.child.process.wait()
                start = time.perf_counter()
                broker.child.restart()
                broker.child.await_kafka(broker.port, LIMIT_S)
                found = _stored(broker)
                times.append(time.perf_counter() - start)
                if found != load.messages:
                    raise Failed(f"{name} has {found} messages after the restart, {load.messages} were acknowledged")
            figures_of(figures, name, "start after kill -9 until all offsets are served, s", times)
    title = f"{gibibytes:g} GiB in {load.partitions} partitions, acks=1, warm page cache, {rounds} restarts"
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def _stored(broker: Broker) -> int:
    """Messages in the topic, as soon as every partition has its leader again."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return int(drivers.client("stored", broker.bootstrap, TOPIC, Load())["messages"])
        except Failed:
            broker.child.check_running()
            if time.monotonic() > deadline:
                raise
