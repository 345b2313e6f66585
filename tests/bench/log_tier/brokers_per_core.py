"""One broker beside two on the same machine: a broker uses one core, so that a larger machine needs several.

The senders do nothing but send: each has one produce request of a prepared batch of 64 KiB for each of its partitions,
and sends it again and again. With librdkafka, which takes four times the broker's CPU time, two cores would measure the
clients.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.bench.loads import drivers, prepared_sender
from tests.bench.loads.load import Load
from tests.bench.loads.prepared_sender import RECORDS, REQUEST_S
from tests.bench.log_tier.throughput import SETTLE_S
from tests.bench.peers import brokers, headwater_processes
from tests.bench.processes import Child, Failed, cpu_seconds
from tests.bench.report import Figures, Table, comparison

SENDERS = 2
ONE, TWO = "1 broker", "2 brokers"


def measure(folder: Path, messages: int, rounds: int) -> tuple[list[Table], Figures]:
    """Messages a second of two senders into one broker, and into two; no replicas."""
    load = Load(messages)
    figures: Figures = {}
    with _started(folder / "one", 1) as one, _started(folder / "two", 2) as two:
        for round_number in range(rounds + 1):
            for name, child, bootstrap in brokers.in_turn([(ONE, *one), (TWO, *two)], round_number):
                brokers.warm_memory(load)
                speed, spent = _one_round(child, bootstrap, load, f"cores-{round_number}")
                print(f"  {name}: {speed:,.0f}/s", flush=True)
                if round_number:
                    figures.setdefault("produce, messages/s", {}).setdefault(name, []).append(speed)
                    figures.setdefault("CPU s/million", {}).setdefault(name, []).append(spent / messages * 1e6)
    title = f"{SENDERS} senders of prepared requests, {load}, no replicas, {rounds} rounds in turn"
    return [comparison(title, figures, ONE, TWO)], figures


@contextmanager
def _started(folder: Path, count: int) -> Iterator[tuple[Child, str]]:
    child, bootstrap = headwater_processes.start_cluster(folder, count)
    try:
        headwater_processes.await_ready(child)
        yield child, bootstrap
    finally:
        child.stop()


def _one_round(child: Child, bootstrap: str, load: Load, topic: str) -> tuple[float, float]:
    drivers.client("create", bootstrap, topic, load)
    try:
        before = cpu_seconds(child.pid)
        shares = _shares(bootstrap, topic)
        requests = load.messages // RECORDS // load.partitions
        commands = [prepared_sender.command(topic, share, requests) for share in shares]
        senders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        try:
            outputs = [sender.communicate(timeout=drivers.LIMIT_S)[0] for sender in senders]
        finally:
            for sender in senders:
                sender.kill()  # if it runs
        if any(sender.returncode for sender in senders):
            raise Failed(f"a sender failed: {outputs}")
        time.sleep(SETTLE_S)
        spans = [json.loads(output) for output in outputs]
        seconds = max(end for _, end in spans) - min(begun for begun, _ in spans)
        return requests * load.partitions * RECORDS / seconds, cpu_seconds(child.pid) - before
    finally:
        drivers.client("delete", bootstrap, topic, load)


def _shares(bootstrap: str, topic: str) -> list[list[tuple[str, int, int]]]:
    """(host, port, partition) of each sender: half of the partitions, all on one broker if there are two."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=REQUEST_S)
    of_broker: dict[int, list[int]] = defaultdict(list)
    for partition in found.topics[topic].partitions.values():
        of_broker[partition.leader].append(partition.id)
    halves = list(of_broker.items())
    if len(halves) == 1:
        ((broker, partitions),) = halves
        halves = [(broker, partitions[sender::SENDERS]) for sender in range(SENDERS)]
    addresses = {each.id: (str(each.host), each.port) for each in found.brokers.values()}
    return [[(*addresses[broker], partition) for partition in partitions] for broker, partitions in halves]
