"""The two brokers under test, side by side."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.peers import (
    apache_kafka,
    headwater_processes,
)
from tests.bench.processes import Child

Peer = TypeVar("Peer")

KAFKA = "Apache Kafka"
HEADWATER = "Headwater"
STARTERS: dict[str, Callable[[Path], tuple[Child, int]]] = {
    KAFKA: apache_kafka.start,
    HEADWATER: headwater_processes.start_broker,
}
# So many times what one round writes is warmed; see `warm_memory`.
WARM_FACTOR = 4


@dataclass(frozen=True)
class Broker:
    """One of the two."""

    name: str
    child: Child
    port: int
    folder: Path

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def pin(self, core: int) -> None:
        """Let all its threads run on one core only."""
        for task in Path(f"/proc/{self.child.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), {core})


@contextlib.contextmanager
def one(name: str, folder: Path) -> Iterator[Broker]:
    """One broker on an empty folder, ended at the end."""
    place = folder / name.lower().replace(" ", "-")
    child, port = STARTERS[name](place)
    try:
        yield Broker(name, child, port, place)
    finally:
        child.stop()


@contextlib.contextmanager
def both(folder: Path) -> Iterator[list[Broker]]:
    """Both brokers at the same time."""
    with one(KAFKA, folder) as kafka, one(HEADWATER, folder) as headwater:
        yield [kafka, headwater]


def in_turn(peers: Sequence[Peer], round_number: int) -> Sequence[Peer]:
    """Neither is always the one whose round begins while the kernel writes back what the other one wrote."""
    return peers if round_number % 2 else peers[::-1]


def warm_memory(load: Load, clients: int = 1) -> None:
    """Make free memory as fast as used memory, for what is measured next."""
    warm_gibibytes(math.ceil(WARM_FACTOR * clients * load.messages * load.message_bytes / 2**30))


def warm_gibibytes(gibibytes: int) -> None:
    """The same, of so much memory."""
    drivers.run([*drivers.PYTHON, "tests.bench.loads.warm_memory", str(gibibytes)])
