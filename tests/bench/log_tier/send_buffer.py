"""What the broker's send buffer does to Java's consumer: topics at rest, read from two Headwater brokers in turn."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import keep, phase
from tests.bench.peers import (
    brokers,
    headwater_processes,
)
from tests.bench.peers.brokers import Broker
from tests.bench.report import Figures, Table, comparison

TOPIC = "at-rest"
DRIVER = drivers.JavaDriver()
#: What each broker is told, by its name in the table.
SETTINGS: Mapping[str, Mapping[str, str]] = {"102,400": {"socket.send.buffer.bytes": "102400"}, "the default": {}}


def measure(folder: Path, load: Load, rounds: int) -> tuple[list[Table], Figures]:
    """Fills a topic of each broker, then reads them again and again; one round more warms up."""
    figures: Figures = {}
    with contextlib.ExitStack() as stack:
        pair = []
        for number, (name, properties) in enumerate(SETTINGS.items()):
            place = folder / f"broker-{number}"
            child, port = headwater_processes.start_broker(place, properties)
            stack.callback(child.stop)
            broker = Broker(name, child, port, place)
            drivers.client("create", broker.bootstrap, TOPIC, load)
            drivers.client("produce", broker.bootstrap, TOPIC, load)
            pair.append(broker)
        # At rest: nothing is on its way to the device while it is read.
        os.sync()
        for round_number in range(rounds + 1):
            for broker in brokers.in_turn(pair, round_number):
                row = phase(broker, "consume", DRIVER.consume, TOPIC, load)
                print(f"  {broker.name}: {row['consume, messages/s']:,.0f}/s", flush=True)
                if round_number:
                    keep(figures, broker, row)
    title = f"socket.send.buffer.bytes; {load}, read {rounds} times in turn by Java's consumer"
    return [comparison(title, figures, *SETTINGS)], figures
