"""ZooKeeper away: three whole brokers without it for ten minutes, frozen beyond the session, or cut off from it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey, kio_request
from headwater.logtier.cluster.session_knowledge import SessionKnowledge
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.log.log import Log
from headwater.logtier.metadata.image import TopicImage
from headwater.logtier.metadata.store import SessionState
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import to_timedelta
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_replication import PartitionReplication
from headwater.logtier.state_topic.topic import partition_for
from tests.simulation.checker import NodeChecker
from tests.simulation.client_connection import ClientConnection
from tests.simulation.clients import CLIENTS, CLIENTS_ADDRESS, Brokers, Client, create_topic
from tests.simulation.cluster.checker import ClusterChecker
from tests.simulation.cluster.coordinated import Coordinated, coordinated_by
from tests.simulation.cluster.session_checker import SessionChecker, observed_serving
from tests.simulation.cluster.watermarks import observed_watermarks
from tests.simulation.consumer_members import MEMBER_CONFIGS, ConsumerMember, Ownership
from tests.simulation.consumers import Consumer
from tests.simulation.group_offsets import offset_commit, offset_fetch
from tests.simulation.history import History
from tests.simulation.ledger import Ledger, TransactionOutcome
from tests.simulation.members import Member
from tests.simulation.node import DATA, PORT, SESSION_MS, SimulatedNode
from tests.simulation.producers import Producer
from tests.simulation.run import conclude, until
from tests.simulation.simulated_network import Cables, SimulatedNetwork
from tests.simulation.transactors import CommittedReader, Transactor
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.zookeeper_model import ZooKeeperModel

TOPIC, LONELY, TRANSACTIONAL_TOPIC = "flights", "lonely", "ledger"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]
TRANSACTIONAL_PARTITIONS = [TopicPartition(TRANSACTIONAL_TOPIC, index) for index in range(3)]
SESSION_S = SESSION_MS / 1000
LAG_S = 5.0
PATIENCE_S = 60.0
#: Longer than any answer of a broker may take: Kafka's clients give up after request.timeout.ms.
REQUEST_TIMEOUT_S = 30.0


class SlowProducer(Producer):
    """A producer of a batch a second or so: ten minutes of them cost little."""

    async def think(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.2, 1.0))


class SlowConsumer(Consumer):
    """A consumer with the same pace."""

    async def think(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.2, 1.0))


class SlowTransactor(Transactor):
    """A transactional producer with the same pace."""

    async def think(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.2, 1.0))


class SlowCommittedReader(CommittedReader):
    """A reader of committed records with the same pace."""

    async def think(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.2, 1.0))


Playing = Producer | Consumer | Member | ConsumerMember | Transactor | CommittedReader


class Away:
    """Three brokers, their ZooKeeper, and clients that work all the time."""

    def __init__(self, loop: VirtualLoop, history: History, seed: int) -> None:
        self._chance = random.Random(seed)
        self.loop = loop
        self.history = history
        self.cables = Cables(self._draw())
        self.zookeeper = ZooKeeperModel(self._draw())
        self.nodes = {
            each: SimulatedNode(loop, self.cables, each, self._draw(), self._properties(), self.zookeeper)
            for each in (1, 2, 3)
        }
        checkers = {each: NodeChecker(loop, node, history, is_alone=False) for each, node in self.nodes.items()}
        self.checker = ClusterChecker(loop, self.zookeeper, checkers, history, 2)
        self.sessions = SessionChecker(loop, self.nodes, self.zookeeper)
        network = SimulatedNetwork(self.cables, CLIENTS, None, self._draw(), address=CLIENTS_ADDRESS)
        self.brokers = Brokers(network, [node.name for node in self.nodes.values()])
        self.admin = Client("admin", self.brokers, history, self._draw())
        self.members: list[Member | ConsumerMember] = []
        self.ledger = Ledger()
        self.running: list[asyncio.Task[None]] = []

    def _draw(self) -> random.Random:
        return random.Random(self._chance.random())

    @staticmethod
    def _properties() -> dict[str, object]:
        return {
            "zookeeper.connect": "model:2181",
            "log.dirs": DATA,
            "zookeeper.session.timeout.ms": SESSION_MS,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            # Each broker coordinates some.
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.num.partitions": 3,
            "transaction.state.log.min.isr": 2,
            **MEMBER_CONFIGS,
            "replica.lag.time.max.ms": int(LAG_S * 1000),
            "replica.socket.timeout.ms": int(LAG_S * 1000),
            "replica.high.watermark.checkpoint.interval.ms": 1_000,
            "group.initial.rebalance.delay.ms": 0,
        }

    async def play(self, scenario: Callable[[Away], Awaitable[None]]) -> None:
        with observed_watermarks(self.checker.watermark_changed), observed_serving(self.sessions):
            self.running = [asyncio.create_task(node.keep_running()) for node in self.nodes.values()]
            self.running.append(asyncio.create_task(self.checker.check_periodically(1.0)))
            replicas = {TOPIC: 3, LONELY: 1, TRANSACTIONAL_TOPIC: 3}
            for topic, factor in replicas.items():
                await self.do(create_topic(self.admin, topic, len(PARTITIONS), {}, factor))
            workers, reader, committed = self._workers()
            clients = [asyncio.create_task(worker.run()) for worker in workers]
            self.running += clients
            await self.until(lambda: not self.checker.not_in_sync and all(each.is_settled for each in self.members))
            await self.progress()
            await self.do(scenario(self))
            await self.until(lambda: not self.checker.not_in_sync and all(each.is_settled for each in self.members))
            await self.progress()
            for worker in workers:
                worker.is_ending = True
            for task in clients:
                await until(task, [each for each in self.running if each not in clients])
                self.running.remove(task)
            await self.do(reader.read_to_end({key: self.checker.ends()[key] for key in PARTITIONS}))
            await self.until(lambda: not self.checker.open_transactions)
            await self.do(committed.read_to_end({key: self.checker.ends()[key] for key in TRANSACTIONAL_PARTITIONS}))
            self.checker.check_all()
            self.ledger.check_end()
            for task in self.running:
                task.cancel()

    def _workers(self) -> tuple[list[Playing], Consumer, CommittedReader]:
        """All clients, and those of them that read to the end afterwards."""
        brokers, history, numbers, ownership = self.brokers, self.history, itertools.count(), Ownership()
        producers = [SlowProducer(f"p{i}", brokers, history, self._draw(), PARTITIONS, numbers) for i in range(2)]
        reader = SlowConsumer("c", brokers, history, self._draw(), PARTITIONS)
        coordinates = self.checker.coordinates
        self.members = [
            *(Member(f"m{i}", brokers, history, self._draw(), PARTITIONS) for i in range(2)),
            *(
                ConsumerMember(f"n{i}", brokers, history, self._draw(), PARTITIONS, ownership, coordinates)
                for i in range(2)
            ),
        ]
        keys = TRANSACTIONAL_PARTITIONS
        transactor = SlowTransactor("t", brokers, history, self._draw(), keys, self.ledger, numbers)
        committed = SlowCommittedReader("r", brokers, history, self._draw(), keys, self.ledger)
        return [*producers, reader, *self.members, transactor, committed], reader, committed

    async def do(self, work: Awaitable[None]) -> None:
        """Await work, or the failure of a broker or of a client."""
        async with asyncio.timeout(1_000):
            await until(asyncio.ensure_future(work), self.running)

    async def until(self, is_reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(patience_s):
            while not is_reached():  # noqa: ASYNC110 (virtual time costs nothing)
                await asyncio.sleep(0.05)

    @property
    def acknowledged(self) -> dict[TopicPartition, int]:
        return {key: len(self.history.acknowledged.get(key, {})) for key in PARTITIONS}

    @property
    def committed(self) -> int:
        """The number of transactions that were committed."""
        outcomes = [each.outcome for of_producer in self.ledger.by_producer.values() for each in of_producer]
        return outcomes.count(TransactionOutcome.COMMITTED)

    async def progress(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until a further batch is acknowledged in each partition, and a transaction is committed."""
        before, committed = self.acknowledged, self.committed
        await self.until(lambda: all(self.acknowledged[key] > before[key] for key in PARTITIONS), patience_s)
        await self.until(lambda: self.committed > committed, patience_s)

    def partitions(self, broker_id: int) -> Iterator[Partition[Log]]:
        """The replicas of a broker."""
        parts = self.nodes[broker_id].parts
        assert parts is not None
        for topic in parts.metadata.image.topics.values():
            for index in range(len(topic.partitions)):
                found = parts.replica_manager.usable_partition(TopicPartition(topic.name, index))
                if found is not None:
                    yield found

    def led(self, broker_id: int) -> set[TopicPartition]:
        return {each.topic_partition for each in self.partitions(broker_id) if each.is_leader}

    def epochs(self) -> dict[TopicPartition, int]:
        return {each.topic_partition: each.leader_epoch for each in self.partitions(1)}

    def metadata(self) -> dict[int, dict[str, TopicImage]]:
        """What each broker knows of the topics: leaders, ISRs and epochs of their partitions, configs."""
        return {
            each: dict(node.parts.metadata.image.topics) for each, node in self.nodes.items() if node.parts is not None
        }

    async def answer(self, request: Request[Any], broker_id: int) -> Any:
        """The answer of one broker within the time limit of Kafka's clients."""
        connection = ClientConnection("patient")
        await self.brokers.network.connect(self.nodes[broker_id].name, PORT, connection)
        return await connection.request(request, REQUEST_TIMEOUT_S)

    async def coordinated(self, broker_id: int) -> Coordinated:
        """A group, with a member that waits, and an open transaction that a broker coordinates."""

        async def ask(request: Request[Any]) -> Any:
            return await self.answer(request, broker_id)

        return await coordinated_by(self.nodes[broker_id].name, self.admin, ask, PARTITIONS[0])


async def coordinates_nothing(coordinated: Coordinated) -> None:
    """The broker says that it is no coordinator, to the member that waits as well as to all that ask."""
    codes = await coordinated.codes(with_end=True)
    assert codes == dict.fromkeys(codes, ErrorCode.not_coordinator)
    assert coordinated.joining is not None
    assert await coordinated.joining == ErrorCode.not_coordinator


def create(name: str) -> Request[Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 3, "assignments": (), "configs": ()}
    values = {"topics": (topic,), "timeout": to_timedelta(5_000), "validate_only": False}
    return kio_request(ApiKey.CREATE_TOPICS, 7, values)


def violation(scenario: Callable[[Away], Awaitable[None]], seed: int) -> str | None:
    loop = VirtualLoop(random.Random(seed))
    history = History(may_lose=True)

    async def play() -> None:
        await Away(loop, history, seed).play(scenario)

    return conclude(loop, play(), seed, [], history).violation


def run(scenario: Callable[[Away], Awaitable[None]], seed: int = 1) -> None:
    assert violation(scenario, seed) is None


async def without_zookeeper(away: Away, seconds: float) -> None:
    """Nothing but metadata stops while ZooKeeper is down; no session ends, no leadership moves."""
    sessions, epochs, metadata = away.zookeeper.session_ids(), away.epochs(), away.metadata()
    assert metadata[1] == metadata[2] == metadata[3]
    assert len(metadata[1]) == 5, "two of them of groups and of transactions"
    away.zookeeper.kill()
    ends_s = away.loop.time() + seconds
    for broker_id in (1, 2, 3):
        answer = await away.answer(create(f"t{broker_id}"), broker_id)
        assert int(answer.topics[0].error_code) in (ErrorCode.request_timed_out, ErrorCode.not_controller)
    while away.loop.time() < ends_s:
        # Each partition is written to, each group keeps its members.
        await away.progress(20.0)
        assert all(each.is_settled for each in away.members)
        assert away.metadata() == metadata
    away.zookeeper.restart()
    await away.do(create_topic(away.admin, "after", 1, {}, 3))
    await away.until(lambda: all("after" in topics for topics in away.metadata().values()))
    after = {each: {topic: topics[topic] for topic in metadata[each]} for each, topics in away.metadata().items()}
    assert after == metadata
    assert away.zookeeper.session_ids() == sessions
    assert {key: epoch for key, epoch in away.epochs().items() if key in epochs} == epochs
    assert away.sessions.appended_without_store > seconds / 2


def test_a_minute_without_zookeeper_costs_no_session_and_no_progress() -> None:
    run(lambda away: without_zookeeper(away, 60.0))


@pytest.mark.slow
def test_ten_minutes_without_zookeeper_cost_no_session_and_no_progress() -> None:
    run(lambda away: without_zookeeper(away, 600.0))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_zookeeper_that_is_frozen_beyond_the_session_costs_elections_alone(seed: int) -> None:
    """All sessions end at once when it goes on: every broker learns of it, registers again, and leads in new epochs."""

    async def scenario(away: Away) -> None:
        sessions, epochs = away.zookeeper.session_ids(), away.epochs()
        away.zookeeper.freeze()
        await asyncio.sleep(2.5 * SESSION_S)
        await away.progress()
        away.zookeeper.thaw()
        await away.until(lambda: len(away.zookeeper.session_ids()) == 3)
        await away.until(lambda: not away.checker.not_in_sync)
        assert not set(away.zookeeper.session_ids()) & set(sessions)
        await away.progress(10.0)
        assert all(away.epochs()[key] > epochs[key] for key in PARTITIONS)

    run(scenario, seed)


async def cut_off_leader(away: Away) -> None:
    """Clients still reach it: they must not read old data as the leader's for as long as the cut lasts."""
    coordinated = await away.coordinated(1)
    before = away.led(1)
    assert before & set(PARTITIONS)
    cut(away, 1)
    away.zookeeper.cut(away.nodes[1].name)
    # The lost connection is noticed within a session time, and the time within half a lag time.
    await asyncio.sleep(3 * SESSION_S + 1.5 * LAG_S)
    assert {key for key in away.led(1) if key.topic != LONELY} == set()
    assert {key for key in away.led(1) if key.topic == LONELY} == {key for key in before if key.topic == LONELY}
    assert all(each.is_fenced for each in away.partitions(1) if each.topic_partition in before & set(PARTITIONS))
    await coordinates_nothing(coordinated)
    await away.progress()
    heal(away, 1)
    away.zookeeper.heal(away.nodes[1].name)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_leader_that_hears_nobody_leads_no_more_until_it_hears_somebody(seed: int) -> None:
    run(cut_off_leader, seed)


async def without_session(away: Away) -> None:
    """Its session is over, and ZooKeeper is out of its reach before it can register again."""
    coordinated = await away.coordinated(1)
    node = away.nodes[1]
    before = node.store
    assert before is not None
    away.zookeeper.expire(before.session_id)
    while before.state is not SessionState.LOST:  # noqa: ASYNC110 (a turn of the event loop, no more)
        await asyncio.sleep(0.0001)
    away.zookeeper.cut(node.name)
    await asyncio.sleep(SESSION_S)
    assert away.led(1) == set(), "also where it is alone in the ISR"
    await coordinates_nothing(coordinated)
    await away.progress()
    away.zookeeper.heal(node.name)
    await away.until(lambda: any(key.topic == LONELY for key in away.led(1)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_broker_without_a_session_leads_nothing_until_it_is_registered_again(seed: int) -> None:
    run(without_session, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_without_zookeeper_a_cut_between_brokers_ends_no_leadership_for_good(seed: int) -> None:
    """The members of the ISR know of no other leader when they are back: acks=all goes on before ZooKeeper does."""

    async def scenario(away: Away) -> None:
        epochs = away.epochs()
        led = {each: away.led(each) for each in away.nodes}
        away.zookeeper.kill()
        cut(away, 1)
        await asyncio.sleep(3 * SESSION_S + 1.5 * LAG_S)
        assert {key for key in away.led(1) if key.topic != LONELY} == set()
        heal(away, 1)
        await away.progress()
        await away.until(lambda: {each: away.led(each) for each in away.nodes} == led)
        assert all(each.is_settled for each in away.members)
        away.zookeeper.restart()
        await away.until(lambda: not away.checker.not_in_sync)
        assert all(away.epochs()[key] == epochs[key] for key in PARTITIONS)

    run(scenario, seed)


async def deposed_coordinator(away: Away) -> None:
    """Cut off from ZooKeeper alone, it does not know that its session has ended, nor what the next one has committed.

    An application that reads an older offset processes records twice, in transactions as well (found by `make faults`).
    """
    group, key = next(
        (f"g{i}", TopicPartition(OFFSETS_TOPIC, partition_for(f"g{i}", 3)))
        for i in range(100)
        if TopicPartition(OFFSETS_TOPIC, partition_for(f"g{i}", 3)) in away.led(1)
    )
    assert await commit(away, group, 1, 1) == ErrorCode.none
    assert await committed_offset(away, group, 1) == 1
    away.zookeeper.cut(away.nodes[1].name)
    await away.until(lambda: leader_of(away, 2, key) in (2, 3))
    other = leader_of(away, 2, key)
    async with asyncio.timeout(PATIENCE_S):
        while await commit(away, group, 2, other) != ErrorCode.none:  # noqa: ASYNC110 (of another broker)
            await asyncio.sleep(0.05)
    assert key in away.led(1), "it knows of nothing"
    assert await committed_offset(away, group, 1) == ErrorCode.unstable_offset_commit.name
    assert await committed_offset(away, group, other) == 2
    away.zookeeper.heal(away.nodes[1].name)


def leader_of(away: Away, broker_id: int, key: TopicPartition) -> int:
    """The leader of a partition as a broker knows it."""
    return away.metadata()[broker_id][key.topic].partitions[key.partition].leader


async def commit(away: Away, group: str, offset: int, broker_id: int) -> int:
    answer = await away.answer(offset_commit(group, PARTITIONS[0], offset), broker_id)
    return int(answer.topics[0].partitions[0].error_code)


async def committed_offset(away: Away, group: str, broker_id: int) -> int | str:
    """What a broker says of a group's offset, or the name of its error."""
    answer = await away.answer(offset_fetch(group, PARTITIONS[:1]), broker_id)
    [partition] = answer.topics[0].partitions
    if code := answer.error_code or partition.error_code:
        return ErrorCode(int(code)).name
    return int(partition.committed_offset)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_coordinator_that_was_deposed_answers_no_older_offset(seed: int) -> None:
    run(deposed_coordinator, seed)


async def frozen_broker(away: Away) -> None:
    """Its connection counts as lost some milliseconds after it goes on, and its session as over some more later."""
    node = away.nodes[1]
    before = node.store
    assert before is not None
    session = before.session_id
    node.freeze()
    await asyncio.sleep(2 * SESSION_S)
    await away.progress()
    node.thaw()
    await away.until(lambda: before.session_id not in (0, session))


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_broker_that_was_frozen_beyond_its_session_answers_nothing_as_what_it_was(seed: int) -> None:
    run(frozen_broker, seed)


def cut(away: Away, broker_id: int) -> None:
    for a, b in _pairs(away, broker_id):
        away.cables.route(a, b).is_cut = True


def heal(away: Away, broker_id: int) -> None:
    for a, b in _pairs(away, broker_id):
        away.cables.route(a, b).heal()


def _pairs(away: Away, broker_id: int) -> list[tuple[str, str]]:
    name = away.nodes[broker_id].name
    others = [node.name for node in away.nodes.values() if node.node_id != broker_id]
    return [*((name, other) for other in others), *((other, name) for other in others)]


# -- planted bugs ------------------------------------------------------------------------------------------------------


def nothing_follows_from_the_end_of_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionReplication, "fence", lambda _: None)


def no_pause_is_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionKnowledge, "runs", lambda *_: False)


def a_leader_that_hears_nobody_leads_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_is_isr_silent", lambda _: False)


@pytest.mark.parametrize(
    ("plant", "scenario", "message"),
    [
        (nothing_follows_from_the_end_of_a_session, without_session, "although it knows that its session is over"),
        (no_pause_is_noticed, frozen_broker, "in a session that ended while it was frozen"),
        (a_leader_that_hears_nobody_leads_on, cut_off_leader, "AssertionError"),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[Away], Awaitable[None]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert message in (violation(scenario, seed=1) or "nothing")
