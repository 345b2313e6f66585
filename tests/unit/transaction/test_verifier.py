"""Whom a leader asks about a transaction: its own coordinator, or that of another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from headwater.logtier.metadata.image import BrokerRegistration
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.verifier import ClusterVerifier, VerifiedPartition

P0 = TopicPartition("t", 0)


class OwnCoordinator:
    """This broker's coordinator; `leader` coordinates all ids."""

    def __init__(self) -> None:
        self.leader: int | KafkaError = 1
        self.asked: list[Any] = []
        self.answer: Awaitable[None] | None = None

    def coordinator_of(self, transactional_id: str, /) -> BrokerRegistration:
        assert transactional_id == "payments"
        if isinstance(self.leader, KafkaError):
            raise self.leader
        return BrokerRegistration(self.leader, "here", 9092)

    def verify_partition(self, verified: VerifiedPartition, /) -> Awaitable[None] | None:
        self.asked.append(verified)
        return self.answer


class OtherCoordinators:
    """The coordinators of other brokers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def verify_partition(self, broker_id: int, verified: VerifiedPartition, /) -> None:
        self.asked.append((broker_id, *verified))
        raise KafkaError(ErrorCode.transaction_abortable)


@pytest.mark.parametrize("add", [True, False])
def test_the_broker_that_leads_the_ids_partition_is_asked_as_the_newest_image_has_it(add: bool) -> None:
    own, others = OwnCoordinator(), OtherCoordinators()
    verifier = ClusterVerifier(1, own, others)

    async def scenario() -> None:
        assert verifier.verify_partition(VerifiedPartition("payments", 7, 3, P0, adds=add)) is None
        own.answer = asyncio.sleep(0)
        answer = verifier.verify_partition(VerifiedPartition("payments", 7, 3, P0, adds=add))
        assert answer is own.answer
        await own.answer
        assert (own.asked, others.asked) == ([("payments", 7, 3, P0, add)] * 2, [])
        own.leader = 2
        asked = verifier.verify_partition(VerifiedPartition("payments", 7, 3, P0, adds=add))
        assert asked is not None
        with pytest.raises(KafkaError, match="transaction_abortable"):
            await asked
        assert (len(own.asked), others.asked) == (2, [(2, "payments", 7, 3, P0, add)])

    asyncio.run(scenario())


def test_without_a_coordinator_nobody_is_asked() -> None:
    own, others = OwnCoordinator(), OtherCoordinators()
    own.leader = KafkaError(ErrorCode.coordinator_not_available)
    with pytest.raises(KafkaError, match="coordinator_not_available"):
        ClusterVerifier(1, own, others).verify_partition(VerifiedPartition("payments", 7, 3, P0, adds=True))
    assert (own.asked, others.asked) == ([], [])
