"""One simulated run: a node, its clients, its faults, and the checks."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.checker import NodeChecker
from tests.simulation.clients import CLIENTS, CLIENTS_ADDRESS, Brokers, Client, create_topic
from tests.simulation.consumers import Consumer
from tests.simulation.faults import KINDS, Fault, NodeFaults, draw_faults
from tests.simulation.history import History
from tests.simulation.members import Member
from tests.simulation.node import SimulatedNode
from tests.simulation.producers import Producer
from tests.simulation.simulated_network import Cables, SimulatedNetwork
from tests.simulation.virtual_loop import VirtualLoop, drop

TOPIC = "flights"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]
PRODUCERS, CONSUMERS, MEMBERS = 3, 2, 2
CHECK_INTERVAL_S = 1.0
#: Time after the last fault in which all clients must have come to an end.
SETTLE_S = 60.0
#: Time after the last fault in which clients go on.
AFTERWARDS_S = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.

    Attributes:
        violation: What went wrong; None if nothing did.
        trace: Digest of all events in their order.
        counts: Number of events by kind.
    """

    seed: int
    faults: Sequence[Fault]
    violation: str | None
    trace: str
    steps: int
    counts: dict[str, int] = field(default_factory=dict)


def always(_host: str, _group: str) -> bool:
    """The only broker coordinates all groups."""
    return True


@dataclass(slots=True)
class _Run:
    loop: VirtualLoop
    chance: random.Random
    faults: Sequence[Fault]
    history: History

    async def play(self) -> None:
        flush = {} if self.history.may_lose else {"log.flush.interval.messages": 1}
        properties = {
            "offsets.topic.num.partitions": 2,
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.bytes": 20_000,
            "log.index.interval.bytes": 500,
            **flush,
        }
        cables = Cables(self._draw())
        node = SimulatedNode(self.loop, cables, 1, self._draw(), properties)
        clients_network = SimulatedNetwork(cables, CLIENTS, None, self._draw(), address=CLIENTS_ADDRESS)
        brokers = Brokers(clients_network, [node.name])
        checker = NodeChecker(self.loop, node, self.history)
        running = [asyncio.create_task(node.keep_running())]
        running.append(asyncio.create_task(checker.check_periodically(CHECK_INTERVAL_S)))
        await create_topic(Client("admin", brokers, self.history, random.Random(1)), TOPIC, len(PARTITIONS), {})
        numbers = itertools.count()
        producers = [
            Producer(f"p{i}", brokers, self.history, self._draw(), PARTITIONS, numbers) for i in range(PRODUCERS)
        ]
        consumers = [Consumer(f"c{i}", brokers, self.history, self._draw(), PARTITIONS) for i in range(CONSUMERS)]
        members = [Member(f"m{i}", brokers, self.history, self._draw(), PARTITIONS, always) for i in range(MEMBERS)]
        workers: list[Producer | Consumer | Member] = [*producers, *consumers, *members]
        clients = [asyncio.create_task(worker.run()) for worker in workers]
        faults = asyncio.create_task(NodeFaults(node, self.history).apply(self.faults))
        await until(faults, [*running, *clients])
        await until(asyncio.create_task(asyncio.sleep(AFTERWARDS_S)), [*running, *clients])
        for worker in workers:
            worker.is_ending = True
        async with asyncio.timeout(SETTLE_S):
            for task in clients:
                await until(task, running)
            await until(asyncio.create_task(consumers[0].read_to_end(checker.ends(TOPIC))), running)
        checker.check_all()
        await until(asyncio.create_task(checker.coordinators.check_end()), running)
        for task in running:
            task.cancel()

    def _draw(self) -> random.Random:
        return random.Random(self.chance.random())


async def until(task: asyncio.Task[Any], others: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for a task; the failure of another one ends the run."""
    pending = {task, *others}
    while not task.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    task.result()


def run(seed: int, duration_s: float, faults: Sequence[Fault] | None = None) -> Outcome:
    """Run one seed, with its own faults or with given ones."""
    chance = random.Random(seed)
    may_lose = chance.random() < 0.3
    loop = VirtualLoop(random.Random(chance.random()))
    drawn = draw_faults(random.Random(chance.random()), duration_s, list(KINDS))
    faults = drawn if faults is None else faults
    history = History(may_lose)
    play = _Run(loop, random.Random(chance.random()), faults, history)
    return conclude(loop, play.play(), seed, faults, history)


def conclude(
    loop: VirtualLoop, play: Coroutine[Any, Any, None], seed: int, faults: Sequence[Fault], history: History
) -> Outcome:
    """Run to the end, whatever it is."""
    errors: list[str] = []

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(f"{context['message']}: {context.get('exception')!r}")

    loop.set_exception_handler(failed)
    violation = None
    # A run's garbage is small and is collected at its end; looking for it meanwhile takes a tenth of the time.
    gc.disable()
    try:
        loop.run_until_complete(play)
    except Exception as error:  # noqa: BLE001 (whatever ends a run is a finding)
        violation = f"{type(error).__name__}: {error}"
    finally:
        drop(loop)
        gc.enable()
    if violation is None and errors:
        violation = errors[0]
    return Outcome(seed, faults, violation, history.trace.hexdigest(), loop.steps, history.counts)
