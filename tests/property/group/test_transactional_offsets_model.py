"""Invariant 9 for offsets in transactions: what groups have committed, and what is pending, equals the log's replay.

A simple model says beside it what a reader must see: the commit that stands latest in the log among those that count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.logtier.group.persistence.offsets import CommittedOffset
from headwater.logtier.group.persistence.offsets_topic import OFFSETS_TOPIC
from headwater.logtier.group.persistence.replay import GroupReplay
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import end_transaction_marker
from tests.example_counts import examples
from tests.unit.group.conftest import World
from tests.unit.state_topic.surroundings import settle

GROUPS = ("g", "h", "another group")
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]

groups = st.sampled_from(GROUPS)
keys = st.sampled_from(PARTITIONS)
producers = st.integers(1, 3)


class OffsetsMachine(RuleBasedStateMachine):
    """Commits, markers, deletions and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.world.metadata.add("t")
        self.next_offset = 0
        #: (group, partition) -> [(where it stands in the order of commits, offset)]
        self.visible: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        #: (producer, partition of the log) -> {(group, partition): (order, offset)}
        self.pending: dict[tuple[int, int], dict[tuple[str, TopicPartition], tuple[int, int]]] = {}
        self.run(self.start())

    async def start(self) -> None:
        await self.world.groups.start()
        await self.world.groups.find("g")
        await settle()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.world.groups.stop())
        self.loop.close()

    def committed(self) -> CommittedOffset:
        self.next_offset += 1
        return CommittedOffset(self.next_offset, commit_timestamp_ms=self.world.clock.ms)

    def log_partition(self, group: str) -> TopicPartition:
        found: TopicPartition = self.run(self.world.groups.offsets_partition(group))
        return found

    @rule(group=groups, key=keys)
    def commit(self, group: str, key: TopicPartition) -> None:
        committed = self.committed()
        self.run(
            self.world.groups.commit_offsets(
                group, member_id="", group_instance_id=None, generation_id=-1, commits={key: committed}
            )
        )
        self.visible[group, key] = (self.next_offset, committed.offset)

    @rule(group=groups, key=keys, producer=producers)
    def commit_in_a_transaction(self, group: str, key: TopicPartition, producer: int) -> None:
        committed = self.committed()
        self.run(
            self.world.groups.transactional.commit(
                group,
                member_id="",
                group_instance_id=None,
                generation_id=-1,
                producer_id=producer,
                producer_epoch=0,
                commits={key: committed},
                verification=None,
            )
        )
        of_producer = self.pending.setdefault((producer, self.log_partition(group).partition), {})
        of_producer[group, key] = (self.next_offset, committed.offset)

    @rule(producer=producers, group=groups, commits=st.booleans())
    def end(self, producer: int, group: str, commits: bool) -> None:
        key = self.log_partition(group)
        marker = end_transaction_marker(
            committed=commits,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.world.clock.ms,
        )
        offset = self.world.replicas.log(key).append(marker)
        self.world.groups.transactional.marker_written(key, producer, offset, commits)
        for name, found in self.pending.pop((producer, key.partition), {}).items():
            if commits and found > self.visible.get(name, (0, 0)):
                self.visible[name] = found

    @rule(group=groups, chosen=st.sets(keys, min_size=1))
    def delete(self, group: str, chosen: set[TopicPartition]) -> None:
        try:
            self.run(self.world.groups.delete_offsets(group, sorted(chosen)))
        except KafkaError:
            assert self.world.groups.group(group) is None
            return
        self.forget(group, chosen)

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        try:
            self.run(self.world.groups.delete_group(group))
        except KafkaError:
            assert self.world.groups.group(group) is None
            return
        self.forget(group, set(PARTITIONS))

    def forget(self, group: str, chosen: set[TopicPartition]) -> None:
        for key in chosen:
            self.visible.pop((group, key), None)
            for found in self.pending.values():
                found.pop((group, key), None)

    @rule()
    def restart(self) -> None:
        self.run(self.world.groups.stop())
        self.run(self.world.restart())

    @invariant()
    def readers_see_what_counts(self) -> None:
        for group in GROUPS:
            offsets = self.world.groups.committed(group)
            for key in PARTITIONS:
                found = offsets.get(key)
                expected = self.visible.get((group, key))
                assert (None if found is None else found.offset) == (None if expected is None else expected[1])
                is_pending = any((group, key) in of_producer for of_producer in self.pending.values())
                assert self.world.groups.transactional.is_pending(group, key) == is_pending

    @invariant()
    def the_live_state_equals_the_replay(self) -> None:
        replayed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        pending = set()
        for key, log in self.world.replicas.logs.items():
            if key.topic == OFFSETS_TOPIC:
                replay = GroupReplay(str(key), key.partition)
                for batch in log.batches():
                    replay.apply(batch)
                replayed |= {group: dict(offsets.items()) for group, offsets in replay.offsets.items()}
                pending |= set(replay.pending)
        state = self.world.groups._log
        assert {group: dict(offsets.items()) for group, offsets in state.offsets.items()} == replayed
        assert set(state.pending) == pending


TestTransactionalOffsets = OffsetsMachine.TestCase
TestTransactionalOffsets.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
