"""One machine of the simulation, and the broker processes that run on it, one after the other."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any

from headwater.logtier.broker import Broker, BrokerStartError
from headwater.logtier.broker_stages import BrokerParts
from headwater.logtier.config import BrokerConfig
from headwater.logtier.machine import Machine, configured_store
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.shared_store import SharedMetadataStore
from headwater.logtier.metadata.zookeeper.store import ZooKeeperStore
from headwater.logtier.runtime.disk import Disk
from headwater.logtier.runtime.read_ahead import ReadAhead, Slice
from tests.simulation.file_system import FileSystem
from tests.simulation.simulated_disk import SimulatedDisk
from tests.simulation.simulated_network import Cables, SimulatedNetwork
from tests.simulation.virtual_loop import PROCESS, START_S, Process, VirtualLoop
from tests.simulation.zookeeper_model import ZooKeeperModel

logger = logging.getLogger(__name__)

DATA = "/data"
PORT = 9092
#: Wall-clock time at the start of a run.
START_MS = 1_700_000_000_000
#: Pause before another start of a broker that could not start, or whose disk failed.
RESTART_S = 0.5
#: Session timeout at ZooKeeper.
SESSION_MS = 6_000
#: Interval at which the end of a process is noticed.
POLL_S = 0.01


class SimulatedClock:
    """The clocks of one machine: the wall clock can jump, the monotonic one cannot.

    Attributes:
        offset_ms: Of the wall clock, beside its rate.
        rate: Seconds of both clocks in a virtual second; timers of the event loop have virtual seconds.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.offset_ms = 0
        self.rate = 1.0

    def now_ms(self) -> int:
        return START_MS + self.offset_ms + int((self._loop.time() - START_S) * self.rate * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * self.rate * 1000)


class AlwaysInMemory(ReadAhead):
    """A page cache that holds everything."""

    def is_cold(self, records: Slice) -> bool:
        return False

    def is_cold_far_ahead(self, records: Slice) -> bool:
        return False


class Incarnation:
    """One run of a broker: its process, and what of the machine it holds."""

    def __init__(self, node: SimulatedNode, number: int) -> None:
        self.number = number
        self.process = Process(f"{node.name}#{number}")
        chance = random.Random(node.chance.random())
        self.network = SimulatedNetwork(
            node.cables,
            node.name,
            self.process,
            random.Random(chance.random()),
            node.file_system,
            address=f"10.0.1.{node.node_id}",
        )
        self.disk = SimulatedDisk(node.file_system, node.clock, random.Random(chance.random()), node.on_write)
        self.broker = Broker(
            node.config,
            Machine(
                clock=node.clock,
                prng=random.Random(chance.random()),
                random_bytes=random.Random(chance.random()).randbytes,
                disk=self.disk,
                network=lambda _: self.network,
                outgoing=self.network,
                read_ahead=AlwaysInMemory,
                metadata_store=node.open_store,
                boot_id=lambda: node.boot_id,
            ),
        )
        self.context = Context()
        self.context.run(PROCESS.set, self.process)
        self.is_serving = False
        #: A reference to each task of the process: what a killed one left is never run, nor collected, before the end.
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task in the process."""
        return asyncio.get_running_loop().create_task(work, context=self.context)


class SimulatedNode:
    """A machine whose broker is started again whenever it is down and may run.

    Attributes:
        folders: Its log folders.
        file_system: What survives its processes.
        boot_id: Of the machine's present boot.
        may_run: Whether a broker is started when none runs.
        on_write: Called with the path of each changed file.
        on_serving: Called when a broker has recovered and serves, before any client reaches it.
        on_thaw: Called when a frozen process is about to go on, with the seconds for which it was frozen.
        store: The client of ZooKeeper of the newest process; None on a node of its own.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        cables: Cables,
        node_id: int,
        chance: random.Random,
        properties: Mapping[str, object],
        zookeeper: ZooKeeperModel | None = None,
    ) -> None:
        """`zookeeper` holds the metadata of a cluster; without it the node is one of its own."""
        self.name = name = f"broker-{node_id}"
        self.node_id = node_id
        self.cables = cables
        self.zookeeper = zookeeper
        self.chance = chance
        self.clock = SimulatedClock(loop)
        self.file_system = FileSystem(random.Random(chance.random()))
        self.config = BrokerConfig.from_properties(
            {"node.id": node_id, "log.dirs": DATA, "listeners": f"PLAINTEXT://{name}:{PORT}", **properties}
        )
        self.folders = self.config.log_dirs
        self.boot_id = f"{name}-0"
        self.may_run = True
        self.store: ZooKeeperStore | None = None
        self.current: Incarnation | None = None
        self.past: list[Incarnation] = []
        self.on_write: Callable[[str], None] = lambda _: None
        self.on_serving: Callable[[Incarnation], None] = lambda _: None
        self.on_thaw: Callable[[float], None] = lambda _: None
        self._frozen_at_s = 0.0
        self._loop = loop

    def open_store(self, config: BrokerConfig, disk: Disk, on_failure: Callable[[str], None]) -> OrderedMetadataStore:
        """Create the metadata store of a broker: its client of ZooKeeper, or its own files."""
        if self.zookeeper is None:
            return configured_store(config, disk, on_failure)
        self.store = self.zookeeper.store(self.name, SESSION_MS)
        return SharedMetadataStore(self.store)

    @property
    def serving(self) -> Incarnation | None:
        """The broker that serves, if any."""
        current = self.current
        return current if current is not None and current.is_serving else None

    @property
    def parts(self) -> BrokerParts | None:
        """The parts of the broker that serves, if any."""
        return self.serving.broker.parts if self.serving is not None else None

    async def keep_running(self) -> None:
        """Start the broker whenever it may run and does not, until cancelled."""
        while True:
            if self.may_run and self.current is None:
                await self._run_once()
            await asyncio.sleep(RESTART_S)

    async def _run_once(self) -> None:
        incarnation = self.current = Incarnation(self, len(self.past))
        self.past.append(incarnation)
        starting = incarnation.spawn(incarnation.broker.start())
        await self._until_done(starting, incarnation)
        if incarnation.process.is_dead:
            if starting.done() and not starting.cancelled():
                starting.exception()  # seen: it was killed before anybody asked
            return
        try:
            starting.result()
        except (BrokerStartError, OSError) as error:
            logger.info("%s could not start: %s", incarnation.process.name, error)
            self.crash()
            return
        self.on_serving(incarnation)
        incarnation.is_serving = True
        incarnation.network.open()
        failed = incarnation.spawn(incarnation.broker.failed())
        while not incarnation.process.is_dead:
            if failed.done():
                logger.info("%s failed: %s", incarnation.process.name, failed.result())
                self.crash()
            await asyncio.sleep(POLL_S)

    def crash(self, *, silently: bool = False) -> None:
        """Kill the process, as kill -9 does: its locks, ports and connections go, and the page cache stays.

        Args:
            silently: Whether its peers learn nothing of it.
        """
        incarnation, self.current = self.current, None
        if incarnation is None:
            return
        incarnation.disk.cut()
        incarnation.network.end(silently=silently)
        incarnation.process.kill()
        if self.zookeeper is not None:
            self.zookeeper.crash(self.name)
        incarnation.is_serving = False
        incarnation.tasks = asyncio.all_tasks(self._loop)

    def lose_power(self) -> None:
        """End the machine: its peers learn nothing, and of the files stays what is on the device."""
        self.crash(silently=True)
        self.file_system.lose_power()
        self.boot_id = f"{self.name}-{len(self.past)}"

    async def stop(self) -> None:
        """Stop the broker cleanly."""
        incarnation = self.serving
        if incarnation is not None and not incarnation.process.is_frozen:
            stopping = incarnation.spawn(incarnation.broker.stop())
            await self._until_done(stopping, incarnation)
            if not incarnation.process.is_dead:
                stopping.result()
                self.crash()

    async def _until_done(self, task: asyncio.Task[Any], incarnation: Incarnation) -> None:
        """Wait for a task of a process, or for the end of the process, which its tasks do not notice."""
        while not (task.done() or incarnation.process.is_dead):  # noqa: ASYNC110 (a killed task tells nobody)
            await asyncio.sleep(POLL_S)

    def freeze(self) -> None:
        """Hold the process, as SIGSTOP does."""
        if self.current is not None and not self.current.process.is_frozen:
            self.current.process.is_frozen = True
            self._frozen_at_s = self._loop.time()

    def thaw(self) -> None:
        """Continue a frozen process."""
        if self.current is not None and self.current.process.is_frozen:
            self.on_thaw(self._loop.time() - self._frozen_at_s)
            self._loop.thaw(self.current.process)
