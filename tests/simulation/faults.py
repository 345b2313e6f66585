"""Faults of one node: drawn from a seed, applied at their times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tests.simulation.clients import CLIENTS
from tests.simulation.history import History
from tests.simulation.node import DATA, SimulatedNode
from tests.simulation.virtual_loop import START_S

#: Average number of faults in a second.
FAULTS_PER_S = 0.4
#: Longest duration of a fault, in seconds.
DURATION_S_MAX = 4.0
#: Largest jump of the wall clock: records that clients date stay within `message.timestamp.after.max.ms`.
CLOCK_JUMP_MS_MAX = 30 * 60 * 1000


class Fault(NamedTuple):
    """One fault: when it begins, how long it lasts, and a number from 0 to 1 that settles what its kind leaves open."""

    at_s: float
    kind: str
    duration_s: float
    draw: float


def draw_faults(chance: random.Random, duration_s: float, kinds: Sequence[str]) -> list[Fault]:
    """Faults of a run of some length, in the order of their times.

    >>> [fault.kind for fault in draw_faults(random.Random(1), 10, ["crash"])]
    ['crash', 'crash', 'crash', 'crash']
    """
    faults = [
        Fault(
            round(chance.uniform(0, duration_s), 3),
            chance.choice(kinds),
            round(chance.uniform(0.05, DURATION_S_MAX), 3),
            chance.random(),
        )
        for _ in range(round(FAULTS_PER_S * duration_s))
    ]
    return sorted(faults)


class NodeFaults:
    """Applies faults to a node; faults may overlap."""

    def __init__(self, node: SimulatedNode, history: History) -> None:
        self._node = node
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._down = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def apply(self, faults: Sequence[Fault]) -> None:
        """Apply faults at their times, and wait until the last one is over."""
        for fault in faults:
            await asyncio.sleep(max(0.0, START_S + fault.at_s - self._loop.time()))
            self._history.note(self._loop.time(), "fault", fault)
            task = asyncio.get_running_loop().create_task(self._apply(fault))
            self._tasks.add(task)
        for task in sorted(self._tasks, key=lambda task: task.get_name()):
            await task

    async def _apply(self, fault: Fault) -> None:
        await KINDS[fault.kind](self, fault)

    async def _crash(self, fault: Fault) -> None:
        self._node.crash()
        await self._stay_down(fault)

    async def _power_loss(self, fault: Fault) -> None:
        self._history.lose()
        self._node.lose_power()
        await self._stay_down(fault)

    async def _stop(self, fault: Fault) -> None:
        await self._node.stop()
        await self._stay_down(fault)

    async def _stay_down(self, fault: Fault) -> None:
        self._down += 1
        self._node.may_run = False
        await asyncio.sleep(fault.duration_s)
        self._down -= 1
        self._node.may_run = self._down == 0

    async def _freeze(self, fault: Fault) -> None:
        self._node.freeze()
        await asyncio.sleep(fault.duration_s)
        self._node.thaw()

    async def _jump_clock(self, fault: Fault) -> None:
        self._node.clock.offset_ms = int((2 * fault.draw - 1) * CLOCK_JUMP_MS_MAX)

    async def _reset(self, fault: Fault) -> None:
        if self._node.current is not None:
            self._node.current.network.reset_connections(fault.draw)

    async def _cut(self, fault: Fault) -> None:
        hosts = (CLIENTS, self._node.name) if fault.draw < 0.5 else (self._node.name, CLIENTS)
        route = self._node.cables.route(*hosts)
        route.is_cut = True
        await asyncio.sleep(fault.duration_s)
        route.heal()

    async def _fail_disk(self, fault: Fault) -> None:
        self._node.file_system.failing = DATA
        await asyncio.sleep(fault.duration_s)
        self._node.file_system.failing = None

    async def _fill_disk(self, fault: Fault) -> None:
        self._node.file_system.fill(int(fault.draw * 20_000))
        await asyncio.sleep(fault.duration_s)
        self._node.file_system.empty()


KINDS: dict[str, Callable[[NodeFaults, Fault], Awaitable[None]]] = {
    "crash": NodeFaults._crash,
    "power_loss": NodeFaults._power_loss,
    "stop": NodeFaults._stop,
    "freeze": NodeFaults._freeze,
    "clock_jump": NodeFaults._jump_clock,
    "reset": NodeFaults._reset,
    "cut": NodeFaults._cut,
    "disk_fails": NodeFaults._fail_disk,
    "disk_full": NodeFaults._fill_disk,
}
