"""The checks find planted bugs of replication: each is one mistake that others have made."""

from __future__ import annotations

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from headwater.logtier.controller.controller_election import ControllerElection
from headwater.logtier.controller.partition_draft import PartitionDraft
from headwater.logtier.controller.registration import BrokerRegistrar
from headwater.logtier.log.leader_epochs import LeaderEpochs
from headwater.logtier.metadata import paths
from headwater.logtier.metadata.level_watches import LevelWatches
from headwater.logtier.metadata.store import SessionState
from headwater.logtier.peers.replica_fetch import ReplicaFetchPartition
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.replication.fetching.follower_logs import FollowerLogs
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import WatermarkMoved
from tests.simulation.cluster.run import run_cluster
from tests.simulation.faults import draw_faults

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 12
DURATION_S = 15.0


def acknowledged_when_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "acknowledgement", lambda *_: ErrorCode.none)


def the_watermark_is_the_log_end(patch: pytest.MonkeyPatch) -> None:
    def advance(self: Partition[Any]) -> bool:
        end = self.log.log_end_offset
        has_risen = self.is_leader and end > self.high_watermark
        if has_risen:
            self.high_watermark = end
        return has_risen

    patch.setattr(Partition, "_advance", advance)


def the_watermark_moves_below_the_minimal_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "min_isr", property(lambda _: 1))


def a_removal_counts_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    """KIP-497: the controller may refuse it, and elect who was removed."""
    propose = Partition._propose

    def adopt(self: Partition[Any], isr: Iterable[int], repeated: Any = None) -> Any:
        proposal = propose(self, isr, repeated)
        self.isr = tuple(each for each in self.isr if each in proposal.isr)
        return proposal

    patch.setattr(Partition, "_propose", adopt)


def a_follower_joins_wherever_its_log_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_may_join", lambda self, broker_id, follower: self._is_eligible(broker_id, follower))
    patch.setattr(Partition, "_holds_watermark", lambda self, broker_id, *_: broker_id in self.isr)


def a_watermark_is_adopted_before_the_truncation(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-14704."""
    answered = Partition.answered

    def adopt_first(self: Partition[Any], *, diverging: Any = None, high_watermark: int, **others: Any) -> Any:
        if diverging is not None and self.high_watermark < self.log.log_end_offset:
            self.high_watermark = self.log.log_end_offset
            return (WatermarkMoved(self.high_watermark),)
        return answered(self, diverging=diverging, high_watermark=high_watermark, **others)

    patch.setattr(Partition, "answered", adopt_first)


def a_follower_does_not_truncate(patch: pytest.MonkeyPatch) -> None:
    """KIP-101, 279."""
    patch.setattr(Partition, "divergence", lambda *_: None)


def a_follower_truncates_to_its_watermark(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: what it has above may be acknowledged."""
    moved = Partition.leadership

    def truncate(self: Partition[Any], *arguments: Any) -> Any:
        before = self.leader_epoch
        done = moved(self, *arguments)
        if not self.is_leader and self.leader_epoch > before >= 0:
            self.log.truncate_to(self.high_watermark)
        return done

    patch.setattr(Partition, "leadership", truncate)


def any_replica_is_elected(patch: pytest.MonkeyPatch) -> None:
    def elect(self: PartitionDraft, *, unclean: bool = False) -> None:
        del unclean
        if self._leader < 0 and (leader := self._first_of(self._before.replicas)) >= 0:
            self._lead(leader, (*self._isr, leader) if leader not in self._isr else self._isr)

    patch.setattr(PartitionDraft, "elect", elect)


def a_broker_keeps_its_place_after_a_power_loss(patch: pytest.MonkeyPatch) -> None:
    """KIP-966: it may have lost its unflushed tail."""
    come_back = PartitionDraft.come_back
    patch.setattr(
        PartitionDraft, "come_back", lambda self, broker_id, *, is_clean: come_back(self, broker_id, is_clean=True)
    )


def a_follower_adopts_the_watermark_of_its_leader(patch: pytest.MonkeyPatch) -> None:
    """The leader's, although its own log is shorter."""
    answered = Partition.answered

    def adopt(self: Partition[Any], *, high_watermark: int, diverging: Any = None, **others: Any) -> Any:
        out = answered(self, high_watermark=high_watermark, diverging=diverging, **others)
        if diverging is None and high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            out = (WatermarkMoved(high_watermark), *out)
        return out

    patch.setattr(Partition, "answered", adopt)


def a_refused_proposal_outlasts_the_newer_state(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-2729: the leader never takes over the version that it conflicted with."""
    moved = Partition.leadership

    def keep(self: Partition[Any], *arguments: Any) -> Any:
        before = self._proposal
        done = moved(self, *arguments)
        if self.is_leader:
            self._proposal = self._proposal or before
        return done

    patch.setattr(Partition, "leadership", keep)


def a_controller_takes_its_own_node_for_anothers(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-13461, and an election whose answer was lost."""

    async def stand(self: ControllerElection) -> bool:
        return not await self._store.exists(paths.CONTROLLER) and await self._controller.elect()

    patch.setattr(ControllerElection, "_stand", stand)


def watches_are_not_armed_again(patch: pytest.MonkeyPatch) -> None:
    """Events that a lost connection took are not looked for."""
    patch.setattr(LevelWatches, "connected", lambda _: None)


def a_broker_whose_session_ended_stays_away(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-7165: it ran, and nobody knew it."""
    settled = BrokerRegistrar._is_settled

    async def give_up(self: BrokerRegistrar) -> bool:
        return self._store.state is SessionState.LOST or await settled(self)

    patch.setattr(BrokerRegistrar, "_is_settled", give_up)


def an_epoch_without_records_is_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    """KAFKA-10706: a follower asks with it, gets an answer that it diverges, truncates nothing, and asks again."""
    position = FollowerLogs.position

    def truncate(self: LeaderEpochs, end_offset: int) -> None:
        keep = bisect_right(self._start_offsets, end_offset)
        if keep < len(self._epochs):
            self._set(self._epochs[:keep], self._start_offsets[:keep])
            self._write()

    def newest(self: FollowerLogs, followed: Any, bytes_max: int) -> ReplicaFetchPartition | None:
        found = position(self, followed, bytes_max)
        partition = self._partition(followed)
        if found is None or partition is None:
            return found
        return found._replace(last_fetched_epoch=partition.log.leader_epochs.latest)

    patch.setattr(LeaderEpochs, "truncate_from_end", truncate)
    patch.setattr(FollowerLogs, "position", newest)


def every_epoch_ends_at_the_log_end(patch: pytest.MonkeyPatch) -> None:
    """KIP-279, KAFKA-6361: a leader that does not know where an earlier epoch ended."""

    def end(self: Partition[Any], leader_epoch: int) -> tuple[int, int]:
        known = leader_epoch <= self.leader_epoch
        return (leader_epoch, self.log.log_end_offset) if known else (-1, -1)

    patch.setattr(Partition, "end_of_epoch", end)


def added_replicas_count_as_in_sync(patch: pytest.MonkeyPatch) -> None:
    """A reassignment ends before they have copied the partition."""
    complete = PartitionDraft._complete

    def at_once(self: PartitionDraft) -> None:
        if self._reassignment is not None and self._leader >= 0:
            isr = {*self._isr, *self._reassignment.adding}
            self._isr = tuple(each for each in self._replicas if each in isr)
        complete(self)

    patch.setattr(PartitionDraft, "_complete", at_once)


def a_reassignment_leaves_one_replica_in_sync(patch: pytest.MonkeyPatch) -> None:
    """As Kafka's: what was acknowledged on the minimum of replicas is on one."""
    complete = PartitionDraft._complete

    def with_one(self: PartitionDraft) -> None:
        minimum, self._min_insync_replicas = self._min_insync_replicas, 1
        complete(self)
        self._min_insync_replicas = minimum

    patch.setattr(PartitionDraft, "_complete", with_one)


#: What the checks say of each, and a seed of which they say it.
PLANTS: dict[Plant, tuple[str, int]] = {
    acknowledged_when_appended: ("was acknowledged, the high watermark was", 1),
    the_watermark_is_the_log_end: ("does not have", 1),
    a_follower_truncates_to_its_watermark: ("a log was cut", 1),
    a_follower_adopts_the_watermark_of_its_leader: ("high watermark", 2),
    any_replica_is_elected: ("elected out of the ISR", 1),
    the_watermark_moves_below_the_minimal_isr: ("is committed on", 7),
    a_removal_counts_before_it_is_decided: ("does not have", 3),
    a_follower_joins_wherever_its_log_ends: ("does not have", 1),
    a_watermark_is_adopted_before_the_truncation: ("has high watermark", 4),
    a_follower_does_not_truncate: ("logs differ", 2),
    a_broker_keeps_its_place_after_a_power_loss: ("lacks what is committed", 111),
    a_refused_proposal_outlasts_the_newer_state: ("after the last fault", 2),
    a_controller_takes_its_own_node_for_anothers: ("are not stable", 12),
    watches_are_not_armed_again: ("after the last fault", 1),
    a_broker_whose_session_ended_stays_away: ("after the last fault", 1),
    an_epoch_without_records_is_never_forgotten: ("after the last fault", 1),
    every_epoch_ends_at_the_log_end: ("logs differ", 2),
    added_replicas_count_as_in_sync: ("lacks what is committed", 1),
    a_reassignment_leaves_one_replica_in_sync: ("was removed from too small an ISR", 1),
}
#: They take a second and more.
SLOW: set[Plant] = {
    a_follower_joins_wherever_its_log_ends,
    any_replica_is_elected,
    a_follower_does_not_truncate,
    a_watermark_is_adopted_before_the_truncation,
    a_broker_keeps_its_place_after_a_power_loss,
    a_refused_proposal_outlasts_the_newer_state,
    a_controller_takes_its_own_node_for_anothers,
    watches_are_not_armed_again,
    a_broker_whose_session_ended_stays_away,
    an_epoch_without_records_is_never_forgotten,
    every_epoch_ends_at_the_log_end,
    added_replicas_count_as_in_sync,
    a_reassignment_leaves_one_replica_in_sync,
}
#: Faults of a plant that few of all kinds of faults bring to light.
KINDS: dict[Plant, list[str]] = {a_broker_keeps_its_place_after_a_power_loss: ["crash", "power_loss", "crash_all"]}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=pytest.mark.slow if plant in SLOW else [], id=plant.__name__) for plant in PLANTS],
)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    message, first = PLANTS[plant]
    found = []
    for seed in range(first, first + SEEDS_MAX):
        kinds = KINDS.get(plant)
        faults = None if kinds is None else draw_faults(random.Random(seed), DURATION_S, kinds)
        violation = run_cluster(seed, DURATION_S, faults).violation
        if violation is not None:
            found.append(violation)
            if message in violation:
                return
    pytest.fail(f"not found: {found}")
