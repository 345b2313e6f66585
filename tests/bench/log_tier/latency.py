"""From sending to receiving at a thousand messages a second; quiet, and while another consumer reads cold data."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from tests.bench.loads import drivers
from tests.bench.loads.latency_client import COUNTING
from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import Named
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA, Broker
from tests.bench.processes import Failed, bytes_read
from tests.bench.report import Figures, Table, comparison

RATE = 1000
WARM_UP_S = 3
COLD_LOAD = Load(messages=10_000_000)
COLD_TOPIC = "cold"
OTHER_BROKER = "beside a cold reader of the other broker"
# How fast the reader reads, bytes a second; 0: as fast as it goes; None: there is none.
COLD_STATES: dict[str, float | None] = {
    "quiet": None,
    "beside a cold reader of 25 MB/s": 25e6,
    "beside a cold reader at full speed": 0,
    OTHER_BROKER: 0,
}
STATE_LETTERS = re.compile(r"[^a-z0-9]+")
# Percentiles in ms by kind: "end to end" and "acknowledged".
Delays = dict[str, dict[str, float]]
Result = TypeVar("Result")


class Served(Named, Protocol):
    """A broker or a cluster: the column of its figures, and where its clients begin."""

    @property
    def bootstrap(self) -> str: ...


def measure(folder: Path, seconds: float, rounds: int) -> tuple[list[Table], Figures]:
    """Quiet latency with acks=1 and all, in turn."""
    figures: Figures = {}
    with brokers.both(folder) as pair:
        for broker in pair:
            one_run(broker, "warm-up", Load(), seconds)
        for round_number in range(rounds):
            for acks in ("1", "all"):
                for broker in brokers.in_turn(pair, round_number):
                    row = one_run(broker, f"quiet-{round_number}-{acks}", Load(acks=acks), seconds)
                    note(figures, broker, f"acks={acks}", row)
    title = f"{RATE:,} messages/s of 200 bytes, 6 partitions, {seconds:.0f} s, {rounds} rounds in turn"
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def measure_beside_cold_reads(folder: Path, seconds: float, rounds: int) -> tuple[list[Table], Figures]:
    """The same while another consumer reads older messages that have to come from the disk.

    The consumer reads at a steady rate, and at full speed; and, to tell the broker's part from the machine's, at full
    speed from the other broker of the pair, with which the measured one shares nothing but the cores and the disk.
    """
    figures: Figures = {}
    with brokers.both(folder) as pair:
        for broker in pair:
            drivers.client("create", broker.bootstrap, COLD_TOPIC, COLD_LOAD)
            drivers.client("produce", broker.bootstrap, COLD_TOPIC, COLD_LOAD)
        os.sync()
        for round_number in range(rounds):
            for state, bytes_per_s in COLD_STATES.items():
                for broker in brokers.in_turn(pair, round_number):
                    (other,) = (one for one in pair if one is not broker)
                    read_from = other if state == OTHER_BROKER else broker
                    with contextlib.ExitStack() as stack:
                        if bytes_per_s is not None:
                            stack.enter_context(cold_reader(read_from, bytes_per_s))
                        before, start = bytes_read(read_from.child.pid), time.monotonic()
                        row = one_run(broker, f"{STATE_LETTERS.sub('-', state)}-{round_number}", Load(), seconds)
                        rate = (bytes_read(read_from.child.pid) - before) / (time.monotonic() - start)
                    note(figures, broker, state, row)
                    figures.setdefault(f"{state}: read from the disk, MB/s", {}).setdefault(broker.name, []).append(
                        rate / 1e6
                    )
    title = f"{RATE:,} messages/s, acks=1, beside a reader of {COLD_LOAD.messages:,} older messages, {rounds} rounds"
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


@contextlib.contextmanager
def cold_reader(broker: Broker, bytes_per_s: float) -> Iterator[None]:
    """Another consumer reads the older topic again and again, each time from the disk.

    RuntimeError if it fails: what was measured then was not beside a reader.
    """
    stop, failed = threading.Event(), threading.Event()
    command = [*drivers.PYTHON, "tests.bench.loads.cold_reader", broker.bootstrap, COLD_TOPIC, str(bytes_per_s)]

    def loop() -> None:
        while not stop.is_set():
            evict(broker.folder)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as reader:
                while reader.poll() is None and not stop.wait(0.05):
                    pass
                if reader.poll() is None:
                    reader.terminate()
                elif reader.returncode:
                    failed.set()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed.is_set():
        raise RuntimeError(f"the reader of older messages failed: {command}")


def evict(folder: Path) -> None:
    """Throw the older topic's files out of the page cache."""
    for path in folder.glob(f"**/{COLD_TOPIC}-*/*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def one_run(peer: Served, topic: str, load: Load, seconds: float) -> Delays:
    """Percentiles of a fresh topic with the partitions, the replicas and the acks of a load."""
    with _fresh(peer, topic, load):
        return _delays(peer, topic, drivers.run(_command(peer, topic, load, seconds)))


def beside(peer: Served, topic: str, load: Load, action: Callable[[], Result]) -> tuple[Delays, Result]:
    """The same, of what is sent while an action runs; and what the action returns."""
    command = _command(peer, topic, load, drivers.LIMIT_S)
    with _fresh(peer, topic, load), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        try:
            if client.stdout.readline().strip() != COUNTING:
                raise Failed(f"the client did not get going: {' '.join(command[-8:])}")
            result = action()
            client.terminate()
            out = client.communicate(timeout=drivers.LIMIT_S)[0]
        finally:
            client.kill()  # if it runs
        if client.returncode:
            raise Failed(f"exit {client.returncode}: {' '.join(command[-8:])}")
        return _delays(peer, topic, out), result


def note(figures: Figures, peer: Named, prefix: str, row: Delays) -> None:
    """Keep p50, p99 and p99.9 of one run."""
    for kind, found in row.items():
        for name in ("p50", "p99", "p999"):
            figure = f"{prefix}: {kind}, {name}, ms"
            figures.setdefault(figure, {}).setdefault(peer.name, []).append(found[name])


@contextlib.contextmanager
def _fresh(peer: Served, topic: str, load: Load) -> Iterator[None]:
    drivers.client("create", peer.bootstrap, topic, load)
    try:
        yield
    finally:
        drivers.client("delete", peer.bootstrap, topic, load)


def _command(peer: Served, topic: str, load: Load, seconds: float) -> list[str]:
    arguments = [peer.bootstrap, topic, load.acks, str(RATE), str(WARM_UP_S), str(seconds)]
    return [*drivers.PYTHON, "tests.bench.loads.latency_client", *arguments]


def _delays(peer: Served, topic: str, out: str) -> Delays:
    row: Delays = json.loads(out.splitlines()[-1])
    found = row["end to end"]
    print(f"  {peer.name}, {topic}: p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms", flush=True)
    return row
