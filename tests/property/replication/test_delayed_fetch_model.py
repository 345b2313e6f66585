"""Fetches that wait, against reading everything after every step: none is late, none is answered for nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.config import TopicConfig
from headwater.logtier.replication.delayed_fetch import is_satisfied
from headwater.logtier.replication.partition_reads import Fetched, FetchPartition
from tests.example_counts import examples
from tests.unit.replication.replicas_on_disk import ReplicasOnDisk, partition, size_of

PARTITIONS = 3
CONFIG = TopicConfig(segment_bytes=1_200, index_interval_bytes=150)

indexes = st.integers(0, PARTITIONS - 1)
producers = st.integers(1, 2)


@dataclass(frozen=True)
class Append:
    """A batch, of a transaction or of none."""

    index: int
    value_bytes: int
    producer_id: int | None


@dataclass(frozen=True)
class EndTransaction:
    index: int
    producer_id: int
    commit: bool


@dataclass(frozen=True)
class DeleteRecords:
    index: int
    part: float


@dataclass(frozen=True)
class Fetch:
    """From so far along each partition on, with the limits of the partitions and of the whole."""

    partitions: Sequence[tuple[int, float, int]]
    committed: bool
    bytes_min: int
    bytes_max: int


Step = Append | EndTransaction | DeleteRecords | Fetch

steps = st.lists(
    st.one_of(
        st.builds(Append, indexes, st.integers(1, 400), st.one_of(st.none(), producers)),
        st.builds(EndTransaction, indexes, producers, st.booleans()),
        st.builds(DeleteRecords, indexes, st.floats(0, 1)),
        st.builds(
            Fetch,
            st.lists(
                st.tuples(indexes, st.sampled_from([0, 0.5, 0.9, 1, 1, 1]), st.sampled_from([0, 200, 700, 5_000])),
                min_size=1,
                max_size=4,
            ),
            st.booleans(),
            st.sampled_from([1, 300, 1_500, 5_000]),
            st.sampled_from([100, 1_000, 10_000]),
        ),
    ),
    min_size=5,
    max_size=60,
)


@dataclass(frozen=True)
class Waiting:
    wanted: list[FetchPartition]
    bytes_min: int
    bytes_max: int
    future: asyncio.Future[Fetched]


def begin(world: ReplicasOnDisk, step: Fetch) -> Waiting | None:
    wanted = [
        world.wanted(index, round(world.end_offset(index) * part), bytes_max, committed=step.committed)
        for index, part, bytes_max in step.partitions
    ]
    bytes_min = min(step.bytes_min, step.bytes_max)
    found = world.fetch(wanted, bytes_min, bytes_max=step.bytes_max)
    if isinstance(found, list):
        check_answer(found, world.read(wanted, step.bytes_max), bytes_min)
        return None
    return Waiting(wanted, bytes_min, step.bytes_max, found)


def act(world: ReplicasOnDisk, step: Step, open_transactions: set[tuple[int, int]]) -> None:
    if isinstance(step, Append):
        if step.producer_id is None:
            world.append(step.index, step.value_bytes)
        else:
            world.append_in_transaction(step.index, step.producer_id, step.value_bytes)
            open_transactions.add((step.index, step.producer_id))
    elif isinstance(step, EndTransaction):
        if (step.index, step.producer_id) in open_transactions:
            open_transactions.remove((step.index, step.producer_id))
            world.end_transaction(step.index, step.producer_id, commit=step.commit)
    elif isinstance(step, DeleteRecords):
        world.replicas.delete_records(partition(step.index), round(world.end_offset(step.index) * step.part))


def check_answer(answer: Fetched, now: Fetched, bytes_min: int) -> None:
    assert [(each.error_code, each.size, each.high_watermark) for each in answer] == [
        (each.error_code, each.size, each.high_watermark) for each in now
    ]
    # Else its client would come back at once, and find as little.
    assert is_satisfied(answer, min(bytes_min, 1))


@settings(max_examples=examples(80), deadline=None)
@given(steps)
def test_a_fetch_is_answered_as_soon_as_reading_everything_would_say_so(script: list[Step]) -> None:
    root = Path(tempfile.mkdtemp(prefix="headwater-fetches-"))

    async def scenario() -> None:
        world = ReplicasOnDisk(root, PARTITIONS, CONFIG)
        waiting: list[Waiting] = []
        open_transactions: set[tuple[int, int]] = set()
        for step in script:
            if isinstance(step, Fetch):
                begun = begin(world, step)
                if begun is not None:
                    waiting.append(begun)
            else:
                act(world, step, open_transactions)
            for each in waiting[:]:
                now = world.read(each.wanted, each.bytes_max)
                if each.future.done():
                    check_answer(each.future.result(), now, each.bytes_min)
                    waiting.remove(each)
                else:
                    assert not is_satisfied(now, each.bytes_min), (step, size_of(now))
            assert world.replicas.delayed_operations == len(waiting)
        for each in waiting:
            each.future.cancel()
        await asyncio.sleep(0)
        assert world.replicas.delayed_operations == 0
        world.log_manager.close()

    try:
        asyncio.run(scenario())
    finally:
        shutil.rmtree(root)
