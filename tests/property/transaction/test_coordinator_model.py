"""Invariant 9 for transactions: a coordinator's live state equals the replay of its log, before and after compaction.

A producer, its impostors, time, failing writes and restarts act on a coordinator in any order. Beside it a model counts
what was promised: an outcome that was answered is the one of every marker, and no transaction has two outcomes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.transaction.metadata import NO_PRODUCER, PRODUCER_EPOCH_MAX, ProducerIdAndEpoch, TransactionState
from headwater.logtier.transaction.topic import TRANSACTION_TOPIC
from headwater.logtier.transaction.verifier import VerifiedPartition
from tests.example_counts import examples
from tests.unit.state_topic.surroundings import settle
from tests.unit.transaction.world import World

IDS = ("payments", "orders")
PARTITIONS = [TopicPartition("t", index) for index in range(3)]

names = st.sampled_from(IDS)
versions = st.sampled_from((0, 2))


class CoordinatorMachine(RuleBasedStateMachine):
    """Requests, failures and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World()
        #: Every producer that was ever told who it is, the last one last.
        self.producers: dict[str, list[ProducerIdAndEpoch]] = {name: [] for name in IDS}
        self.run(self.world.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def and_settle() -> Any:
            try:
                return await work
            finally:
                await settle()

        try:
            return self.loop.run_until_complete(and_settle())
        except KafkaError as error:
            assert error.code != ErrorCode.unknown_server_error
            return None

    def teardown(self) -> None:
        self.loop.run_until_complete(self.world.coordinator.stop())
        self.loop.close()

    def producer(self, name: str, back: int) -> ProducerIdAndEpoch:
        known = self.producers[name]
        return known[-1 - back] if back < len(known) else NO_PRODUCER

    def told(self, name: str, producer: ProducerIdAndEpoch | None) -> None:
        if producer is not None:
            assert 0 <= producer.epoch < PRODUCER_EPOCH_MAX
            self.producers[name].append(producer)

    @rule(name=names, says_who=st.booleans(), back=st.integers(0, 2))
    def init(self, name: str, says_who: bool, back: int) -> None:
        expected = self.producer(name, back) if says_who else None
        if expected == NO_PRODUCER:
            expected = None
        self.told(name, self.run(self.world.coordinator.init_producer(name, 60_000, expected)))

    @rule(
        name=names,
        back=st.integers(0, 1),
        partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1),
        version=versions,
    )
    def add(self, name: str, back: int, partitions: set[TopicPartition], version: int) -> None:
        producer = self.producer(name, back)
        self.run(self.world.coordinator.add_partitions(name, producer, partitions, client_version=version))

    @rule(name=names, back=st.integers(0, 1), partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4))
    def add_by_writing(self, name: str, back: int, partitions: list[TopicPartition]) -> None:
        producer = self.producer(name, back)

        async def write() -> None:
            answers = [
                self.world.coordinator.verify_partition(VerifiedPartition(name, *producer, partition, adds=True))
                for partition in partitions
            ]
            await asyncio.gather(*(answer for answer in answers if answer is not None))
            assert set(partitions) <= self.world.coordinator.describe(name).partitions

        self.run(write())

    @rule(name=names, back=st.integers(0, 1), commit=st.booleans(), version=versions)
    def end(self, name: str, back: int, commit: bool, version: int) -> None:
        producer = self.producer(name, back)
        ended = self.run(self.world.coordinator.end(name, producer, commit=commit, client_version=version))
        if version:
            self.told(name, ended)

    @rule(ms=st.sampled_from((10, 60_001)))
    def time_passes(self, ms: int) -> None:
        self.world.clock.ms += ms
        self.run(self.world.coordinator.abort_timed_out())

    @rule()
    def ids_expire(self) -> None:
        self.world.clock.ms += self.world.config.transactional_id_expiration_ms
        self.run(self.world.coordinator.abort_timed_out())
        self.run(self.world.coordinator.remove_expired())

    @rule(fails=st.booleans())
    def writes_fail_or_work_again(self, fails: bool) -> None:
        self.world.replicas.error = KafkaError(ErrorCode.kafka_storage_error, "it is full") if fails else None

    @rule(partition=st.sampled_from(PARTITIONS), refuses=st.booleans())
    def markers_are_refused_or_taken_again(self, partition: TopicPartition, refuses: bool) -> None:
        if refuses:
            self.world.replicas.refused[partition] = KafkaError(ErrorCode.not_enough_replicas)
        else:
            self.world.replicas.refused.pop(partition, None)

    @rule(compacts=st.booleans())
    def restart(self, compacts: bool) -> None:
        before = self.world.live()
        if compacts:
            for key, log in self.world.replicas.logs.items():
                if key.topic == TRANSACTION_TOPIC:
                    log.compact()
        assert self.world.replayed() == before
        self.run(self.world.restart())

    @invariant()
    def the_live_state_equals_the_replay(self) -> None:
        assert self.world.live() == self.world.replayed()

    @invariant()
    def a_transaction_has_one_outcome(self) -> None:
        outcomes: dict[tuple[int, int], set[bool]] = {}
        for markers in self.world.replicas.markers.values():
            for marker in markers:
                if marker.version:  # before version 2, the transactions of a producer share its epoch
                    outcomes.setdefault((marker.producer_id, marker.producer_epoch), set()).add(marker.commit)
        assert all(len(found) == 1 for found in outcomes.values())

    @invariant()
    def what_is_complete_has_all_its_markers(self) -> None:
        for _, metadata in self.world.coordinator.transactions():
            assert metadata.state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
            if not metadata.state.is_prepared and metadata.state is not TransactionState.ONGOING:
                assert not metadata.partitions


TestCoordinator = CoordinatorMachine.TestCase
TestCoordinator.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
