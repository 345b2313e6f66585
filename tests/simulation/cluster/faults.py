"""Faults of a cluster: of one broker, of the network between brokers, and of ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from tests.simulation.clients import CLIENTS
from tests.simulation.cluster.power import PowerLosses
from tests.simulation.faults import CLOCK_JUMP_MS_MAX, Fault
from tests.simulation.history import History
from tests.simulation.node import DATA, SESSION_MS, SimulatedNode
from tests.simulation.virtual_loop import START_S
from tests.simulation.zookeeper_model import ZooKeeperModel

#: Factor of the duration of faults that are to outlast a session now and then.
LONG = 3.0
#: Time added to each message on a slow route, in seconds.
DELAY_S_MAX = 0.5
#: Ratio of cuts that go one way only.
ONE_WAY_RATIO = 0.5


class ClusterFaults:
    """Applies faults to the nodes of a cluster; they may overlap, also on one node."""

    def __init__(
        self, nodes: Sequence[SimulatedNode], zookeeper: ZooKeeperModel, power: PowerLosses, history: History
    ) -> None:
        self._nodes = nodes
        self._zookeeper = zookeeper
        self._power = power
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._down: dict[str, int] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def apply(self, faults: Sequence[Fault]) -> None:
        """Apply faults at their times, and wait until the last one is over."""
        for fault in faults:
            await asyncio.sleep(max(0.0, START_S + fault.at_s - self._loop.time()))
            self._history.note(self._loop.time(), "fault", fault)
            self._tasks.append(asyncio.get_running_loop().create_task(self._apply(fault)))
        for task in self._tasks:
            await task

    async def _apply(self, fault: Fault) -> None:
        chance = random.Random(fault.draw)
        await CLUSTER_KINDS[fault.kind](self, chance.choice(self._nodes), fault.duration_s, chance)

    # -- brokers

    async def _crash(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        node.crash()
        await self._stay_down(node, duration_s * chance.choice((0.1, 1, LONG)))

    async def _lose_power(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        if self._power.strike(node.node_id):
            node.lose_power()
        else:
            node.crash()
        await self._stay_down(node, duration_s * chance.choice((0.1, 1, LONG)))

    async def _stop(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        await node.stop()
        await self._stay_down(node, duration_s * chance.choice((0.1, 1, LONG)))

    async def _crash_all(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        del node
        nodes = list(self._nodes)
        chance.shuffle(nodes)
        for each in nodes:
            each.crash()
        await asyncio.gather(*(self._stay_down(each, duration_s * chance.uniform(0.1, LONG)) for each in nodes))

    async def _stay_down(self, node: SimulatedNode, duration_s: float) -> None:
        self._down[node.name] = self._down.get(node.name, 0) + 1
        node.may_run = False
        await asyncio.sleep(duration_s)
        self._down[node.name] -= 1
        node.may_run = self._down[node.name] == 0

    async def _freeze(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        node.freeze()
        await asyncio.sleep(duration_s * chance.choice((1, LONG)))
        node.thaw()

    async def _jump_clock(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        del duration_s
        node.clock.offset_ms = chance.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)

    async def _fail_disk(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        """Let one log folder fail, or all. A folder that failed is used again after a restart alone.

        Its records are not trusted then, as after a power loss.
        """
        if not self._power.strike(node.node_id):
            return
        node.file_system.failing = chance.choice((DATA, *node.folders))
        await asyncio.sleep(duration_s * chance.choice((1, LONG)))
        node.file_system.failing = None
        serving = node.serving
        if serving is None or serving.process.is_frozen or chance.random() < 0.5:
            node.crash()
        else:
            await node.stop()

    async def _fill_disk(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        node.file_system.fill(chance.randint(0, 20_000))
        await asyncio.sleep(duration_s)
        node.file_system.empty()

    # -- the network

    async def _reset(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        del duration_s
        if node.current is not None:
            node.current.network.reset_connections(chance.random())

    async def _cut_pair(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        """Cut one broker off another one, or off the clients."""
        other = chance.choice([CLIENTS, *(each.name for each in self._nodes if each is not node)])
        await self._cut(self._pairs(node.name, [other], chance), duration_s * chance.choice((1, LONG)))

    async def _isolate(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        """Cut one broker off all others, and now and then off ZooKeeper."""
        others = [each.name for each in self._nodes if each is not node]
        duration_s *= chance.choice((1, LONG))
        cut = self._cut(self._pairs(node.name, others, chance), duration_s)
        if chance.random() < 0.5:
            await asyncio.gather(cut, self._cut_zookeeper(node, duration_s, chance))
        else:
            await cut

    def _pairs(self, name: str, others: Sequence[str], chance: random.Random) -> list[tuple[str, str]]:
        pairs = [(name, other) for other in others], [(other, name) for other in others]
        return chance.choice(pairs) if chance.random() < ONE_WAY_RATIO else [*pairs[0], *pairs[1]]

    async def _cut(self, pairs: Sequence[tuple[str, str]], duration_s: float) -> None:
        cables = self._nodes[0].cables
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
            cables.route(*pair).is_cut = True
        await asyncio.sleep(duration_s)
        for pair in pairs:
            self._cuts[pair] -= 1
            if not self._cuts[pair]:
                cables.route(*pair).heal()

    async def _slow_down(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        other = chance.choice([CLIENTS, *(each.name for each in self._nodes if each is not node)])
        routes = [node.cables.route(node.name, other), node.cables.route(other, node.name)]
        for route in routes:
            route.delay_s = chance.uniform(0, DELAY_S_MAX)
        await asyncio.sleep(duration_s * chance.choice((1, LONG)))
        for route in routes:
            route.delay_s = 0.0

    # -- ZooKeeper

    async def _cut_zookeeper(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        requests, answers = chance.choice(((True, True), (True, False), (False, True)))
        self._zookeeper.cut(node.name, requests=requests, answers=answers)
        await asyncio.sleep(duration_s * chance.choice((1, LONG)))
        self._zookeeper.heal(node.name)

    async def _reset_zookeeper(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        del duration_s, chance
        self._zookeeper.lose_connection(node.name)

    async def _expire_session(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        del node, duration_s
        if sessions := self._zookeeper.session_ids():
            self._zookeeper.expire(chance.choice(sessions))

    async def _freeze_zookeeper(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        """All sessions end when it has been frozen for longer than one."""
        del node
        self._zookeeper.freeze()
        await asyncio.sleep(duration_s * chance.choice((1, 2 * SESSION_MS / 1000 / duration_s)))
        self._zookeeper.thaw()

    async def _kill_zookeeper(self, node: SimulatedNode, duration_s: float, chance: random.Random) -> None:
        del node, chance
        self._zookeeper.kill()
        await asyncio.sleep(duration_s)
        self._zookeeper.restart()


CLUSTER_KINDS: dict[str, Callable[[ClusterFaults, SimulatedNode, float, random.Random], Awaitable[None]]] = {
    "crash": ClusterFaults._crash,
    "power_loss": ClusterFaults._lose_power,
    "stop": ClusterFaults._stop,
    "crash_all": ClusterFaults._crash_all,
    "freeze": ClusterFaults._freeze,
    "clock_jump": ClusterFaults._jump_clock,
    "disk_fails": ClusterFaults._fail_disk,
    "disk_full": ClusterFaults._fill_disk,
    "reset": ClusterFaults._reset,
    "cut": ClusterFaults._cut_pair,
    "isolate": ClusterFaults._isolate,
    "slow": ClusterFaults._slow_down,
    "zookeeper_cut": ClusterFaults._cut_zookeeper,
    "zookeeper_reset": ClusterFaults._reset_zookeeper,
    "session_ends": ClusterFaults._expire_session,
    "zookeeper_freezes": ClusterFaults._freeze_zookeeper,
    "zookeeper_down": ClusterFaults._kill_zookeeper,
}
