"""What leaders ask a transaction coordinator for their clients: AddPartitionsToTxn 4 and 5 before a real one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.transactions import add_partitions_to_txn
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import World

some = SimpleNamespace
P0, P1, P2 = (TopicPartition("t", index) for index in range(3))
versions = pytest.mark.parametrize("version", [4, 5])


class Asked:
    """A coordinator that leaders ask, with two producers."""

    def __init__(self, version: int) -> None:
        self.world = World()
        self.version = version
        self.producers: dict[str, ProducerIdAndEpoch] = {}

    async def begin(self) -> None:
        coordinator = await self.world.start()
        for name in ("payments", "orders"):
            self.producers[name] = await coordinator.init_producer(name, 60_000, None)

    def partitions(self, name: str) -> frozenset[TopicPartition]:
        return self.world.coordinator.describe(name).partitions

    async def add(self, *wanted: tuple[str, tuple[TopicPartition, ...]]) -> list[list[ErrorCode]]:
        """The codes of a leader's request, by transaction."""
        services: Any = some(
            metadata=self.world.metadata,
            transactions=self.world.coordinator,
            authorizer=None,
            prng=random.Random(1),
        )
        request = some(
            transactions=[
                some(
                    transactional_id=name,
                    producer_id=self.producers[name].producer_id,
                    producer_epoch=self.producers[name].epoch,
                    verify_only=False,
                    topics=[some(name=each.topic, partitions=[each.partition]) for each in partitions],
                )
                for name, partitions in wanted
            ]
        )
        key = add_partitions_to_txn.API_KEY
        context = RequestContext(services, key, self.version, 1, "broker", "10.0.0.2", "User:broker")
        answer = await add_partitions_to_txn.handle(request, context)
        return [
            [part["partition_error_code"] for topic in each["topic_results"] for part in topic["results_by_partition"]]
            for each in answer["results_by_transaction"]
        ]


def asked(version: int, scenario: Callable[[Asked], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        coordinator = Asked(version)
        await coordinator.begin()
        await scenario(coordinator)
        await coordinator.world.coordinator.stop()

    asyncio.run(main())


OK = ErrorCode.none


@versions
def test_the_additions_of_several_leaders_are_written_together(version: int) -> None:
    async def scenario(coordinator: Asked) -> None:
        writes = coordinator.world.replicas.writes
        first, second = await asyncio.gather(
            coordinator.add(("payments", (P0, P1))), coordinator.add(("payments", (P2,)))
        )
        assert (first, second) == ([[OK, OK]], [[OK]])
        assert coordinator.partitions("payments") == {P0, P1, P2}
        assert coordinator.world.replicas.writes == writes + 1

    asked(version, scenario)


@versions
def test_an_addition_that_comes_during_a_write_is_not_refused_and_joins_the_next_one(version: int) -> None:
    async def scenario(coordinator: Asked) -> None:
        gate = coordinator.world.replicas.gate = asyncio.Event()
        first = asyncio.ensure_future(coordinator.add(("payments", (P0,))))
        await settle()
        others = [asyncio.ensure_future(coordinator.add(("payments", (each,)))) for each in (P1, P2)]
        await settle()
        writes = coordinator.world.replicas.writes
        gate.set()
        assert [await first, *[await each for each in others]] == [[[OK]]] * 3
        assert coordinator.world.replicas.writes == writes + 1

    asked(version, scenario)


@versions
def test_the_transactions_of_a_request_do_not_wait_for_each_other(version: int) -> None:
    async def scenario(coordinator: Asked) -> None:
        gate = coordinator.world.replicas.gate = asyncio.Event()
        writes = coordinator.world.replicas.writes
        adding = asyncio.ensure_future(coordinator.add(("payments", (P0,)), ("orders", (P0, P1))))
        await settle()
        assert (coordinator.world.replicas.writes, adding.done()) == (writes + 2, False)
        gate.set()
        assert await adding == [[OK], [OK, OK]]

    asked(version, scenario)


@versions
def test_the_refusal_of_one_transaction_does_not_concern_the_others(version: int) -> None:
    async def scenario(coordinator: Asked) -> None:
        known = coordinator.producers["orders"]
        coordinator.producers["orders"] = ProducerIdAndEpoch(known.producer_id, known.epoch + 1)
        answers = await coordinator.add(("orders", (P0, P1)), ("payments", (P0,)))
        assert answers == [[ErrorCode.producer_fenced] * 2, [OK]]
        assert coordinator.partitions("orders") == frozenset()
        missing = TopicPartition("t", 9)
        answers = await coordinator.add(("payments", (P1, missing)))
        assert answers == [[ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition]]
        assert coordinator.partitions("payments") == {P0}

    asked(version, scenario)
