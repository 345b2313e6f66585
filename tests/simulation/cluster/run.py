"""One simulated run of a cluster: whole brokers on one ZooKeeper, their clients, their faults, and the checks."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol.topic_partition import TopicPartition
from tests.simulation.checker import NodeChecker
from tests.simulation.clients import CLIENTS, CLIENTS_ADDRESS, Brokers, Client, create_topic
from tests.simulation.cluster.checker import ClusterChecker
from tests.simulation.cluster.deletions import TOPIC as FLEETING_TOPIC
from tests.simulation.cluster.deletions import TRANSIENT_TOPIC, TopicRemaker, TopicRemover
from tests.simulation.cluster.faults import CLUSTER_KINDS, ClusterFaults
from tests.simulation.cluster.power import PowerLosses
from tests.simulation.cluster.reassigner import Reassigner
from tests.simulation.cluster.session_checker import SessionChecker, observed_serving
from tests.simulation.cluster.short_timeouts import short_timeouts
from tests.simulation.cluster.watermarks import observed_watermarks
from tests.simulation.consumer_members import CONSUMER_GROUP, MEMBER_CONFIGS, ConsumerMember, Ownership
from tests.simulation.consumers import Consumer
from tests.simulation.faults import Fault, draw_faults
from tests.simulation.history import History, InvariantError
from tests.simulation.ledger import Ledger
from tests.simulation.members import GROUP, Member
from tests.simulation.node import DATA, SESSION_MS, SimulatedNode
from tests.simulation.producers import Producer
from tests.simulation.run import AFTERWARDS_S, CHECK_INTERVAL_S, SETTLE_S, TOPIC, Outcome, conclude, until
from tests.simulation.simulated_network import Cables, SimulatedNetwork
from tests.simulation.transactors import CommittedReader, Transactor
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.zookeeper_model import ZooKeeperModel

#: Topic whose producer is content with the leader's acknowledgement.
LOSSY_TOPIC = "loose"
#: Topic of transactions.
TRANSACTIONAL_TOPIC = "ledger"
MIN_ISR = 2
REPLICATION_FACTOR = 3
#: Time after the last fault in which every ISR must be full again.
FULL_ISR_S = 60.0
#: Time limits between brokers: a run is too short for Kafka's 30 s.
TIMEOUT_MS = 5_000
#: Shorter than a replica may lag: a coordinator's write is undecided now and then.
COMMIT_TIMEOUT_MS = 2_000
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]
LOSSY_PARTITIONS = [TopicPartition(LOSSY_TOPIC, index) for index in range(2)]
STATE_TOPIC_PARTITIONS = [TopicPartition(topic, index) for topic in sorted(INTERNAL_TOPICS) for index in range(2)]
TRANSIENT = TopicPartition(TRANSIENT_TOPIC, 0)
TRANSACTIONAL_PARTITIONS = [TopicPartition(TRANSACTIONAL_TOPIC, index) for index in range(3)]
PRODUCERS, CONSUMERS, MEMBERS, TRANSACTORS = 3, 2, 2, 2

RunningWorker = Producer | Consumer | Member | ConsumerMember | Transactor | CommittedReader | TopicRemover
#: Weight of power losses in runs beyond what replication survives, of all other kinds together: len(CLUSTER_KINDS).
POWER_LOSSES_BEYOND = 12
#: Largest difference between a wall clock and the time, and between the rate of a broker's clocks and 1.
SKEW_MS_MAX, DRIFT_MAX = 60_000, 0.01
#: Ratio of runs in which records are synced before they are acknowledged.
FLUSH_RATIO = 0.3


@dataclass(slots=True)
class _ClusterRun:
    loop: VirtualLoop
    chance: random.Random
    faults: Sequence[Fault]
    history: History
    brokers: int
    beyond: bool
    ledger: Ledger = field(default_factory=Ledger)

    async def play(self) -> None:
        cables = Cables(self._draw())
        zookeeper = ZooKeeperModel(self._draw())
        properties = self._properties()
        nodes = [
            SimulatedNode(self.loop, cables, broker_id, self._draw(), properties, zookeeper)
            for broker_id in range(1, self.brokers + 1)
        ]
        skew = self._draw()
        for node in nodes:
            node.clock.offset_ms = skew.randint(-SKEW_MS_MAX, SKEW_MS_MAX)
            node.clock.rate = 1 + skew.uniform(-DRIFT_MAX, DRIFT_MAX)
        checkers = {node.node_id: NodeChecker(self.loop, node, self.history, is_alone=False) for node in nodes}
        checker = ClusterChecker(self.loop, zookeeper, checkers, self.history, MIN_ISR)
        sessions = SessionChecker(self.loop, {node.node_id: node for node in nodes}, zookeeper)
        with observed_watermarks(checker.watermark_changed), observed_serving(sessions), short_timeouts():
            running = [asyncio.create_task(node.keep_running()) for node in nodes]
            running += [asyncio.create_task(each.check_periodically(CHECK_INTERVAL_S)) for each in checkers.values()]
            running.append(asyncio.create_task(checker.check_periodically(CHECK_INTERVAL_S)))
            network = SimulatedNetwork(cables, CLIENTS, None, self._draw(), address=CLIENTS_ADDRESS)
            brokers = Brokers(network, [node.name for node in nodes])
            power = PowerLosses(checker, self.history, MIN_ISR, beyond=self.beyond)
            await self._work(brokers, ClusterFaults(nodes, zookeeper, power, self.history), checker, running)
            for task in running:
                task.cancel()

    async def _work(
        self,
        brokers: Brokers,
        cluster_faults: ClusterFaults,
        checker: ClusterChecker,
        running: list[asyncio.Task[None]],
    ) -> None:
        admin = Client("admin", brokers, self.history, random.Random(1))
        for topic, partitions in (
            (TOPIC, PARTITIONS),
            (LOSSY_TOPIC, LOSSY_PARTITIONS),
            (TRANSACTIONAL_TOPIC, TRANSACTIONAL_PARTITIONS),
        ):
            making = asyncio.create_task(create_topic(admin, topic, len(partitions), {}, REPLICATION_FACTOR))
            async with asyncio.timeout(SETTLE_S):
                await until(making, running)
        workers, consumers = self._workers(brokers, checker)
        committed = CommittedReader(
            "committed", brokers, self.history, self._draw(), TRANSACTIONAL_PARTITIONS, self.ledger
        )
        workers.append(committed)
        clients = [asyncio.create_task(worker.run()) for worker in workers]
        reassigner = self._reassigner(brokers)
        reassigning = asyncio.create_task(reassigner.run())
        faults = asyncio.create_task(cluster_faults.apply(self.faults))
        await until(faults, [*running, *clients, reassigning])
        await until(asyncio.create_task(asyncio.sleep(AFTERWARDS_S)), [*running, *clients, reassigning])
        reassigner.is_ending = True
        await until(reassigning, [*running, *clients])
        full = asyncio.create_task(self._full_isrs(checker))
        await until(full, [*running, *clients])
        await until(asyncio.create_task(self._settled(workers, checker)), [*running, *clients])
        for worker in workers:
            worker.is_ending = True
        async with asyncio.timeout(SETTLE_S):
            for task in clients:
                await until(task, running)
            ends = {key: end for key, end in checker.ends().items() if key in PARTITIONS}
            await until(asyncio.create_task(consumers[0].read_to_end(ends)), running)
            # A marker that was lost, or its coordinator's record, leaves a transaction open.
            if not self.history.has_lost:
                await until(asyncio.create_task(self._ended_transactions(checker)), running)
                ends = {key: end for key, end in checker.ends().items() if key in TRANSACTIONAL_PARTITIONS}
                await until(asyncio.create_task(committed.read_to_end(ends)), running)
        # A record that its leader alone had to acknowledge may be on its way.
        await until(asyncio.create_task(self._equal_logs(checker)), running)
        checker.check_all()
        checker.check_end()
        await until(asyncio.create_task(checker.check_coordinators()), running)
        await until(asyncio.create_task(checker.check_images()), running)
        if not self.history.has_lost:
            self.ledger.check_end()

    def _properties(self) -> dict[str, object]:
        flush = {} if self.history.may_lose else {"log.flush.interval.messages": 1}
        return {
            "zookeeper.connect": "model:2181",
            "log.dirs": f"{DATA}/1,{DATA}/2",
            "zookeeper.session.timeout.ms": SESSION_MS,
            "min.insync.replicas": MIN_ISR,
            "default.replication.factor": REPLICATION_FACTOR,
            "offsets.topic.replication.factor": REPLICATION_FACTOR,
            "transaction.state.log.replication.factor": REPLICATION_FACTOR,
            "offsets.topic.num.partitions": 2,
            "offsets.commit.timeout.ms": COMMIT_TIMEOUT_MS,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.min.isr": MIN_ISR,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
            **MEMBER_CONFIGS,
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.bytes": 20_000,
            "log.index.interval.bytes": 500,
            "replica.lag.time.max.ms": TIMEOUT_MS,
            "replica.socket.timeout.ms": TIMEOUT_MS,
            "replica.high.watermark.checkpoint.interval.ms": 1_000,
            "request.timeout.ms": TIMEOUT_MS,
            "controller.socket.timeout.ms": TIMEOUT_MS,
            **flush,
        }

    def _workers(self, brokers: Brokers, checker: ClusterChecker) -> tuple[list[RunningWorker], list[Consumer]]:
        history = self.history
        numbers = itertools.count()
        consumers = [Consumer(f"c{i}", brokers, history, self._draw(), PARTITIONS) for i in range(CONSUMERS)]
        workers: list[RunningWorker] = [
            Producer(f"p{i}", brokers, history, self._draw(), PARTITIONS, numbers) for i in range(PRODUCERS)
        ]
        workers.append(Producer("loose", brokers, history, self._draw(), LOSSY_PARTITIONS, numbers, acks=1))
        workers.append(TopicRemaker("remaker", brokers, history, self._draw(), numbers, REPLICATION_FACTOR))
        workers.append(TopicRemover("remover", brokers, history, self._draw(), REPLICATION_FACTOR))
        members = [
            Member(f"m{i}", brokers, history, self._draw(), PARTITIONS, checker.coordinates) for i in range(MEMBERS)
        ]
        ownership = Ownership()
        consumer_members = [
            ConsumerMember(f"n{i}", brokers, history, self._draw(), PARTITIONS, ownership, checker.coordinates)
            for i in range(MEMBERS)
        ]
        transactors = [
            Transactor(
                f"t{i}",
                brokers,
                history,
                self._draw(),
                TRANSACTIONAL_PARTITIONS,
                self.ledger,
                numbers,
                TRANSIENT,
            )
            for i in range(TRANSACTORS)
        ]
        return [*workers, *consumers, *members, *consumer_members, *transactors], consumers

    def _reassigner(self, brokers: Brokers) -> Reassigner:
        partitions = [*PARTITIONS, *LOSSY_PARTITIONS, *TRANSACTIONAL_PARTITIONS, *STATE_TOPIC_PARTITIONS]
        partitions += [TopicPartition(FLEETING_TOPIC, 0), TRANSIENT]  # deleted in the middle
        return Reassigner(
            "reassigner",
            brokers,
            self.history,
            self._draw(),
            partitions,
            broker_ids=range(1, self.brokers + 1),
            factors=(MIN_ISR, REPLICATION_FACTOR),
        )

    @staticmethod
    async def _settled(workers: Sequence[RunningWorker], checker: ClusterChecker) -> None:
        """After the last fault all groups become stable: their members have all partitions, confirmed since then."""
        groups: dict[str, list[Member | ConsumerMember]] = {
            GROUP: [each for each in workers if isinstance(each, Member)],
            CONSUMER_GROUP: [each for each in workers if isinstance(each, ConsumerMember)],
        }
        for member in itertools.chain(*groups.values()):
            member.doubt()
        for _ in range(int(SETTLE_S * 10)):
            if not (unsettled := [each for each in groups if not _is_settled(each, groups[each], checker)]):
                return
            await asyncio.sleep(0.1)
        owned = {each.name: sorted(each.owned) for each in itertools.chain(*groups.values())}
        raise InvariantError(f"{SETTLE_S} s after the last fault {unsettled} are not stable: the members have {owned}")

    @staticmethod
    async def _ended_transactions(checker: ClusterChecker) -> None:
        """After the last fault all transactions end."""
        for _ in range(int(SETTLE_S * 10)):
            if not checker.open_transactions:
                return
            await asyncio.sleep(0.1)
        raise InvariantError(f"{SETTLE_S} s after the last transaction: {checker.open_transactions}")

    async def _full_isrs(self, checker: ClusterChecker) -> None:
        """After the last fault every partition gets its leader and its ISR back, and every reassignment ends."""
        for _ in range(int(FULL_ISR_S * 10)):
            if not checker.not_in_sync:
                return
            await asyncio.sleep(0.1)
        raise InvariantError(f"{FULL_ISR_S} s after the last fault: {checker.not_in_sync}")

    async def _equal_logs(self, checker: ClusterChecker) -> None:
        """Wait as long as a follower in the ISR may take."""
        for _ in range(TIMEOUT_MS // 100):
            if not checker.unequal:
                return
            await asyncio.sleep(0.1)

    def _draw(self) -> random.Random:
        return random.Random(self.chance.random())


def _is_settled(group_id: str, members: Sequence[Member | ConsumerMember], checker: ClusterChecker) -> bool:
    owned = sorted(key for each in members for key in each.owned)
    return all(each.is_settled for each in members) and owned == PARTITIONS and checker.is_stable(group_id)


def run_cluster(
    seed: int, duration_s: float, faults: Sequence[Fault] | None = None, *, brokers: int = 3, beyond: bool = False
) -> Outcome:
    """Run one seed of a cluster, with its own faults or with given ones.

    Args:
        beyond: Whether machines lose power more often than replication survives; then only logs that agree, and an
            election that tells of the loss, are relied on.
    """
    chance = random.Random(seed)
    may_lose = beyond or chance.random() >= FLUSH_RATIO
    loop = VirtualLoop(random.Random(chance.random()))
    kinds = [*CLUSTER_KINDS, *(["power_loss"] * POWER_LOSSES_BEYOND if beyond else [])]
    drawn = draw_faults(random.Random(chance.random()), duration_s, kinds)
    faults = drawn if faults is None else faults
    history = History(may_lose)
    history.lossy_topics.add(LOSSY_TOPIC)
    play = _ClusterRun(loop, random.Random(chance.random()), faults, history, brokers, beyond)
    return conclude(loop, play.play(), seed, faults, history)
