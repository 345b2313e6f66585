"""KIP-455: replicas of a partition change while brokers come and go, and nothing committed is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.controller.partition_draft import PartitionDraft
from headwater.logtier.metadata.topic_nodes import (
    NO_BROKER,
    PartitionImage,
    Reassignment,
    decode_chunk,
    encode_chunk,
    first_partition_state,
)
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from tests.example_counts import examples
from tests.unit.controller.fake_brokers import IDS, FakeBrokers
from tests.unit.replication.fake_partition_log import FakePartitionLog

FULL = PartitionImage(leader=1, leader_epoch=5, partition_epoch=7, replicas=(1, 2, 3), isr=(1, 2, 3))
MIN_ISR = 2


def change(
    partition: PartitionImage,
    *steps: Callable[[PartitionDraft], None],
    brokers: FakeBrokers | None = None,
    min_isr: int = MIN_ISR,
) -> PartitionImage:
    draft = PartitionDraft(partition, min_isr, FakeBrokers() if brokers is None else brokers)
    for step in steps:
        step(draft)
    return draft.result()


def reassign(
    partition: PartitionImage, *target: int, brokers: FakeBrokers | None = None, min_isr: int = MIN_ISR
) -> PartitionImage:
    return change(partition, lambda draft: draft.reassign(target), brokers=brokers, min_isr=min_isr)


def in_sync(
    partition: PartitionImage, *isr: int, brokers: FakeBrokers | None = None, min_isr: int = MIN_ISR
) -> PartitionImage:
    return change(partition, lambda draft: draft.alter(isr, is_recovering=False), brokers=brokers, min_isr=min_isr)


def lose(partition: PartitionImage, *lost: int, brokers: FakeBrokers, min_isr: int = MIN_ISR) -> PartitionImage:
    for each in lost:
        brokers.alive.discard(each)
        partition = change(partition, lambda draft, each=each: draft.lose(each), brokers=brokers, min_isr=min_isr)  # type: ignore[misc]
    return partition


def test_a_partition_has_old_and_new_replicas_until_the_new_ones_are_in_sync() -> None:
    moving = reassign(FULL, 4, 5, 2)
    assert moving == PartitionImage(
        1, 5, 8, (4, 5, 2, 1, 3), (2, 1, 3), reassignment=Reassignment((4, 5), (1, 3), (1, 2, 3))
    )
    assert moving.target == (4, 5, 2)
    one = in_sync(moving, 1, 2, 3, 4)
    assert one.reassignment == moving.reassignment
    assert in_sync(one, 1, 2, 3, 4, 5) == PartitionImage(4, 6, 10, (4, 5, 2), (4, 5, 2))


def test_a_leader_that_stays_leads_on() -> None:
    moving = reassign(FULL, 4, 1, 2)
    assert moving.leader_epoch == 5
    assert in_sync(moving, 1, 2, 3, 4) == PartitionImage(1, 6, 9, (4, 1, 2), (4, 1, 2))
    added = in_sync(reassign(FULL, 1, 2, 3, 4), 1, 2, 3, 4)
    assert added == PartitionImage(1, 5, 9, (1, 2, 3, 4), (1, 2, 3, 4))


@pytest.mark.parametrize("target", [(1, 2, 4), (1, 2)], ids=["one that was added", "one that was there"])
def test_a_replica_that_left_and_is_back_cannot_join_the_isr_by_a_fetch_from_before(target: tuple[int, ...]) -> None:
    """Its broker knows nothing of both changes yet: it fetches at the end of the log that the first one deletes."""
    before = reassign(FULL, 1, 2, 3, 4) if 4 in target else FULL
    gone = reassign(before, 1, 2, 3) if 4 in target else reassign(before, 1, 2)
    back = reassign(gone, *before.replicas)
    assert back.replicas == before.replicas
    leader = Partition(TopicPartition("t", 0), 1, FakePartitionLog(), lag_ms_max=30_000)
    live = dict.fromkeys(IDS, 7)
    leader.leadership(before, live, 0)
    leader.check_leader(before.leader_epoch)
    leader.leadership(back, live, 0)
    with pytest.raises(KafkaError) as refused:
        leader.check_leader(before.leader_epoch)
    assert refused.value.code is ErrorCode.fenced_leader_epoch


def test_replicas_that_are_only_reordered_or_removed_change_at_once() -> None:
    assert reassign(FULL, 3, 1, 2) == replace(FULL, partition_epoch=8, replicas=(3, 1, 2), isr=(3, 1, 2))
    assert reassign(FULL, 1, 3) == PartitionImage(1, 6, 8, (1, 3), (1, 3))
    assert reassign(FULL, 3, 2) == PartitionImage(3, 6, 8, (3, 2), (3, 2))
    assert reassign(FULL, 1, 2, 3) is FULL


def test_a_removed_replica_stays_while_the_isr_would_be_below_its_minimum() -> None:
    """What was acknowledged on brokers 1 and 2 would be on broker 2 alone: Kafka removes broker 1 at once."""
    behind = in_sync(FULL, 1, 2)
    moving = reassign(behind, 2, 3)
    assert (moving.replicas, moving.isr, moving.leader) == ((2, 3, 1), (2, 1), 1)
    done = in_sync(moving, 1, 2, 3)
    assert (done.replicas, done.isr, done.leader) == ((2, 3), (2, 3), 2)


def test_a_dead_replica_is_replaced_by_fewer() -> None:
    brokers = FakeBrokers()
    assert reassign(lose(FULL, 3, brokers=brokers), 1, 2, brokers=brokers).replicas == (1, 2)


def test_the_minimum_isr_of_a_single_replica_that_is_moved_is_one() -> None:
    """acks=all would be refused until the new replica is in sync."""
    alone = PartitionImage(leader=1, leader_epoch=5, partition_epoch=7, replicas=(1,), isr=(1,))
    moving = reassign(alone, 2)
    assert (moving.replicas, moving.least_replication_factor) == ((2, 1), 1)
    assert in_sync(moving, 1, 2) == PartitionImage(2, 6, 9, (2,), (2,))
    growing = reassign(alone, 1, 2, 3)
    assert growing.least_replication_factor == 1
    assert in_sync(growing, 1, 2, 3).least_replication_factor == 3


def test_a_replaced_reassignment_drops_what_it_has_begun_and_keeps_what_is_in_sync() -> None:
    begun = in_sync(reassign(FULL, 4, 5, 2), 1, 2, 3, 4)
    replaced = reassign(begun, 1, 2, 3)
    assert replaced == replace(FULL, leader_epoch=6, partition_epoch=10)
    brokers = FakeBrokers()
    weak = lose(begun, 2, 3, brokers=brokers)  # brokers 1 and 4 alone have what is acknowledged from now on
    other = reassign(weak, 1, 5, brokers=brokers)
    assert other.reassignment == Reassignment((5,), (4, 2, 3), (1, 2, 3))
    assert other.replicas == (1, 5, 4, 2, 3)


def test_a_leader_that_is_removed_stays_while_nobody_can_follow_it() -> None:
    brokers = FakeBrokers()
    moving = reassign(FULL, 4, 5, brokers=brokers)
    brokers.alive -= {4, 5}  # they shut down: they are in the ISR and not elected
    stuck = in_sync(moving, 1, 2, 3, 4, 5, brokers=brokers)
    assert (stuck.leader, stuck.reassignment) == (1, moving.reassignment)
    brokers.alive |= {4, 5}
    done = change(stuck, brokers=brokers)
    assert (done.leader, done.replicas, done.reassignment) == (4, (4, 5), None)


def test_without_a_leader_nothing_is_removed() -> None:
    brokers = FakeBrokers()
    dead = lose(FULL, 3, 2, 1, brokers=brokers)
    moving = reassign(dead, 1, 3, brokers=brokers)
    assert (moving.leader, moving.replicas) == (NO_BROKER, (1, 3, 2))
    assert moving.elr == (1, 2)


def test_an_unclean_election_prefers_a_replica_that_was_there_before() -> None:
    brokers = FakeBrokers()
    moving = reassign(FULL, 4, 5, 3, brokers=brokers)
    lost = lose(moving, 3, 2, 1, brokers=brokers)
    brokers.alive.add(3)
    unclean = change(lost, lambda draft: draft.elect(unclean=True), brokers=brokers)
    assert (unclean.leader, unclean.is_recovering) == (3, True)
    brokers.alive.discard(3)
    assert change(lost, lambda draft: draft.elect(unclean=True), brokers=brokers).leader == 4


def test_replicas_keep_their_log_folders() -> None:
    placed = replace(FULL, directories=("a", "b", "c"))
    moving = reassign(placed, 4, 2)
    assert moving.directories == ("", "b", "a", "c")
    done = in_sync(moving, 1, 2, 3, 4)
    assert (done.replicas, done.directories) == ((4, 2), ("", "b"))


@pytest.mark.parametrize("directories", [(), ("a", "b", "c")])
def test_a_reassignment_is_stored(directories: tuple[str, ...]) -> None:
    states = reassign(replace(FULL, directories=directories), 4, 5), FULL
    assert decode_chunk("", encode_chunk(states)) == states


class Replicas:
    """Logs of five brokers, as long as their number of records; what is below `committed` was acknowledged.

    A broker that is no replica any more deletes its log.
    """

    def __init__(self) -> None:
        self.brokers = FakeBrokers()
        self.state = first_partition_state((1, 2, 3))
        self.ends = dict.fromkeys(IDS, 0)
        self.flushed = dict.fromkeys(IDS, 0)
        self.committed = 0

    def run(self, operation: str, broker: int, amount: int, target: tuple[int, ...]) -> None:
        before = self.state
        if operation == "reassign":
            self.become(reassign(self.state, *target, brokers=self.brokers))
        else:
            getattr(self, operation)(broker, amount)
        self.check(before)

    def become(self, state: PartitionImage) -> None:
        self.state = state
        for each in set(IDS) - set(state.replicas):
            self.ends[each] = self.flushed[each] = 0
        self.commit()

    @property
    def is_led(self) -> bool:
        return self.state.leader in self.brokers.alive

    def cancel(self, broker: int, amount: int) -> None:
        """As the planner: refused if it cannot be done at once."""
        if self.state.reassignment is not None:
            cancelled = reassign(self.state, *self.state.reassignment.former, brokers=self.brokers)
            if cancelled.reassignment is None:
                assert cancelled.replicas == self.state.reassignment.former
                self.become(cancelled)

    def append(self, broker: int, amount: int) -> None:
        if self.is_led:
            self.ends[self.state.leader] += amount
            self.commit()

    def fetch(self, broker: int, amount: int) -> None:
        if self.is_led and broker in self.brokers.alive and broker in self.state.replicas:
            leader_end = self.ends[self.state.leader]
            self.ends[broker] = min(min(self.ends[broker], leader_end) + amount, leader_end)
            self.commit()

    def catch_up(self, broker: int, amount: int) -> None:
        self.fetch(broker, 1_000_000)

    def flush(self, broker: int, amount: int) -> None:
        if broker in self.brokers.alive:
            self.flushed[broker] = self.ends[broker]

    def grow(self, broker: int, amount: int) -> None:
        is_follower = broker in self.brokers.alive and broker in self.state.replicas
        if self.is_led and is_follower and self.ends[broker] == self.ends[self.state.leader]:
            self.become(in_sync(self.state, *{*self.state.isr, broker}, brokers=self.brokers))

    def shrink(self, broker: int, amount: int) -> None:
        if self.is_led and broker != self.state.leader:
            self.become(in_sync(self.state, *{*self.state.isr} - {broker}, brokers=self.brokers))

    def die(self, broker: int, amount: int) -> None:
        if broker in self.brokers.alive:
            self.become(lose(self.state, broker, brokers=self.brokers))

    def return_cleanly(self, broker: int, amount: int) -> None:
        if broker not in self.brokers.alive:
            self._come_back(broker, is_clean=True)

    def bounce(self, broker: int, amount: int) -> None:
        """A power loss, where another replica has every committed record."""
        if {*self.state.isr, *self.state.elr} - {broker}:
            self.ends[broker] = min(self.ends[broker], self.flushed[broker])
            self._come_back(broker, is_clean=False)

    def _come_back(self, broker: int, *, is_clean: bool) -> None:
        self.brokers.alive.add(broker)
        if broker in self.state.replicas:
            steps = (lambda draft: draft.come_back(broker, is_clean=is_clean)), (lambda draft: draft.elect())
            self.become(change(self.state, *steps, brokers=self.brokers))

    def commit(self) -> None:
        if self.is_led and len(self.state.isr) >= min(MIN_ISR, self.state.least_replication_factor):
            self.committed = max(self.committed, min(self.ends[member] for member in self.state.isr))

    def check(self, before: PartitionImage) -> None:
        state, alive = self.state, self.brokers.alive
        assert decode_chunk("", encode_chunk([state])) == (state,)
        assert state.target
        assert state.isr or state.elr
        for member in (*state.isr, *state.elr):
            assert member in state.replicas
            assert self.ends[member] >= self.committed, f"{member} may lead and lacks committed records: {state}"
        assert set(state.isr) <= alive
        assert state.leader == NO_BROKER or state.leader in state.isr
        assert not set(state.isr) & set(state.elr)
        assert not state.elr or len(state.isr) < min(MIN_ISR, state.least_replication_factor)
        assert not state.is_recovering
        if state.leader == NO_BROKER:
            assert not state.isr
            assert not set(state.elr) & alive
        changed = state is not before
        assert state.partition_epoch == before.partition_epoch + changed
        assert state.leader_epoch - before.leader_epoch in ((0, 1) if changed else (0,))
        if state.leader != before.leader or set(before.replicas) - set(state.replicas):
            assert state.leader_epoch > before.leader_epoch
        if (moving := state.reassignment) is not None and state.leader != NO_BROKER:
            staying = set(state.isr) - set(moving.removing)
            assert len(staying) < MIN_ISR or not set(moving.adding) <= staying, f"all is there: {state}"

    def settle(self) -> None:
        """All brokers return, and every replica catches up."""
        for broker in IDS:
            self.return_cleanly(broker, 0)
        for _ in IDS:
            for broker in self.state.replicas:
                self.catch_up(broker, 0)
                self.grow(broker, 0)


OPERATIONS = [
    *["append", "fetch", "catch_up", "catch_up", "flush", "grow", "grow", "grow", "shrink"],
    *["die", "return_cleanly", "bounce", "reassign", "reassign", "cancel"],
]
TARGETS = st.permutations(IDS).flatmap(lambda ids: st.integers(1, 4).map(lambda count: tuple(ids[:count])))


@settings(max_examples=examples(400))
@given(
    st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(IDS), st.integers(1, 3), TARGETS),
        min_size=20,
        max_size=60,
    )
)
def test_nothing_committed_is_lost_and_each_reassignment_ends(
    operations: list[tuple[str, int, int, tuple[int, ...]]],
) -> None:
    """Invariants 2 and 6 among reassignments and cancellations; once all brokers are back, the last one ends."""
    replicas = Replicas()
    target = replicas.state.replicas
    for operation in operations:
        replicas.run(*operation)
        if operation[0] == "reassign":
            target = operation[3]
        elif operation[0] == "cancel":
            target = replicas.state.target
    replicas.settle()
    assert replicas.state.reassignment is None
    assert replicas.state.replicas == target
    assert set(replicas.state.isr) == set(target)
    assert all(replicas.ends[each] >= replicas.committed for each in target)
