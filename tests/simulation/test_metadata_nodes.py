"""Controllers come and go, brokers register again, and every image ends as the store is."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headwater.logtier.controller.commands import NewPartitions, NewTopic
from headwater.logtier.controller.registration import BrokerIdInUseError
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataDelta, MetadataImage
from headwater.logtier.metadata.store import BadVersionError, MetadataStoreError, Operation
from headwater.logtier.protocol.errors import ErrorCode
from tests.simulation.metadata_node import SESSION_S, MetadataNode
from tests.simulation.virtual_loop import VirtualLoop, drop
from tests.simulation.zookeeper_model import ZooKeeperModel

PATIENCE_S = 60.0


class Cluster:
    """Three brokers on one ZooKeeper."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.model = ZooKeeperModel(random.Random(seed + 1))
        self.nodes: dict[int, MetadataNode] = {}
        self.lives = 0

    async def begin(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.lives += 1
            self.nodes[broker_id] = MetadataNode(self.model, broker_id, self.lives, self.chance)
        await asyncio.gather(*(self.nodes[each].start() for each in broker_ids))

    def crash(self, broker_id: int) -> None:
        self.nodes.pop(broker_id).crash()

    @property
    def controllers(self) -> list[int]:
        return [each.broker_id for each in self.nodes.values() if each.controller.is_active]

    async def controller(self) -> MetadataNode:
        """The one controller, that every broker knows."""
        await self.until(
            lambda: (
                len(self.controllers) == 1
                and {node.image.controller_id for node in self.nodes.values()} == set(self.controllers)
            )
        )
        return self.nodes[self.controllers[0]]

    async def until(self, is_reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_reached():  # noqa: ASYNC110 (virtual time costs nothing)
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Wait until every image is that of the store, and knows exactly the brokers that run."""
        await self.controller()
        await self.until(
            lambda: (
                all(set(node.image.brokers) == set(self.nodes) for node in self.nodes.values())
                and len({node.follower.applied for node in self.nodes.values()}) == 1
            )
        )
        stored = MetadataImage().apply([(path, node.data) for path, node in self.model.nodes().items()])
        for node in self.nodes.values():
            assert node.image == stored
        assert all(not node.failures for node in self.nodes.values())


def run(scenario: Callable[[Cluster], Awaitable[None]], seed: int = 1) -> None:
    loop = VirtualLoop(random.Random(seed))

    async def main() -> None:
        cluster = Cluster(seed)
        await cluster.begin(1, 2, 3)
        await cluster.settled()
        await scenario(cluster)
        for node in cluster.nodes.values():
            await node.stop()

    try:
        loop.run_until_complete(main())
    finally:
        drop(loop)


async def create(node: MetadataNode, *names: str, partitions: int = 3) -> None:
    results = await node.spawn(node.controller.create_topics([NewTopic(name, partitions, 3) for name in names]))
    assert [result.error for result in results] == [None] * len(names)


def test_one_of_the_brokers_is_controller_and_all_know_every_broker() -> None:
    async def scenario(cluster: Cluster) -> None:
        controller = await cluster.controller()
        for node in cluster.nodes.values():
            assert set(node.image.brokers) == {1, 2, 3}
            assert node.image.cluster_id == controller.image.cluster_id != ""
        epochs = {node.registrar.epoch for node in cluster.nodes.values()}
        assert epochs == {each.epoch for each in controller.image.brokers.values()}
        other = next(node for node in cluster.nodes.values() if node is not controller)
        (refused,) = await other.spawn(other.controller.create_topics([NewTopic("t", 1, 1)]))
        assert refused.error is not None
        assert refused.error.code is ErrorCode.not_controller

    run(scenario)


def test_a_controller_deposed_during_its_multi_changes_nothing_when_the_multi_arrives() -> None:
    """The next controller may have decided something else: only the check of the epoch, in the same multi, refuses it.

    This broker has a new session by then, and knows the end of the list of changes.
    """

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.controller()
        await create(first, "t")
        append, begun, held = first.store.append, asyncio.Event(), asyncio.Event()
        refusals: list[MetadataStoreError] = []

        async def late_append(operations: Sequence[Operation]) -> int:
            if not any("late" in each.path for each in operations):
                return await append(operations)
            begun.set()
            await held.wait()
            try:
                return await append(operations)
            except MetadataStoreError as error:
                refusals.append(error)
                raise

        first.store.append = late_append  # type: ignore[method-assign]
        session_id = first.store.session_id
        creating = first.spawn(first.controller.create_topics([NewTopic("late", 1, 3)]))
        await begun.wait()
        cluster.model.expire(session_id)
        await cluster.until(lambda: first.store.session_id not in (0, session_id))
        await cluster.until(lambda: bool(cluster.controllers) and cluster.controllers != [first.broker_id])
        await cluster.settled()
        assert not creating.done()
        nodes = cluster.model.nodes()
        held.set()
        [result] = await creating
        assert result.error is not None
        assert result.error.code is ErrorCode.not_controller
        [refusal] = refusals
        assert (type(refusal), refusal.path) == (BadVersionError, paths.CONTROLLER_EPOCH)
        assert cluster.model.nodes() == nodes
        await cluster.settled()

    for seed in range(1, 4):
        run(scenario, seed)


def test_a_broker_with_a_full_disk_becomes_controller_after_it_has_read_a_topic_that_it_cannot_create() -> None:
    """It is the last one, and its first attempt finds changes of the controller before that it has not read."""

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.controller()
        heir, other = (node for node in cluster.nodes.values() if node is not first)

        def create_logs(delta: MetadataDelta) -> None:
            if delta.created:
                raise OSError(errno.ENOSPC, "No space left on device")

        heir.cache.subscribe(create_logs)
        cluster.crash(other.broker_id)
        cluster.model.cut(heir.name)
        await first.spawn(first.controller.create_topics([NewTopic("t", 1, 1)]))
        cluster.crash(first.broker_id)
        await asyncio.sleep(SESSION_S + 1)
        cluster.model.heal(heir.name)
        await cluster.until(lambda: cluster.controllers == [heir.broker_id])
        await cluster.until(lambda: set(heir.image.brokers) == {heir.broker_id})

    run(scenario)


def test_a_killed_controller_is_replaced_and_the_topics_go_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.controller()
        await create(first, "t")
        epoch = first.controller.epoch
        cluster.crash(first.broker_id)
        await cluster.until(lambda: bool(cluster.controllers))
        second = await cluster.controller()
        assert second.controller.epoch > epoch
        await cluster.settled()
        for partition in second.image.topics["t"].partitions:
            assert first.broker_id not in partition.isr
            assert partition.leader in cluster.nodes
        await cluster.begin(first.broker_id)
        await cluster.settled()
        await create(second, "u")
        assert set(second.image.brokers) == {1, 2, 3}

    run(scenario)


def test_leaders_move_when_a_broker_dies_and_eligible_replicas_lead_again_when_all_had_died() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(await cluster.controller(), "t", partitions=6)
        order = [1, 2, 3]
        cluster.chance.shuffle(order)
        *others, last = order
        for broker_id in others:
            cluster.crash(broker_id)
            await cluster.settled()
        image = cluster.nodes[last].image
        assert {partition.leader for partition in image.topics["t"].partitions} == {last}
        assert {partition.isr for partition in image.topics["t"].partitions} == {(last,)}
        assert {partition.elr for partition in image.topics["t"].partitions} == {(others[1],)}
        await cluster.begin(*others)
        await cluster.settled()

    run(scenario)


def test_the_partitions_of_coordinators_get_another_leader() -> None:
    async def scenario(cluster: Cluster) -> None:
        await create(await cluster.controller(), "__consumer_offsets", partitions=3)
        cluster.crash(2)
        await cluster.settled()
        image = next(iter(cluster.nodes.values())).image
        for partition in image.topics["__consumer_offsets"].partitions:
            assert partition.leader == partition.replicas[partition.replicas[0] == 2]
            assert partition.isr == tuple(each for each in partition.replicas if each != 2)

    run(scenario)


def test_a_suspended_controller_acts_no_more_and_a_second_one_is_not_disturbed_by_it() -> None:
    """On SUSPENDED the controller stops, and does not wait for LOST."""

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.controller()
        cluster.model.cut(first.name)
        others = [node for node in cluster.nodes.values() if node is not first]
        await cluster.until(lambda: any(node.controller.is_active for node in others))
        await cluster.until(lambda: not first.controller.is_active)
        (refused,) = await first.spawn(first.controller.create_topics([NewTopic("t", 1, 1)]))
        assert refused.error is not None
        cluster.model.heal(first.name)
        await cluster.settled()
        assert first.image.brokers[first.broker_id].epoch == first.registrar.epoch

    run(scenario)


def test_all_sessions_end_at_once_and_the_cluster_comes_back() -> None:
    """All sessions end at once, as those of a ZooKeeper that was frozen do when it wakes."""

    async def scenario(cluster: Cluster) -> None:
        await create(await cluster.controller(), "t")
        cluster.model.freeze()
        await asyncio.sleep(3 * SESSION_S)
        cluster.model.thaw()
        for session_id in cluster.model.session_ids():
            cluster.model.expire(session_id)
        await asyncio.sleep(SESSION_S)
        await cluster.settled()
        assert len(next(iter(cluster.nodes.values())).image.topics["t"].partitions) == 3

    run(scenario)


def test_a_second_broker_with_the_id_of_a_live_one_is_refused_with_one_line() -> None:
    async def scenario(cluster: Cluster) -> None:
        second = MetadataNode(cluster.model, 2, 99, cluster.chance, name="elsewhere")
        with pytest.raises(BrokerIdInUseError, match=r"another broker is registered with broker.id 2"):
            await second.start()
        assert cluster.nodes[1].image.brokers[2].host == "broker-2"
        second.crash()

    run(scenario)


def test_a_broker_that_is_killed_and_back_before_its_session_ends_registers_when_it_has_ended() -> None:
    """KAFKA-7165: it gave up at the node of its own former session."""

    async def scenario(cluster: Cluster) -> None:
        epoch = cluster.nodes[3].registrar.epoch
        cluster.crash(3)
        await cluster.begin(3)
        await cluster.settled()
        assert cluster.nodes[3].registrar.epoch > epoch

    run(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_images_end_equal_whatever_happens_to_the_brokers_and_their_connections(seed: int) -> None:
    """KAFKA-9212: after some changes brokers kept a leader epoch that was no longer so."""

    async def scenario(cluster: Cluster) -> None:
        chance = cluster.chance
        created: set[str] = set()
        for number in range(25):
            await asyncio.sleep(chance.uniform(0, 2))
            happening = chance.choice(["create", "grow", "crash", "begin", "cut", "reset", "stop", "server"])
            broker_id = chance.choice([1, 2, 3])
            if happening in ("create", "grow") and (active := cluster.controllers):
                node = cluster.nodes[active[0]]
                name = f"t{number}"
                if happening == "create" or not created:
                    command = node.controller.create_topics([NewTopic(name, 70, 1)])
                else:
                    command = node.controller.create_partitions([NewPartitions(chance.choice(sorted(created)), 75)])
                (result,) = await node.spawn(command)
                if result.error is None:
                    created.add(result.name)
            elif happening == "crash" and len(cluster.nodes) == 3:
                cluster.crash(broker_id)
            elif happening == "stop" and len(cluster.nodes) == 3:
                await cluster.nodes.pop(broker_id).stop()
            elif happening == "begin":
                await cluster.begin(*({1, 2, 3} - set(cluster.nodes)))
            elif happening == "cut" and broker_id in cluster.nodes:
                cluster.model.cut(cluster.nodes[broker_id].name)
                await asyncio.sleep(chance.uniform(0, 2 * SESSION_S))
                cluster.model.heal(f"broker-{broker_id}")
            elif happening == "reset" and broker_id in cluster.nodes:
                cluster.model.lose_connection(f"broker-{broker_id}")
            elif happening == "server":
                cluster.model.kill()
                await asyncio.sleep(chance.uniform(0, 4))
                cluster.model.restart()
        await cluster.begin(*({1, 2, 3} - set(cluster.nodes)))
        await cluster.settled()
        image = cluster.nodes[1].image
        assert created <= set(image.topics), "what was confirmed is there"

    run(scenario, seed)
