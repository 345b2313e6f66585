"""What becomes of an election, and of the office, when the connection to the store is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headwater.logtier.controller.commands import NewTopic
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.store import Create, Operation, SessionState
from tests.simulation.metadata_node import MetadataNode
from tests.simulation.virtual_loop import VirtualLoop, drop
from tests.simulation.zookeeper_model import ZooKeeperModel

PATIENCE_S = 60.0


async def until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_reached():  # noqa: ASYNC110 (virtual time costs nothing)
            await asyncio.sleep(0.01)


def run(scenario: Callable[[MetadataNode, ZooKeeperModel], Awaitable[None]]) -> None:
    """One broker on its ZooKeeper; it has not begun."""
    loop = VirtualLoop(random.Random(1))
    model = ZooKeeperModel(random.Random(2))
    try:

        async def main() -> None:
            await scenario(MetadataNode(model, 1, 1, random.Random(3)), model)

        loop.run_until_complete(main())
    finally:
        drop(loop)


async def assert_in_office(node: MetadataNode, model: ZooKeeperModel) -> None:
    """The nodes name this broker's session and epoch, and it executes commands."""
    nodes = model.nodes()
    assert nodes[paths.CONTROLLER].ephemeral_owner == node.store.session_id
    assert paths.decode_controller_epoch(nodes[paths.CONTROLLER_EPOCH].data) == node.controller.epoch
    [created] = await node.spawn(node.controller.create_topics([NewTopic("t", 1, 1)]))
    assert created.error is None
    assert "t" in node.image.topics


@pytest.mark.parametrize("happened", [True, False])
def test_an_election_whose_answer_is_lost_is_held_once_more_if_it_has_to_be(happened: bool) -> None:
    """CONNECTION_LOSS is ambiguous. The node may exist, its creator does not know, and waits for itself."""

    async def scenario(node: MetadataNode, model: ZooKeeperModel) -> None:
        append = node.store.append
        lost: list[str] = []

        async def append_and_lose(operations: Sequence[Operation]) -> int:
            appending = asyncio.ensure_future(append(operations))
            if not lost and any(isinstance(each, Create) and each.path == paths.CONTROLLER for each in operations):
                await asyncio.sleep(0)
                model.lose_connection(node.name, happened)
                lost.append(node.name)
                assert (paths.CONTROLLER in model.nodes()) == happened
            return await appending

        node.store.append = append_and_lose  # type: ignore[method-assign]
        async with asyncio.timeout(30):
            await node.start()
        await until(lambda: node.controller.is_active)
        assert lost
        # One that took effect is an office of its own: its epoch is used up.
        assert node.controller.epoch == (2 if happened else 1)
        await assert_in_office(node, model)

    run(scenario)


def test_kafka_13461_a_controller_that_was_suspended_acts_again_in_the_same_session() -> None:
    """KAFKA-13461: the controller resigned after a refused login, its session and `/controller` stayed, and nobody
    acted as controller any more: others saw its node, and it waited for another session.
    """

    async def scenario(node: MetadataNode, model: ZooKeeperModel) -> None:
        await node.start()
        await until(lambda: node.controller.is_active)
        session, epoch = node.store.session_id, node.controller.epoch
        states: list[SessionState] = []
        node.store.on_session(states.append)
        model.lose_connection(node.name)
        await until(lambda: not node.controller.is_active)
        assert model.nodes()[paths.CONTROLLER].ephemeral_owner == session
        await until(lambda: node.controller.is_active)
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert node.store.session_id == session
        assert node.controller.epoch == epoch + 1, "what it had planned before is fenced"
        await assert_in_office(node, model)

    run(scenario)
