"""Many partitions, many connections: what they cost and how much throughput is left."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import keep
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, STARTERS, Broker
from tests.bench.processes import API_VERSIONS_REQUEST, Failed, resident_mib
from tests.bench.report import Figures, Table, comparison

TOPICS = 5
WAIT_S = 300
LOAD = Load(messages=1_000_000)
FILES_NEEDED = 20_000


def measure_partitions(folder: Path, partitions: int, rounds: int) -> tuple[list[Table], Figures]:
    """Making them, memory with them, stopping and starting with them, throughput beside them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
        print(f"  the limit of open files is {hard}: Apache Kafka may not bear {partitions} partitions", flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures: Figures = {}
    try:
        for name in STARTERS:
            with brokers.one(name, folder) as broker:
                figures_of(figures, name, "produce before, messages/s", _speeds(broker, rounds))
                start = time.perf_counter()
                _create(broker, partitions)
                figures_of(figures, name, f"create {partitions:,} partitions, s", [time.perf_counter() - start])
                figures_of(figures, name, "resident memory, MiB", [resident_mib(broker.child.pid)])
                figures_of(figures, name, "produce beside them, messages/s", _speeds(broker, rounds))
                start = time.perf_counter()
                broker.child.terminate(WAIT_S)
                figures_of(figures, name, "clean stop, s", [time.perf_counter() - start])
                start = time.perf_counter()
                broker.child.restart()
                broker.child.await_kafka(broker.port, WAIT_S)
                _await_leaders(broker, partitions)
                figures_of(figures, name, "start after it, until all have leaders, s", [time.perf_counter() - start])
                figures_of(figures, name, "resident memory after the start, MiB", [resident_mib(broker.child.pid)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [comparison(f"{partitions:,} partitions in {TOPICS} topics", figures, KAFKA, HEADWATER)], figures


def measure_connections(folder: Path, connections: int, rounds: int) -> tuple[list[Table], Figures]:
    """Memory with so many idle clients, and throughput beside them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures: Figures = {}
    try:
        with brokers.both(folder) as pair:
            for broker in pair:
                _speed(broker, "warm-up")
            for round_number in range(rounds):
                for broker in brokers.in_turn(pair, round_number):
                    row = {"produce alone, messages/s": _speed(broker, f"alone-{round_number}")}
                    with _connected(broker, connections):
                        row[f"produce beside {connections:,} connections, messages/s"] = _speed(
                            broker, f"beside-{round_number}"
                        )
                        row["resident memory with them, MiB"] = resident_mib(broker.child.pid)
                    keep(figures, broker, row)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [comparison(f"{connections:,} connections, {rounds} rounds in turn", figures, KAFKA, HEADWATER)], figures


def figures_of(figures: Figures, system: str, figure: str, values: list[float]) -> None:
    """Keep one system's values."""
    figures.setdefault(figure, {})[system] = values
    print(f"  {system}: {figure}: {', '.join(f'{value:,.2f}' for value in values)}", flush=True)


def _speeds(broker: Broker, rounds: int) -> list[float]:
    return [_speed(broker, f"speed-{time.monotonic_ns()}") for _ in range(rounds + 1)][1:]


def _speed(broker: Broker, topic: str) -> float:
    drivers.client("create", broker.bootstrap, topic, LOAD)
    try:
        brokers.warm_memory(LOAD)
        return drivers.DRIVERS["python"].produce(broker.bootstrap, topic, LOAD)
    finally:
        drivers.client("delete", broker.bootstrap, topic, LOAD)


def _create(broker: Broker, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(f"many-{index}", partitions // TOPICS, 1) for index in range(TOPICS)]
    for future in admin.create_topics(topics, operation_timeout=WAIT_S, request_timeout=WAIT_S).values():
        future.result(WAIT_S)
    _await_leaders(broker, partitions)


def _await_leaders(broker: Broker, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        topics = admin.list_topics(timeout=WAIT_S).topics
        led = sum(
            partition.leader >= 0
            for name, topic in topics.items()
            if name.startswith("many-")
            for partition in topic.partitions.values()
        )
        if led == partitions:
            return
        time.sleep(0.02)
    raise Failed(f"{broker.name}: {led} of {partitions} partitions have leaders after {WAIT_S} s")


@contextlib.contextmanager
def _connected(broker: Broker, connections: int) -> Iterator[None]:
    """So many clients that have said ApiVersions and then nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 30))
            client.sendall(API_VERSIONS_REQUEST)
            if not client.recv(4096):
                raise Failed(f"{broker.name} closed a connection")
        yield
