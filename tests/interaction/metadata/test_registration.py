"""Who may take over the registration of a broker id, and what a return tells the controller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, NewTopic
from headwater.logtier.controller.feature_state import SAFE_DOWNGRADE, FeatureUpdate
from headwater.logtier.controller.registration import BrokerAddresses, BrokerIdInUseError, BrokerRegistrar
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.metadata.store import StoreUnavailableError
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.features import UnsupportedFeaturesError
from tests.simulation.metadata_node import SESSION_S, MetadataNode
from tests.simulation.virtual_loop import VirtualLoop, drop
from tests.simulation.zookeeper_model import ZooKeeperModel

PATIENCE_S = 60.0


class World:
    """Brokers on one ZooKeeper, each with a log folder of its own unless a test says otherwise."""

    def __init__(self) -> None:
        self.chance = random.Random(1)
        self.model = ZooKeeperModel(random.Random(2))
        self.lives = 0

    def node(
        self,
        broker_id: int,
        *,
        folder: str = "",
        boot: str = "this boot",
        closed_in: int = -1,
        name: str = "",
        features: tuple[tuple[str, int, int], ...] = (),
    ) -> MetadataNode:
        """A process of a broker; it has not begun."""
        self.lives += 1
        node = MetadataNode(self.model, broker_id, self.lives, self.chance, name)
        node.registrar = BrokerRegistrar(
            node.store,
            node.follower,
            broker_id,
            BrokerAddresses(node.name, 9092),
            SESSION_S,
            BrokerProcess((folder or f"folder of {broker_id}",), boot, closed_in, features=features),
            node.failures.append,
        )
        return node

    async def until(self, is_reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_reached():  # noqa: ASYNC110 (virtual time costs nothing)
                await asyncio.sleep(0.01)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    loop = VirtualLoop(random.Random(1))
    try:
        loop.run_until_complete(scenario(World()))
    finally:
        drop(loop)


def test_a_process_that_was_killed_is_replaced_at_once_by_the_next_one_on_the_same_folder() -> None:
    """KIP-380: two lives of a broker within one session looked like one to the controller."""

    async def scenario(world: World) -> None:
        other, first = world.node(1), world.node(2)
        await other.start()
        await first.start()
        first.crash()
        begun_s = now_s()
        second = world.node(2)
        await second.start()
        assert now_s() - begun_s < SESSION_S / 3
        assert second.image.brokers[2].epoch == second.registrar.epoch > first.registrar.epoch
        # The session of the killed process ends later, and takes nothing with it.
        await asyncio.sleep(3 * SESSION_S)
        assert other.image.brokers[2].epoch == second.registrar.epoch

    run(scenario)


def test_a_killed_controller_that_is_back_at_once_leaves_the_cluster_without_one_for_a_moment_only() -> None:
    async def scenario(world: World) -> None:
        first = world.node(1)
        await first.start()
        other = world.node(2)
        await other.start()
        assert first.controller.is_active
        first.crash()
        begun_s = now_s()
        second = world.node(1)
        await second.start()
        assert now_s() - begun_s < SESSION_S / 3
        assert second.controller.is_active or other.controller.is_active
        assert not (second.controller.is_active and other.controller.is_active)
        await world.until(lambda: other.image.brokers[1].epoch == second.registrar.epoch)

    run(scenario)


@pytest.mark.parametrize(
    ("folder", "boot"),
    [
        pytest.param("another folder", "this boot", id="another broker"),
        pytest.param("", "another boot", id="a copied disk on another machine"),
        pytest.param("", "", id="a machine without boot ids"),
    ],
)
def test_the_registration_of_a_live_broker_is_never_taken_over(folder: str, boot: str) -> None:
    async def scenario(world: World) -> None:
        first = world.node(2)
        await first.start()
        second = world.node(2, folder=folder, boot=boot, name="elsewhere")
        with pytest.raises(BrokerIdInUseError, match=r"another broker is registered with broker.id 2"):
            await second.start()
        assert first.image.brokers[2].host == "broker-2"
        assert not first.failures

    run(scenario)


def test_a_broker_whose_registration_was_replaced_must_stop() -> None:
    """A copy of a log folder on the same machine: the two would replace one another for ever."""

    async def scenario(world: World) -> None:
        first, second = world.node(2), world.node(2, name="copy")
        await first.start()
        await second.start()
        await world.until(lambda: bool(first.failures))
        assert first.failures[0].startswith("another broker has replaced the registration of broker 2")
        assert not second.failures

    run(scenario)


def test_a_registration_that_somebody_deleted_is_made_again() -> None:
    async def scenario(world: World) -> None:
        node = world.node(2)
        await node.start()
        epoch = node.registrar.epoch
        await node.spawn(node.store.delete("/brokers/ids/2"))
        await world.until(lambda: node.registrar.epoch > epoch)
        # The image may still have the registration that was deleted, and then none for a while.
        await world.until(lambda: 2 in node.image.brokers and node.image.brokers[2].epoch == node.registrar.epoch)
        assert not node.failures

    run(scenario)


def test_a_broker_that_stops_is_gone_before_its_session_ends() -> None:
    async def scenario(world: World) -> None:
        other, node = world.node(1), world.node(2)
        await other.start()
        await node.start()
        begun_s = now_s()
        await node.spawn(node.registrar.stop())
        await world.until(lambda: 2 not in other.image.brokers)
        assert now_s() - begun_s < SESSION_S / 3
        assert node.store.session_id != 0

    run(scenario)


async def eligible_after(
    world: World, *, returns_cleanly: bool, boot: str = "another boot", folder: str = ""
) -> set[int]:
    """The brokers that may be elected for a partition of 1 and 2 once 2 has been away (min.insync.replicas is 2)."""
    other, node = world.node(1), world.node(2)
    await other.start()
    await node.start()
    (created,) = await other.spawn(other.controller.create_topics([NewTopic("t", -1, -1, {0: [1, 2]})]))
    assert created.error is None
    await node.stop()
    await world.until(lambda: 2 not in other.image.brokers)
    closed_in = node.registrar.epoch if returns_cleanly else -1
    back = world.node(2, boot=boot, folder=folder, closed_in=closed_in)
    await back.start()
    await world.until(lambda: 2 in other.image.brokers)
    partition = other.image.topics["t"].partitions[0]
    assert partition.leader == 1
    return {*partition.isr, *partition.elr}


def test_a_broker_that_returns_cleanly_stays_an_eligible_leader() -> None:
    """KIP-966: its folder was closed in its last epoch, so it has every committed record."""

    async def scenario(world: World) -> None:
        assert await eligible_after(world, returns_cleanly=True) == {1, 2}

    run(scenario)


def test_a_broker_that_returns_uncleanly_is_no_eligible_leader() -> None:
    async def scenario(world: World) -> None:
        assert await eligible_after(world, returns_cleanly=False) == {1}

    run(scenario)


def test_a_broker_that_was_only_killed_stays_an_eligible_leader() -> None:
    """The page cache has what it wrote, for as long as its machine runs."""

    async def scenario(world: World) -> None:
        assert await eligible_after(world, returns_cleanly=False, boot="this boot") == {1, 2}

    run(scenario)


def test_a_broker_that_was_killed_and_returns_without_a_folder_is_no_eligible_leader() -> None:
    async def scenario(world: World) -> None:
        assert await eligible_after(world, returns_cleanly=False, boot="this boot", folder="empty") == {1}

    run(scenario)


def test_a_lower_minimum_ends_the_elr_before_it_takes_effect() -> None:
    """KIP-966: from the change on the leader commits alone; broker 2 must not be elected without those records."""

    async def scenario(world: World) -> None:
        other, node = world.node(1), world.node(2)
        await other.start()
        await node.start()
        (created,) = await other.spawn(other.controller.create_topics([NewTopic("t", -1, -1, {0: [1, 2]})]))
        assert created.error is None
        await node.stop()
        await world.until(lambda: other.image.topics["t"].partitions[0].elr == (2,))
        seen: list[tuple[tuple[int, ...], str | None]] = []
        other.cache.subscribe(
            lambda delta: seen.append(
                (delta.new.topics["t"].partitions[0].elr, delta.new.topics["t"].configs.get("min.insync.replicas"))
            )
        )
        change = ConfigChange(2, "t", [ConfigOperation("min.insync.replicas", 0, "1")])
        (altered,) = await other.spawn(other.controller.alter_configs([change]))
        assert altered.error is None
        assert seen == [((), None), ((), "1")]

    run(scenario)


def test_a_process_that_lost_only_its_session_returns_cleanly() -> None:
    async def scenario(world: World) -> None:
        other, node = world.node(1), world.node(2)
        await other.start()
        await node.start()
        (created,) = await other.spawn(other.controller.create_topics([NewTopic("t", -1, -1, {0: [1, 2]})]))
        assert created.error is None
        epoch = node.registrar.epoch
        world.model.expire(node.store.session_id)
        await world.until(lambda: node.registrar.epoch > epoch)
        await world.until(lambda: (known := other.image.brokers.get(2)) is not None and known.epoch > epoch)
        partition = other.image.topics["t"].partitions[0]
        assert {*partition.isr, *partition.elr} == {1, 2}

    run(scenario)


def test_kafka_7165_a_node_that_outlives_its_session_is_replaced_by_the_same_process() -> None:
    """KAFKA-7165, ZOOKEEPER-2985: the node of the session before was still there when the broker registered in its
    next session; it took the node for another broker's, and stayed away although it ran.
    """

    async def scenario(world: World) -> None:
        other, node = world.node(1), world.node(2)
        ghost = world.model.store("ghost", int(SESSION_S * 1000))
        await other.start()
        await node.start()
        await ghost.start()
        epoch, session, path = node.registrar.epoch, node.store.session_id, paths.broker_path(2)
        registered = await ghost.get(path)
        world.model.cut(node.name)
        world.model.expire(session)
        # The server has ended the session and still has its node: here another session holds the same.
        left_over = await ghost.create(path, registered.data, ephemeral=True)
        world.model.heal(node.name)
        await world.until(lambda: node.registrar.epoch > left_over > epoch)
        assert node.store.session_id != session
        assert world.model.nodes()[path].ephemeral_owner == node.store.session_id
        # What is left of the old session ends, and takes nothing with it.
        world.model.expire(ghost.session_id)
        await asyncio.sleep(3 * SESSION_S)
        assert other.image.brokers[2].epoch == node.registrar.epoch
        assert not node.failures

    run(scenario)


def test_a_broker_of_an_earlier_release_is_refused_and_the_levels_wait_for_the_last_broker() -> None:
    """Three brokers: one supports less. What it does not support is not finalized; what is finalized keeps it out."""
    newer = ("group.version", 0, 1), ("metadata.version", 27, 27), ("transaction.version", 1, 2)
    older = ("group.version", 0, 1), ("metadata.version", 27, 27), ("transaction.version", 1, 1)
    elr = ("eligible.leader.replicas.version", 1, 1)

    async def scenario(world: World) -> None:
        first, second, third = (world.node(each, features=(elr, *newer)) for each in (1, 2, 3))
        await first.start()
        await second.start()
        await first.controller.update_features([FeatureUpdate("transaction.version", 1, SAFE_DOWNGRADE)])
        late = world.node(3, features=(elr, *older))
        await late.start()
        with pytest.raises(KafkaError, match="Broker 3 only supports versions 1"):
            await first.controller.update_features([FeatureUpdate("transaction.version", 2)])
        await late.stop()
        # Also while it is away: it comes back as it was.
        with pytest.raises(KafkaError, match="Broker 3 only supports versions 1"):
            await first.controller.update_features([FeatureUpdate("transaction.version", 2)])
        await third.start()
        await first.controller.update_features([FeatureUpdate("transaction.version", 2)], validate_only=True)
        assert first.image.features.level("transaction.version") == 1
        await first.controller.update_features([FeatureUpdate("transaction.version", 2)])
        await world.until(lambda: third.image.features.epoch == 2)
        assert third.image.features.level("transaction.version") == 2
        await third.stop()
        again = world.node(3, features=(elr, *older))
        with pytest.raises(
            UnsupportedFeaturesError, match=r"transaction.version is finalized at level 2 and supported"
        ):
            await again.start()
        assert 3 not in first.image.brokers

    run(scenario)


def test_a_broker_that_registers_all_the_same_is_not_admitted() -> None:
    """A release that knows no levels looks at none; its registration states no features."""

    async def scenario(world: World) -> None:
        first = world.node(1)
        await first.start()
        session = world.model.store("stranger", int(SESSION_S * 1000))
        await session.start()
        stranger = BrokerProcess(("x",), "boot", features=(("metadata.version", 26, 26),))
        data = paths.encode_broker("stranger", 9092, None, process=stranger)
        await session.create(paths.broker_path(9), data, ephemeral=True)
        second = world.node(2)
        await second.start()
        await world.until(lambda: 2 in first.image.brokers)
        assert set(first.image.brokers) == {1, 2}

    run(scenario)


def test_a_registration_whose_answer_and_reading_back_were_lost_counts_once_it_is_found() -> None:
    """The broker leads nothing before it knows its registration of the new session."""

    async def scenario(world: World) -> None:
        other, node = world.node(1), world.node(2)
        await other.start()
        await node.start()
        first = node.registrar.epoch
        registered: list[int] = []
        node.registrar.on_registered = lambda: registered.append(node.registrar.epoch)
        create, has_failed = node.store.create, False

        async def create_and_fail(path: str, data: bytes, *, ephemeral: bool = False) -> int:
            nonlocal has_failed
            epoch = await create(path, data, ephemeral=ephemeral)
            if not has_failed:
                has_failed = True
                raise StoreUnavailableError(path, "the connection is lost")
            return epoch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.store, "create", create_and_fail)
            world.model.expire(node.store.session_id)
            await world.until(lambda: 2 in other.image.brokers and other.image.brokers[2].epoch > first)
            await world.until(lambda: bool(registered))
        assert has_failed
        assert registered == [other.image.brokers[2].epoch]
        assert node.registrar.session_id == node.store.session_id

    run(scenario)
