"""Commands that exceed one transaction of ZooKeeper are divided between topics, and each topic is told its own end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from headwater.logtier.controller.commands import ConfigChange, ConfigOperation, NewPartitions, NewTopic
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.store import Check, Operation
from headwater.logtier.protocol.errors import ErrorCode
from tests.simulation.metadata_node import MetadataNode
from tests.simulation.virtual_loop import VirtualLoop, drop
from tests.simulation.zookeeper_model import ZooKeeperModel

NAMES = [f"topic-{number}" for number in range(3_000)]


def run(case: Callable[[MetadataNode, ZooKeeperModel], Awaitable[None]]) -> None:
    """Run a case on one broker of a cluster, which is controller; in the end its image is that of the store."""

    async def main() -> None:
        model = ZooKeeperModel(random.Random(1))
        node = MetadataNode(model, 1, 1, random.Random(2))
        await node.start()
        async with asyncio.timeout(60):
            while not (node.controller.is_active and node.image.brokers):  # noqa: ASYNC110 (virtual time)
                await asyncio.sleep(0.01)
        await case(node, model)
        stored = MetadataImage().apply([(path, each.data) for path, each in model.nodes().items()])
        assert node.image.topics == stored.topics
        assert node.failures == []
        await node.stop()

    loop = VirtualLoop(random.Random(3))
    try:
        loop.run_until_complete(main())
    finally:
        drop(loop)


def test_thousands_of_topics_are_created_grown_configured_and_deleted() -> None:
    async def case(node: MetadataNode, model: ZooKeeperModel) -> None:
        controller = node.controller
        first = controller.metadata_end_offset
        created = await controller.create_topics([NewTopic(name, 1, 1) for name in NAMES])
        assert [(each.name, each.error) for each in created] == [(name, None) for name in NAMES]
        assert controller.metadata_end_offset > first + 1
        grown = await controller.create_partitions([NewPartitions(name, 2) for name in NAMES])
        assert [(each.name, each.error) for each in grown] == [(name, None) for name in NAMES]
        changes = [ConfigChange(2, name, [ConfigOperation("retention.ms", 0, "5000")]) for name in NAMES]
        assert [each.error for each in await controller.alter_configs(changes)] == [None] * len(NAMES)
        assert {(len(each.partitions), each.configs["retention.ms"]) for each in node.image.topics.values()} == {
            (2, "5000")
        }
        deleted = await controller.delete_topics(NAMES)
        assert [(each.name, each.error) for each in deleted] == [(name, None) for name in NAMES]
        assert not node.image.topics

    run(case)


def test_an_ordinary_command_is_one_change() -> None:
    async def case(node: MetadataNode, model: ZooKeeperModel) -> None:
        first = node.controller.metadata_end_offset
        await node.controller.create_topics([NewTopic(name, 1, 1) for name in NAMES[:100]])
        assert node.controller.metadata_end_offset == first + 1

    run(case)


def test_a_controller_deposed_in_the_middle_tells_which_topics_it_has_created() -> None:
    async def case(node: MetadataNode, model: ZooKeeperModel) -> None:
        append = node.store.append

        async def append_and_lose(operations: Sequence[Operation]) -> int:
            number = await append(operations)
            if any(isinstance(each, Check) and each.path == paths.CONTROLLER_EPOCH for each in operations):
                node.controller.depose()
            return number

        node.store.append = append_and_lose  # type: ignore[method-assign]
        asked = [NewTopic("no/name", 1, 1), *(NewTopic(name, 1, 1) for name in NAMES)]
        refused, *results = await node.controller.create_topics(asked)
        assert refused.error is not None
        assert refused.error.code == ErrorCode.invalid_topic_exception
        done = [each.name for each in results if each.error is None]
        assert done == NAMES[: len(done)]
        assert 0 < len(done) < len(NAMES)
        assert list(node.image.topics) == done
        others = results[len(done) :]
        assert {each.error.code for each in others if each.error} == {ErrorCode.not_controller}
        assert all(each.topic is None for each in others)

    run(case)


def test_a_store_lost_in_the_middle_fails_the_topics_that_are_not_created() -> None:
    async def case(node: MetadataNode, model: ZooKeeperModel) -> None:
        append = node.store.append

        async def append_and_lose(operations: Sequence[Operation]) -> int:
            number = await append(operations)
            model.lose_connection(node.name, happened=False)
            return number

        node.store.append = append_and_lose  # type: ignore[method-assign]
        results = await node.controller.create_topics([NewTopic(name, 1, 1) for name in NAMES])
        node.store.append = append  # type: ignore[method-assign]
        done = [each.name for each in results if each.error is None]
        assert done == NAMES[: len(done)]
        assert 0 < len(done) < len(NAMES)
        assert list(node.image.topics) == done
        assert {each.error.code for each in results if each.error} == {ErrorCode.not_controller}

    run(case)
