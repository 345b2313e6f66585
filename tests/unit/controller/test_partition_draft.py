"""KIP-966: who may lead while replicas come and go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.controller.partition_draft import PartitionDraft
from headwater.logtier.metadata.topic_nodes import (
    NO_BROKER,
    PartitionImage,
    decode_chunk,
    encode_chunk,
    first_partition_state,
)
from tests.example_counts import examples
from tests.unit.controller.fake_brokers import FakeBrokers

FULL = PartitionImage(leader=1, leader_epoch=5, partition_epoch=7, replicas=(1, 2, 3), isr=(1, 2, 3))


def change(
    partition: PartitionImage, brokers: FakeBrokers, *steps: Callable[[PartitionDraft], None], min_isr: int = 2
) -> PartitionImage:
    draft = PartitionDraft(partition, min_isr, brokers)
    for step in steps:
        step(draft)
    return draft.result()


def lose(partition: PartitionImage, broker: int, brokers: FakeBrokers, min_isr: int = 2) -> PartitionImage:
    brokers.alive.discard(broker)
    return change(partition, brokers, lambda draft: draft.lose(broker), min_isr=min_isr)


def come_back(
    partition: PartitionImage, broker: int, brokers: FakeBrokers, *, is_clean: bool, min_isr: int = 2
) -> PartitionImage:
    brokers.alive.add(broker)
    return change(
        partition,
        brokers,
        lambda draft: draft.come_back(broker, is_clean=is_clean),
        lambda draft: draft.elect(),
        min_isr=min_isr,
    )


def test_a_leader_that_dies_is_replaced_by_the_next_of_the_isr() -> None:
    assert lose(FULL, 1, FakeBrokers()) == PartitionImage(2, 6, 8, (1, 2, 3), (2, 3))


def test_a_follower_that_dies_leaves_the_isr_and_the_leader_leads_on_in_its_epoch() -> None:
    assert lose(FULL, 3, FakeBrokers()) == PartitionImage(1, 5, 8, (1, 2, 3), (1, 2))


def test_below_the_minimum_those_who_left_the_isr_stay_eligible() -> None:
    brokers = FakeBrokers()
    one = lose(lose(FULL, 3, brokers), 2, brokers)
    # Broker 3 left a full ISR, after which records were committed without it.
    assert (one.isr, one.elr, one.leader) == ((1,), (2,), 1)


def test_the_last_member_is_eligible_and_known_as_the_last_leader() -> None:
    brokers = FakeBrokers()
    none = lose(lose(lose(FULL, 3, brokers), 2, brokers), 1, brokers)
    assert (none.leader, none.isr, none.elr, none.last_known_leader) == (NO_BROKER, (), (1, 2), 1)
    assert none.leader_epoch == FULL.leader_epoch + 1


def test_an_eligible_replica_that_returns_leads_and_the_other_stays_eligible() -> None:
    brokers = FakeBrokers()
    none = lose(lose(lose(FULL, 3, brokers), 2, brokers), 1, brokers)
    back = come_back(none, 2, brokers, is_clean=True)
    assert (back.leader, back.isr, back.elr, back.last_known_leader) == (2, (2,), (1,), NO_BROKER)
    assert not back.is_recovering


def test_the_last_replica_standing_that_lost_its_unflushed_tail_does_not_lead() -> None:
    """KIP-966: broker 1 has committed records beside broker 2 and alone has lost them."""
    brokers = FakeBrokers()
    none = lose(lose(lose(FULL, 3, brokers), 2, brokers), 1, brokers)
    back = come_back(none, 1, brokers, is_clean=False)
    assert (back.leader, back.isr, back.elr) == (NO_BROKER, (), (2,))
    assert come_back(back, 2, brokers, is_clean=True).leader == 2


def test_when_every_eligible_replica_lost_its_tail_the_last_known_leader_recovers() -> None:
    brokers = FakeBrokers()
    partition = lose(lose(lose(FULL, 3, brokers), 2, brokers), 1, brokers)
    partition = come_back(partition, 2, brokers, is_clean=False)
    assert partition.leader == NO_BROKER
    partition = come_back(partition, 1, brokers, is_clean=False)
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
    assert partition.is_recovering


def test_a_replica_that_is_neither_in_the_isr_nor_eligible_leads_only_if_unclean_elections_are_asked_for() -> None:
    brokers = FakeBrokers()
    none = lose(lose(lose(FULL, 3, brokers), 2, brokers), 1, brokers)
    brokers.alive.add(3)
    assert change(none, brokers, lambda draft: draft.elect()) is none
    unclean = change(none, brokers, lambda draft: draft.elect(unclean=True))
    assert (unclean.leader, unclean.isr, unclean.elr, unclean.is_recovering) == (3, (3,), (), True)


def test_the_eligible_replicas_are_forgotten_when_the_isr_has_the_minimum_again() -> None:
    brokers = FakeBrokers()
    one = lose(lose(FULL, 3, brokers), 2, brokers)
    two = change(one, brokers, lambda draft: draft.alter((1, 3), is_recovering=False))
    assert (two.isr, two.elr) == ((1, 3), ())


def test_a_minimum_above_the_number_of_replicas_counts_as_all_replicas() -> None:
    assert lose(FULL, 3, FakeBrokers(), min_isr=9).elr == (3,)


def test_a_broker_that_bounced_within_its_session_is_elected_again_at_most_in_the_next_epoch() -> None:
    """KIP-380."""
    alone = PartitionImage(leader=1, leader_epoch=5, partition_epoch=7, replicas=(1,), isr=(1,))
    for is_clean in (True, False):
        back = come_back(alone, 1, FakeBrokers({1}), is_clean=is_clean, min_isr=1)
        assert back == PartitionImage(leader=1, leader_epoch=6, partition_epoch=8, replicas=(1,), isr=(1,))


def test_a_leader_without_room_gives_way_to_one_that_has_room_and_else_stays() -> None:
    brokers = FakeBrokers(full={1})
    assert change(FULL, brokers, lambda draft: draft.give_way()).leader == 2
    brokers.full = {1, 2}
    assert change(FULL, brokers, lambda draft: draft.give_way()).leader == 3
    brokers.full = {1, 2, 3}
    assert change(FULL, brokers, lambda draft: draft.give_way()) is FULL


def test_room_comes_before_the_order_of_the_assignment_and_never_leaves_a_partition_without_a_leader() -> None:
    assert lose(FULL, 1, FakeBrokers(full={2})).leader == 3
    assert lose(FULL, 1, FakeBrokers(full={2, 3})).leader == 2


def test_the_preferred_replica_leads_again_once_it_is_in_the_isr() -> None:
    brokers = FakeBrokers()
    away = lose(FULL, 1, brokers)
    brokers.alive.add(1)
    assert change(away, brokers, lambda draft: draft.prefer(1)) is away
    grown = change(away, brokers, lambda draft: draft.alter((1, 2, 3), is_recovering=False))
    assert change(grown, brokers, lambda draft: draft.prefer(1)).leader == 1


@pytest.mark.parametrize("leader_dies", [True, False])
def test_a_state_without_a_full_isr_is_stored_whole(leader_dies: bool) -> None:
    brokers = FakeBrokers()
    partition = lose(lose(FULL, 3, brokers), 2, brokers)
    if leader_dies:
        partition = lose(partition, 1, brokers)
    assert decode_chunk("", encode_chunk([partition, FULL])) == (partition, FULL)


MIN_ISR = 2


class Replicas:
    """Logs of three replicas, as long as their number of records; what is below `committed` was acknowledged."""

    def __init__(self) -> None:
        self.brokers = FakeBrokers()
        self.state = first_partition_state((1, 2, 3))
        self.ends = {1: 0, 2: 0, 3: 0}
        self.flushed = {1: 0, 2: 0, 3: 0}
        self.committed = 0
        self.losses: set[int] = set()

    def run(self, operation: str, broker: int, amount: int) -> None:
        before = self.state
        getattr(self, operation)(broker, amount)
        self.check(before)

    def append(self, broker: int, amount: int) -> None:
        if self.state.leader in self.brokers.alive:
            self.ends[self.state.leader] += amount
            self.commit()

    def fetch(self, broker: int, amount: int) -> None:
        """A follower is cut to what the leader has, and takes some of the rest."""
        leader = self.state.leader
        if leader in self.brokers.alive and broker in self.brokers.alive and broker != leader:
            self.ends[broker] = min(max(self.ends[broker], self.committed) + amount, self.ends[leader])
            self.commit()

    def flush(self, broker: int, amount: int) -> None:
        if broker in self.brokers.alive:
            self.flushed[broker] = self.ends[broker]

    def grow(self, broker: int, amount: int) -> None:
        """A follower that has caught up joins the ISR."""
        leader = self.state.leader
        if leader in self.brokers.alive and broker in self.brokers.alive and self.ends[broker] == self.ends[leader]:
            self.alter((*self.state.isr, broker))

    def shrink(self, broker: int, amount: int) -> None:
        """A follower that is slow leaves the ISR."""
        if self.state.leader in self.brokers.alive and broker != self.state.leader:
            self.alter(tuple(member for member in self.state.isr if member != broker))

    def alter(self, isr: tuple[int, ...]) -> None:
        self.state = change(self.state, self.brokers, lambda draft: draft.alter(isr, is_recovering=False))
        self.commit()
        if set(self.state.isr) == {1, 2, 3}:
            self.losses.clear()

    def die(self, broker: int, amount: int) -> None:
        if broker in self.brokers.alive:
            self.state = lose(self.state, broker, self.brokers)

    def return_cleanly(self, broker: int, amount: int) -> None:
        if broker not in self.brokers.alive:
            self.state = come_back(self.state, broker, self.brokers, is_clean=True)

    def bounce(self, broker: int, amount: int) -> None:
        """A power loss of fewer replicas than the minimum ISR until the ISR is full again: nothing may be lost."""
        if len(self.losses | {broker}) < MIN_ISR:
            self.losses.add(broker)
            self.ends[broker] = min(self.ends[broker], self.flushed[broker])
            self.state = come_back(self.state, broker, self.brokers, is_clean=False)

    def commit(self) -> None:
        if len(self.state.isr) >= MIN_ISR:
            self.committed = max(self.committed, min(self.ends[member] for member in self.state.isr))

    def check(self, before: PartitionImage) -> None:
        state, alive = self.state, self.brokers.alive
        for member in (*state.isr, *state.elr):
            assert self.ends[member] >= self.committed, f"{member} may lead and lacks committed records: {state}"
        assert set(state.isr) <= alive
        assert state.leader == NO_BROKER or state.leader in state.isr
        assert not set(state.isr) & set(state.elr)
        assert not state.elr or len(state.isr) < MIN_ISR
        assert not state.is_recovering
        if state.leader == NO_BROKER:
            assert not state.isr
            assert not set(state.elr) & alive
        changed = state is not before
        assert state.partition_epoch == before.partition_epoch + changed
        assert state.leader_epoch - before.leader_epoch in ((0, 1) if changed else (0,))
        if state.leader != before.leader:
            assert state.leader_epoch > before.leader_epoch


OPERATIONS = ["append", "fetch", "fetch", "flush", "grow", "shrink", "die", "return_cleanly", "bounce"]


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 3), st.integers(1, 3)), min_size=20, max_size=60))
def test_whoever_may_lead_has_every_committed_record(operations: list[tuple[str, int, int]]) -> None:
    """Invariants 2 and 6, with power losses of one replica until the ISR is full again."""
    replicas = Replicas()
    for operation in operations:
        replicas.run(*operation)
