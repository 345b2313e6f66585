"""Each broker on one core, four producers on the others."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import SETTLE_S, keep
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, Broker
from tests.bench.processes import Failed, cpu_seconds
from tests.bench.report import Figures, Table, comparison

PRODUCERS = 4


def measure(folder: Path, messages: int, rounds: int) -> tuple[list[Table], Figures]:
    """All producers' messages by the time the slowest one took; the broker's CPU time."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failed("one core for the broker and one for the clients are needed")
    figures: Figures = {}
    load = Load(messages // PRODUCERS)
    with brokers.both(folder) as pair:
        for broker in pair:
            broker.pin(cores[0])
        for round_number in range(rounds + 1):
            for broker in brokers.in_turn(pair, round_number):
                row = _one_round(broker, load, f"pinned-{round_number}", set(cores[1:]))
                if round_number:
                    keep(figures, broker, row)
    title = f"{PRODUCERS} producers (librdkafka) at once, each {load}; broker on one core, {rounds} rounds in turn"
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def _one_round(broker: Broker, load: Load, topic: str, client_cores: set[int]) -> dict[str, float]:
    drivers.client("create", broker.bootstrap, topic, load)
    try:
        brokers.warm_memory(load, PRODUCERS)
        before = cpu_seconds(broker.child.pid)
        command = drivers.client_command("produce", broker.bootstrap, topic, load)
        clients = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: os.sched_setaffinity(0, client_cores),  # noqa: PLW1509 (no threads here)
            )
            for _ in range(PRODUCERS)
        ]
        outputs = [client.communicate(timeout=drivers.LIMIT_S)[0] for client in clients]
        if any(client.returncode for client in clients):
            raise Failed(f"a producer failed: {[client.returncode for client in clients]}")
        time.sleep(SETTLE_S)
        spent = cpu_seconds(broker.child.pid) - before
    finally:
        drivers.client("delete", broker.bootstrap, topic, load)
    seconds = max(json.loads(output.splitlines()[-1])["seconds"] for output in outputs)
    total = load.messages * PRODUCERS
    print(f"  {broker.name}: {total / seconds:,.0f} messages/s", flush=True)
    return {"produce, messages/s": total / seconds, "produce, broker CPU s/million": spent / total * 1e6}
