"""The batches behind a refused one: what their producer is told until that one has come again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.records.awaited_batches import HELD_BACK_MAX
from headwater.logtier.records.batch import Record, build_batch
from tests.unit.handlers.test_overlapping_produce import BATCH, Leader

NONE = ErrorCode.none
DAMAGED = ErrorCode.corrupt_message
HELD_BACK = ErrorCode.not_enough_replicas
NOT_LEADER = ErrorCode.not_leader_or_follower
OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number


def sequenced(sequence: int) -> bytes:
    """A batch of an idempotent producer."""
    return build_batch([Record(None, b"x", 1_000)], producer_id=7, producer_epoch=0, base_sequence=sequence)


def damaged(sequence: int) -> bytes:
    """A batch that is refused."""
    return sequenced(sequence)[:-1] + b"?"


def run(folder: Path, scenario: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        leader = Leader(folder)
        await scenario(leader)
        leader.close()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_what_is_out_of_order_behind_a_refused_batch_is_to_be_sent_again(tmp_path: Path) -> None:
    """librdkafka begins a new epoch if a batch is out of order, and doubles what it has no answer for; found by
    `make faults`, where a disk was full.
    """

    async def scenario(leader: Leader) -> None:
        leader.produce(1, sequenced(0))
        leader.produce(1, damaged(1))
        for sequence in (2, 3):
            leader.produce(1, sequenced(sequence))
        await asyncio.sleep(0.01)
        leader.follow()
        await asyncio.sleep(0.01)
        assert leader.codes() == [NONE, DAMAGED, HELD_BACK, HELD_BACK]
        for sequence in (1, 2, 3):
            await leader.produce_replicated(sequenced(sequence))
        assert leader.codes()[4:] == 3 * [NONE]

    run(tmp_path, scenario)


def test_a_broker_that_leads_again_takes_the_refused_batch_first(tmp_path: Path) -> None:
    """The log does not know the producer, and would take any sequence number: librdkafka then counts the refused batch
    as acknowledged, too.
    """

    async def scenario(leader: Leader) -> None:
        await leader.produce_replicated(BATCH)
        leader.lose_leadership()
        await asyncio.sleep(0)
        for sequence in (0, 1):
            leader.produce(1, sequenced(sequence))
        leader.lead_again()
        leader.produce(1, sequenced(1))
        assert leader.codes()[1:] == [*2 * [NOT_LEADER], HELD_BACK]
        for sequence in (0, 1):
            await leader.produce_replicated(sequenced(sequence))
        assert leader.codes()[4:] == 2 * [NONE]

    run(tmp_path, scenario)


def test_a_batch_that_was_cut_off_before_its_acknowledgement_comes_first(tmp_path: Path) -> None:
    async def scenario(leader: Leader) -> None:
        await leader.produce_replicated(BATCH)
        leader.produce(1, sequenced(0))
        await asyncio.sleep(0)
        leader.lose_leadership()
        leader.truncate()
        leader.produce(1, BATCH)
        await asyncio.sleep(0.01)
        leader.lead_again()
        leader.produce(1, BATCH)
        leader.produce(1, sequenced(1))
        leader.follow()
        await asyncio.sleep(0.01)
        assert leader.codes()[1:] == [NOT_LEADER, NOT_LEADER, NONE, HELD_BACK]

    run(tmp_path, scenario)


def test_a_gap_that_stays_is_told(tmp_path: Path) -> None:
    async def scenario(leader: Leader) -> None:
        await leader.produce_replicated(sequenced(0))
        leader.produce(1, sequenced(2))
        assert leader.codes()[1:] == [OUT_OF_ORDER]
        leader.produce(1, damaged(1))
        for _ in range(HELD_BACK_MAX + 1):
            leader.produce(1, sequenced(2))
        assert leader.codes()[2:] == [DAMAGED, *HELD_BACK_MAX * [HELD_BACK], OUT_OF_ORDER]

    run(tmp_path, scenario)
