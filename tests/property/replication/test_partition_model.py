"""A leader, its followers and a controller, with lost answers and late metadata: nothing committed is ever missing.

The leader is the state machine; followers are their true log ends; the controller applies the rules of AlterPartition.
After each step the records below the high watermark are on every member of the ISR that the controller has stored,
which the leader may not know yet: any of these members may be elected.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.logtier.config import TopicConfig
from headwater.logtier.metadata.topic_nodes import PartitionImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.partition import Partition
from headwater.logtier.replication.partition_instructions import IsrDecision, ProposeIsr, WatermarkMoved
from tests.example_counts import examples
from tests.unit.replication.fake_partition_log import FakePartitionLog

LEADER, FOLLOWERS = 1, (2, 3)
LAG_MS = 100


@dataclass
class Follower:
    """What is true of a follower: its log's end, its broker's epoch, and its fetches on the way to the leader."""

    end: int
    epoch: int
    is_live: bool = True


class Cluster:
    """The world around one leader."""

    def __init__(self, min_isr: int, leader_end: int) -> None:
        self.log = FakePartitionLog(log_end_offset=leader_end, config=TopicConfig(min_insync_replicas=min_isr))
        self.min_isr = min_isr
        self.partition = Partition(TopicPartition("t", 0), LEADER, self.log, lag_ms_max=LAG_MS)
        self.stored = PartitionImage(LEADER, 1, 1, (1, 2, 3), (1,))
        self.followers = {each: Follower(0, 10 + each) for each in FOLLOWERS}
        self.now_ms = 0
        #: Changes that the leader has not heard of: the stored state, and the live brokers.
        self.changes: deque[tuple[PartitionImage, dict[int, int]]] = deque()
        self.requested: ProposeIsr | None = None
        self.answered: tuple[ProposeIsr, IsrDecision] | None = None
        self.watermark = 0
        #: Fetches of former incarnations that are still on their way.
        self.late_fetches: list[tuple[int, int, int]] = []
        self.follow(self.partition.leadership(self.stored, self.brokers(), 0))

    def brokers(self) -> dict[int, int]:
        return {LEADER: 11, **{each: known.epoch for each, known in self.followers.items() if known.is_live}}

    def follow(self, out: object) -> None:
        for each in out:  # type: ignore[attr-defined]
            if isinstance(each, ProposeIsr):
                assert self.requested is None, "one proposal at a time"
                self.requested = each
            if isinstance(each, WatermarkMoved):
                assert each.high_watermark == self.partition.high_watermark

    def changed(self, **fields: object) -> None:
        self.stored = replace(self.stored, partition_epoch=self.stored.partition_epoch + 1, **fields)  # type: ignore[arg-type]
        self.changes.append((self.stored, self.brokers()))

    # ---- steps ----

    def append(self, count: int) -> None:
        self.log.log_end_offset += count
        self.partition.appended()

    def fetch(self, who: int, behind: int) -> None:
        """A follower has what it fetched last, and asks for what follows."""
        follower = self.followers[who]
        follower.end = max(follower.end, self.log.log_end_offset - behind)
        if follower.is_live:
            self.deliver(who, follower.end, follower.epoch)

    def deliver(self, who: int, end: int, epoch: int) -> None:
        try:
            out = self.partition.fetched(
                who, fetch_offset=end, log_start_offset=0, broker_epoch=epoch, now_ms=self.now_ms
            )
        except KafkaError as error:
            assert error.code is ErrorCode.not_leader_or_follower
            return
        self.follow(out)

    def late_fetch(self, who: int, _: int) -> None:
        if self.late_fetches:
            self.deliver(*self.late_fetches.pop(0))

    def bounce(self, who: int, lost: int) -> None:
        """A follower dies uncleanly and comes back with less: the controller takes it out of the ISR first."""
        follower = self.followers[who]
        self.late_fetches.append((who, follower.end, follower.epoch))
        isr = tuple(each for each in self.stored.isr if each != who)
        follower.end = max(0, follower.end - lost)
        follower.epoch += 10
        self.changed(isr=isr)

    def fence(self, who: int, _: int) -> None:
        follower = self.followers[who]
        follower.is_live = not follower.is_live
        self.changed(isr=tuple(each for each in self.stored.isr if each != who or follower.is_live))

    def hear(self, _: int) -> None:
        """The leader applies the next entry of the change list."""
        if self.changes:
            stored, brokers = self.changes.popleft()
            self.follow(self.partition.live_brokers_changed(brokers, self.now_ms))
            self.check()
            self.forget_superseded(stored)
            self.follow(self.partition.leadership(stored, brokers, self.now_ms))

    def forget_superseded(self, stored: PartitionImage) -> None:
        """A newer state replaces the proposal; its sender gives it up or its answer comes too late."""
        if stored.partition_epoch > self.partition.partition_epoch and self.requested is not None:
            self.decide(self.requested)
            self.requested = None

    def decide(self, proposal: ProposeIsr) -> IsrDecision:
        """What the controller does with a proposal that reaches it."""
        brokers = self.brokers()
        state = self.stored
        if set(proposal.isr) == set(state.isr):
            return IsrDecision(ErrorCode.none, state.leader_epoch, state.partition_epoch, state.isr)
        if proposal.partition_epoch < state.partition_epoch:
            return IsrDecision(ErrorCode.invalid_update_version)
        if any(brokers.get(each) != epoch for each, epoch in proposal.members if each not in state.isr):
            return IsrDecision(ErrorCode.ineligible_replica)
        self.changed(isr=proposal.isr)
        return IsrDecision(ErrorCode.none, self.stored.leader_epoch, self.stored.partition_epoch, self.stored.isr)

    def answer(self, fate: int) -> None:
        """The proposal reaches the controller, or not; its answer arrives, or is lost."""
        proposal, self.requested = self.requested, None
        if proposal is None:
            return
        decision = self.decide(proposal) if fate else IsrDecision(ErrorCode.request_timed_out)
        if fate == 1:
            decision = IsrDecision(ErrorCode.network_exception)
        elif decision.error_code is ErrorCode.none:
            # The leader adopts an answer only after all earlier entries of the change list.
            while self.changes and self.changes[0][0].partition_epoch < decision.partition_epoch:
                self.hear(0)
                self.check()
        self.follow(self.partition.isr_decided(proposal, decision))

    def time(self, ms: int) -> None:
        self.now_ms += ms
        self.follow(self.partition.tick(self.now_ms))

    # ---- what must hold ----

    def check(self) -> None:
        watermark = self.partition.high_watermark
        assert watermark >= self.watermark, "the high watermark never goes back"
        ends = {LEADER: self.log.log_end_offset, **{each: known.end for each, known in self.followers.items()}}
        for member in self.stored.isr:
            assert ends[member] >= watermark, f"{member} may be elected, and ends at {ends[member]} below {watermark}"
        if watermark > self.watermark:
            assert len(self.partition.isr) >= self.min_isr, "committed below the minimum"
        self.watermark = watermark


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("fetch"), st.sampled_from(FOLLOWERS), st.sampled_from([0, 0, 0, 1, 3])),
        st.tuples(st.just("fetch"), st.sampled_from(FOLLOWERS), st.sampled_from([0, 0, 0, 1, 3])),
        st.tuples(st.just("late_fetch"), st.just(0), st.just(0)),
        st.tuples(st.just("bounce"), st.sampled_from(FOLLOWERS), st.sampled_from([0, 1, 100])),
        st.tuples(st.just("fence"), st.sampled_from(FOLLOWERS), st.just(0)),
        st.tuples(st.just("hear"), st.just(0)),
        st.tuples(st.just("hear"), st.just(0)),
        st.tuples(st.just("answer"), st.integers(0, 4)),
        st.tuples(st.just("answer"), st.integers(0, 4)),
        st.tuples(st.just("time"), st.sampled_from([10, 60, 101])),
    ),
    max_size=60,
)


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(1, 3), st.integers(0, 5), steps)
def test_what_is_committed_is_on_everyone_who_may_be_elected(
    min_isr: int, leader_end: int, events: list[tuple[object, ...]]
) -> None:
    cluster = Cluster(min_isr, leader_end)
    for name, *arguments in events:
        getattr(cluster, str(name))(*arguments)
        cluster.check()


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 3), steps)
def test_the_isr_fills_again_when_all_is_well(min_isr: int, events: list[tuple[object, ...]]) -> None:
    cluster = Cluster(min_isr, 3)

    def step(name: str, *arguments: object) -> None:
        getattr(cluster, name)(*arguments)
        cluster.check()

    for name, *arguments in events:
        step(str(name), *arguments)
    for each, follower in cluster.followers.items():
        if not follower.is_live:
            step("fence", each, 0)
    for _ in range(8):
        step("append", 1)
        for each in FOLLOWERS:
            step("fetch", each, 0)
        step("answer", 4)
        while cluster.changes:
            step("hear", 0)
    assert set(cluster.stored.isr) == set(cluster.partition.isr) == {1, 2, 3}
    for each in FOLLOWERS:
        step("fetch", each, 0)
    assert cluster.partition.high_watermark == cluster.log.log_end_offset
