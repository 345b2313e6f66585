"""Loading very many transactional ids lets others in, and completes every outcome that was decided."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headwater.logtier.state_topic.topic import partition_for
from headwater.logtier.state_topic.turns import STEPS_PER_TURN
from headwater.logtier.transaction.metadata import TransactionMetadata, TransactionState
from headwater.logtier.transaction.transaction import Transaction
from tests.unit.transaction.world import World

COUNT = 3 * STEPS_PER_TURN


def test_others_have_turns_while_transactions_are_made_and_while_outcomes_begin_to_be_completed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    begun: list[str] = []

    class Counted(Transaction):
        def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
            made.append(transactional_id)
            super().__init__(transactional_id, metadata)

    monkeypatch.setattr("headwater.logtier.transaction.state_log.Transaction", Counted)
    decided = TransactionMetadata(5, 1, timeout_ms=1, state=TransactionState.PREPARE_COMMIT)
    names = [name for name in map(str, range(2 * COUNT + 100)) if partition_for(name, 2) == 0][:COUNT]
    assert len(names) == COUNT

    async def scenario() -> None:
        await world.start()
        for name in names:
            world.store(name, decided)
        await world.coordinator.stop()
        world.metadata.subscribers.clear()
        coordinator = world.coordinator = world._new_coordinator()
        begin = coordinator._begin_completion

        def begin_and_note(transaction: Transaction) -> None:
            begun.append(transaction.transactional_id)
            begin(transaction)

        monkeypatch.setattr(coordinator, "_begin_completion", begin_and_note)
        made.clear()
        await coordinator.start()
        seen = [(0, 0)]
        async with asyncio.timeout(20):
            while len(begun) < COUNT:
                await asyncio.sleep(0)
                seen.append((len(made), len(begun)))
        for position in (0, 1):
            steps = [later[position] - earlier[position] for earlier, later in itertools.pairwise(seen)]
            assert max(steps) <= STEPS_PER_TURN
        for name in names:
            await world.complete(name)
        assert world.live() == world.replayed()

    asyncio.run(scenario())
