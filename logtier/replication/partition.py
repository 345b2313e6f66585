"""One partition on this broker; pure: it decides, the replica manager acts."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.follower_state import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, FollowerState
from headwater.logtier.replication.partition_instructions import (
    NOTHING,
    FollowerInstructions,
    Instruction,
    Instructions,
    IsrBelowMinimum,
    IsrDecision,
    IsrMember,
    LeaderFence,
    LeadershipMoved,
    LowWatermarkMoved,
    ProposeIsr,
    RaiseLogStart,
    StoredPartition,
    Truncate,
    WatermarkMoved,
)
from headwater.logtier.replication.partition_log import PartitionLog

LogT = TypeVar("LogT", bound=PartitionLog)

#: Leader of a partition that has none, as far as this broker knows.
NO_LEADER: Final = -1
#: Leader epoch of a client that does not know it (KIP-320).
NO_LEADER_EPOCH: Final = -1

#: The controller has a newer state than the proposal; after other errors the proposal may have been accepted or not.
_SUPERSEDED: Final = frozenset(
    (
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    )
)

_LEADERSHIP_MOVED: Final = (LeadershipMoved(),)
_NO_FOLLOWERS: Final[Mapping[int, FollowerState]] = MappingProxyType({})
_NO_BROKERS: Final[Mapping[int, int]] = MappingProxyType({})


class Partition(Generic[LogT]):
    """Leadership, in-sync replicas, followers and high watermark of one partition.

    Events come in as calls, instructions go out as their results; the log is only read. Invariants:

    - The high watermark is at most the log end offset of every member of the maximal ISR: the ISR in the metadata and
      the additions under way; a removal under way still counts (KIP-497). It never falls while this broker leads.
    - Leader and partition epochs never fall.
    - At most one proposal for another ISR is under way; the metadata alone changes `isr`.
    - `leader_id` is the leader in the metadata, except while this broker is fenced: it is never this broker then.
    """

    __slots__ = (
        "_epoch_start_offset",
        "_fences",
        "_followers",
        "_is_alone",
        "_lag_ms_max",
        "_least_replication_factor",
        "_live_brokers",
        "_now_ms",
        "_proposal",
        "_stored_leader_id",
        "broker_id",
        "high_watermark",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "partition_epoch",
        "replicas",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        log: LogT,
        *,
        high_watermark: int = 0,
        lag_ms_max: int,
    ) -> None:
        """Create the state of a replica before the first metadata.

        Args:
            high_watermark: The checkpointed one; the log may have lost records above it, and may begin later.
            lag_ms_max: Time within which a member of the ISR must reach the leader's end (`replica.lag.time.max.ms`).
        """
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.log = log
        self.leader_id = NO_LEADER
        #: The leader in the metadata.
        self._stored_leader_id = NO_LEADER
        self._fences = LeaderFence(0)
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        #: The ISR in the metadata.
        self.isr: tuple[int, ...] = ()
        self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self._lag_ms_max = lag_ms_max
        #: Number of replicas, of a reassigned partition the smaller one of before and after.
        self._least_replication_factor = 0
        self._followers: Mapping[int, FollowerState] = _NO_FOLLOWERS
        #: Epochs of the brokers that are neither fenced nor shutting down.
        self._live_brokers = _NO_BROKERS
        self._proposal: ProposeIsr | None = None
        #: Log end offset when the present leadership began.
        self._epoch_start_offset = 0
        #: Whether this broker leads and is the only replica: the high watermark is the log end.
        self._is_alone = False
        #: Monotonic time of the last event with a time: appends need no clock.
        self._now_ms = 0

    # -- events

    def leadership(self, stored: StoredPartition, live_brokers: Mapping[int, int], now_ms: int) -> Instructions:
        """Apply the metadata's state; a state of an older leader or partition epoch is ignored.

        Args:
            live_brokers: Epochs of the brokers that are neither fenced nor shutting down.
        """
        if stored.leader_epoch < self.leader_epoch or stored.partition_epoch < self.partition_epoch:
            return self._followed(NOTHING)  # min.insync.replicas may be another one
        self._now_ms = now_ms
        before = self.low_watermark
        self._live_brokers = live_brokers
        is_new_epoch = stored.leader_epoch > self.leader_epoch
        has_moved = is_new_epoch or stored.leader != self._stored_leader_id
        if has_moved or stored.partition_epoch > self.partition_epoch:
            # A proposal compared with an older partition epoch cannot succeed any more.
            self._proposal = None
        self._stored_leader_id = stored.leader
        self.leader_id = NO_LEADER if self._fences and stored.leader == self.broker_id else stored.leader
        self.leader_epoch = stored.leader_epoch
        self.replicas = tuple(stored.replicas)
        self._least_replication_factor = stored.least_replication_factor
        self._take_isr(stored.isr, stored.partition_epoch, is_new_epoch)
        if is_new_epoch:
            self._epoch_start_offset = self.log.log_end_offset
        # The log of a replica that was taken away does not have to begin later any more.
        return self._followed(_LEADERSHIP_MOVED if has_moved else self._low_watermark_since(before))

    def live_brokers_changed(self, live_brokers: Mapping[int, int], now_ms: int) -> Instructions:
        """Note which brokers are neither fenced nor shutting down, with their epochs."""
        self._now_ms = now_ms
        before = self.low_watermark
        self._live_brokers = live_brokers
        return self._followed(self._low_watermark_since(before))

    def fence(self, reason: LeaderFence) -> Instructions:
        """Lead no more, whatever the metadata says, until `unfence`.

        A proposal under way stays: the controller may accept it yet, and its members count then.
        """
        self._fences |= reason
        if not self.is_leader:
            return NOTHING
        self.leader_id = NO_LEADER
        self._take_isr(self.isr, self.partition_epoch, is_new_epoch=False)
        return _LEADERSHIP_MOVED

    def unfence(self, reason: LeaderFence, now_ms: int) -> Instructions:
        """Lead again in the same epoch, if the metadata says so and no other reason is left.

        Nothing was appended meanwhile. The followers have the whole lag time anew.
        """
        self._fences &= ~reason
        if self._fences or self.is_leader or self._stored_leader_id != self.broker_id:
            return NOTHING
        self._now_ms = now_ms
        self.leader_id = self.broker_id
        self._take_isr(self.isr, self.partition_epoch, is_new_epoch=True)
        return self._followed(_LEADERSHIP_MOVED)

    def heard(self, broker_id: int, leader_epoch: int, now_ms: int) -> Instructions:
        """Note that a follower is about to fetch: a leader that was cut off leads on if the ISR knows no other one."""
        if LeaderFence.CUT_OFF in self._fences and broker_id in self.isr and leader_epoch == self.leader_epoch:
            return self.unfence(LeaderFence.CUT_OFF, now_ms)
        return NOTHING

    def appended(self) -> bool:
        """Note that the log end offset has moved; return whether the high watermark rose."""
        if self._is_alone:
            end = self.log.log_end_offset
            if end > self.high_watermark:
                self.high_watermark = end
                return True
            return False
        return self._advance()

    def fetched(
        self, broker_id: int, *, fetch_offset: int, log_start_offset: int, broker_epoch: int, now_ms: int
    ) -> Instructions:
        """Note a follower's fetch, which has passed the checks of its epoch and offset.

        Raises:
            KafkaError: not_leader_or_follower (another leader, or an older epoch of the follower's broker),
                unknown_leader_epoch (no replica yet: its metadata is newer than ours).
        """
        self.check_leader()
        follower = self._followers.get(broker_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.unknown_leader_epoch, f"{self.topic_partition} has no replica on broker {broker_id} yet"
            )
        if UNKNOWN_BROKER_EPOCH < broker_epoch < follower.broker_epoch:
            raise KafkaError(
                ErrorCode.not_leader_or_follower,
                f"{self.topic_partition}: broker {broker_id} has epoch {follower.broker_epoch}, not {broker_epoch}",
            )
        assert fetch_offset <= self.log.log_end_offset, f"{self.topic_partition}: {broker_id} is ahead of its leader"
        self._now_ms = now_ms
        before = self.low_watermark
        follower.fetched(fetch_offset, log_start_offset, broker_epoch, self.log.log_end_offset, now_ms)
        out: list[Instruction] = [*self._low_watermark_since(before)]
        if self._proposal is None and broker_id not in self.isr and self._may_join(broker_id, follower):
            out.append(self._propose((*self.isr, broker_id)))
        if self._advance():
            out.append(WatermarkMoved(self.high_watermark))
        return tuple(out)

    def tick(self, now_ms: int, *, is_store_silent: bool = False) -> Instructions:
        """Note the time: propose an ISR without the members that have not caught up within the lag time.

        Args:
            is_store_silent: Whether the metadata store has not been heard of for long. A leader that has not heard of
                any other member of the ISR either is fenced: they may have elected another one.
        """
        self._now_ms = now_ms
        if not self._followers:
            return NOTHING
        if is_store_silent and self._is_isr_silent():
            return self.fence(LeaderFence.CUT_OFF)
        out: list[Instruction] = []
        if self._proposal is None:
            end = self.log.log_end_offset
            staying = tuple(
                each
                for each in self.isr
                if each == self.broker_id
                or ((known := self._followers.get(each)) and known.is_caught_up(end, now_ms, self._lag_ms_max))
            )
            if staying != self.isr:
                out.append(self._propose(staying))
        # A follower that is no longer caught up holds the watermark back no longer.
        return self._followed(tuple(out))

    def isr_decided(self, proposal: ProposeIsr, decision: IsrDecision) -> Instructions:
        """Apply the controller's answer, after all earlier changes of the metadata (min.insync.replicas among them)."""
        if self._proposal is not proposal:
            return NOTHING  # the state has moved on meanwhile
        code = decision.error_code
        if code == ErrorCode.none:
            if decision.leader_epoch != self.leader_epoch or decision.partition_epoch < self.partition_epoch:
                return NOTHING  # newer state follows
            self._proposal = None
            self._take_isr(decision.isr, decision.partition_epoch, is_new_epoch=False)
            return self._followed(NOTHING)
        if code == ErrorCode.ineligible_replica:
            # Nothing was changed. The follower is proposed again when its next fetch qualifies.
            self._proposal = None
            return self._followed(NOTHING)
        if code in _SUPERSEDED:
            # To ask again would get the same answer forever (KAFKA-2729): the maximal ISR stays until the newer state
            # arrives.
            return NOTHING
        # Such as a controller that was deposed, or no answer: both ISRs count until one is known.
        return (self._propose(proposal.isr, repeated=proposal),)

    def answered(
        self, *, high_watermark: int, log_start_offset: int, diverging: tuple[int, int] | None = None
    ) -> FollowerInstructions:
        """Note the leader's answer to this follower's fetch, whose records are appended.

        Args:
            diverging: Epoch of the last fetched record and its end offset at the leader, if the logs differ there. The
                answer's watermark counts only when nothing diverges (KAFKA-14704).
        """
        log = self.log
        if diverging is not None:
            leader_epoch, leader_end_offset = diverging
            _, own_end_offset = log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)
            end = leader_end_offset if own_end_offset == UNKNOWN_OFFSET else min(leader_end_offset, own_end_offset)
            return (Truncate(max(log.log_start_offset, min(end, log.log_end_offset))),)
        out: list[WatermarkMoved | RaiseLogStart] = []
        reached = min(high_watermark, log.log_end_offset)
        if reached > self.high_watermark:
            self.high_watermark = reached
            out.append(WatermarkMoved(reached))
        begins = min(log_start_offset, self.high_watermark)
        if begins > log.log_start_offset:
            out.append(RaiseLogStart(begins))
        return tuple(out)

    def truncated(self) -> None:
        """Note that this follower's log ends earlier, or begins anew at another offset."""
        self.high_watermark = max(self.log.log_start_offset, min(self.high_watermark, self.log.log_end_offset))

    # -- questions

    @property
    def is_leader(self) -> bool:
        """Whether this broker is the leader."""
        return self.leader_id == self.broker_id

    @property
    def is_fenced(self) -> bool:
        """Whether this broker must not lead, nor serve consumers, for all it knows."""
        return bool(self._fences)

    def may_serve(self, *, any_replica: bool) -> bool:
        """Whether this broker may serve a request to the leader or, with `any_replica`, one to any replica."""
        return self.is_leader or (any_replica and not self._fences)

    @property
    def has_followers(self) -> bool:
        """Whether this broker leads and other brokers have replicas: appends wait for them, and time matters."""
        return bool(self._followers)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that may be in the ISR: in the metadata, or by the proposal under way."""
        return frozenset(self.isr if self._proposal is None else (*self.isr, *self._proposal.isr))

    @property
    def min_isr(self) -> int:
        """Members that the ISR needs: min.insync.replicas, at most the number of replicas (KIP-966).

        Of a reassigned partition the smaller number counts, of before and after.
        """
        return min(self.log.config.min_insync_replicas, self._least_replication_factor)

    @property
    def last_stable_offset(self) -> int:
        """End of the records visible to read_committed consumers; at most the high watermark."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def low_watermark(self) -> int:
        """The least log start offset of all live replicas; -1 while it is unknown of one."""
        low = self.log.log_start_offset
        for broker_id, follower in self._followers.items():
            if broker_id in self._live_brokers:
                low = min(low, follower.log_start_offset)
        return low

    def check_leader(self, current_leader_epoch: int = NO_LEADER_EPOCH, *, or_follower: bool = False) -> None:
        """Check that this broker leads, or follows where that suffices, in the epoch of the request (KIP-320, KIP-392).

        Raises:
            KafkaError: not_leader_or_follower, fenced_leader_epoch, unknown_leader_epoch.
        """
        if self.leader_id != self.broker_id and not (
            or_follower and self.may_serve(any_replica=True) and self.broker_id in self.replicas
        ):
            leader = "may be led by another broker" if self._fences else f"is led by broker {self.leader_id}"
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{self.topic_partition} {leader}")
        self.check_epoch(current_leader_epoch)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Check that a request and this replica, which may be a follower, know the same leader epoch (KIP-320).

        Raises:
            KafkaError: fenced_leader_epoch, unknown_leader_epoch.
        """
        if current_leader_epoch not in (NO_LEADER_EPOCH, self.leader_epoch):
            stale = current_leader_epoch < self.leader_epoch
            raise KafkaError(
                ErrorCode.fenced_leader_epoch if stale else ErrorCode.unknown_leader_epoch,
                f"{self.topic_partition} is in leader epoch {self.leader_epoch}, the request in {current_leader_epoch}",
            )

    def check_fetchable(self, offset: int) -> None:
        """Check that a follower knows enough of the log for a consumer at an offset (KIP-392).

        Above the watermark it knows neither whether the leader has the offset nor whether consumers may see it.

        Raises:
            KafkaError: offset_not_available.
        """
        if offset > self.high_watermark and not self.is_leader:
            raise KafkaError(
                ErrorCode.offset_not_available,
                f"{self.topic_partition}: the watermark of this follower, {self.high_watermark}, is below {offset}",
            )

    def nearest_replica(self, nearby: Collection[int], offset: int) -> int | None:
        """Return the replica among those near a consumer that should serve it; None for this leader (KIP-392).

        As Kafka's RackAwareReplicaSelector: the leader if it is near, else the most caught up of the near replicas
        that are live, in the ISR and have the offset.
        """
        if not self.is_leader or self.broker_id in nearby:
            return None
        best: int | None = None
        rank = (UNKNOWN_OFFSET, 0)
        for broker_id, follower in self._followers.items():
            end = follower.log_end_offset
            if (
                broker_id in nearby
                and broker_id in self.isr
                and self._is_eligible(broker_id, follower)
                and follower.log_start_offset <= offset <= end
                and (end, follower.caught_up_ms or 0) > rank
            ):
                best, rank = broker_id, (end, follower.caught_up_ms or 0)
        return best

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the greatest epoch at or below the given one and its end offset, -1 and -1 if it is unknown (KIP-101).

        The leader's present epoch ends at the log end offset, even without records.
        """
        log = self.log
        if leader_epoch == self.leader_epoch:
            return leader_epoch, log.log_end_offset
        latest = log.leader_epochs.latest
        if NO_LEADER_EPOCH < latest < leader_epoch < self.leader_epoch:
            return latest, log.log_end_offset
        return log.leader_epochs.end_offset_for(leader_epoch, log.log_end_offset)

    def divergence(self, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Return epoch and end offset after which a follower's log differs from this leader's, None if it does not.

        Args:
            last_fetched_epoch: Epoch of the follower's last record (KIP-595).

        Raises:
            KafkaError: offset_out_of_range (below the log, or an epoch that is not in the history).
        """
        epoch, end_offset = self.end_of_epoch(last_fetched_epoch)
        if end_offset == UNKNOWN_OFFSET or fetch_offset < self.log.log_start_offset:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.topic_partition}: a follower ends at {fetch_offset} in epoch {last_fetched_epoch}, the log "
                f"begins at {self.log.log_start_offset}",
            )
        return (epoch, end_offset) if epoch < last_fetched_epoch or end_offset < fetch_offset else None

    def is_awaited(self, broker_id: int, fetch_offset: int) -> bool:
        """Whether the high watermark, and with it producers, wait for a follower that is about to fetch, or soon will.

        At the watermark it joins the ISR; if it has caught up, the watermark waits for it before.
        """
        follower = self._followers.get(broker_id)
        return follower is not None and (
            fetch_offset >= self.high_watermark
            or follower.has_caught_up(fetch_offset)
            or self._holds_watermark(broker_id, follower, self.log.log_end_offset)
        )

    def check_enough_in_sync(self) -> None:
        """Check that a write with acks=all can be acknowledged.

        Raises:
            KafkaError: not_enough_replicas.
        """
        if not self._is_alone and len(self.isr) < self.min_isr:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{self.topic_partition} has {len(self.isr)} in-sync replicas, {self.min_isr} are needed",
            )

    def check_offsets_known(self) -> None:
        """Check that the high watermark has reached the start of the leader's epoch.

        Before, a new leader may not know yet how far the old one had acknowledged: an end below that would look like a
        loss to consumers (KIP-207).

        Raises:
            KafkaError: offset_not_available.
        """
        if self.high_watermark < self._epoch_start_offset:
            raise KafkaError(
                ErrorCode.offset_not_available,
                f"{self.topic_partition}: the high watermark, {self.high_watermark}, is below the start of the "
                f"leader's epoch, {self._epoch_start_offset}",
            )

    def commitment(self, last_offset: int, leader_epoch: int) -> ErrorCode | None:
        """Return whether the leader's records up to an offset are committed in its epoch; None while it is open."""
        if self.leader_epoch != leader_epoch or self.leader_id != self.broker_id:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.none if self.high_watermark > last_offset else None

    def acknowledgement(self, last_offset: int, leader_epoch: int) -> ErrorCode | None:
        """Return the outcome of an append of this leader epoch with acks=all; None while it is open.

        With an ISR below its minimum the client need not wait, although the records may be committed later.
        """
        outcome = self.commitment(last_offset, leader_epoch)
        if outcome is None and len(self.isr) < self.min_isr:
            return ErrorCode.not_enough_replicas_after_append
        return outcome

    # -- decisions

    def _take_isr(self, isr: Iterable[int], partition_epoch: int, is_new_epoch: bool) -> None:
        """Set the ISR of the metadata, and the followers that this leader tracks."""
        before, self.isr = self.isr, tuple(isr)
        self.partition_epoch = partition_epoch
        is_leader = self.leader_id == self.broker_id
        self._is_alone = is_leader and self.replicas == (self.broker_id,)
        if self._is_alone or not is_leader:
            self._followers = _NO_FOLLOWERS
            return
        others = [each for each in self.replicas if each != self.broker_id]
        known = _NO_FOLLOWERS if is_new_epoch else self._followers
        self._followers = followers = {}
        for each in others:
            is_in_sync = each in self.isr
            follower = known.get(each)
            if follower is None:
                followers[each] = FollowerState(self._now_ms if is_in_sync else None)
                continue
            followers[each] = follower
            if is_in_sync and each not in before:
                follower.joined_isr(self._now_ms)

    def _low_watermark_since(self, before: int) -> tuple[LowWatermarkMoved, ...]:
        low_watermark = self.low_watermark
        return (LowWatermarkMoved(low_watermark),) if low_watermark > before else NOTHING

    def _followed(self, instructions: Instructions) -> Instructions:
        """Add to the instructions of a change of the state what the state now permits or prevents."""
        if self.appended():
            return (*instructions, WatermarkMoved(self.high_watermark))
        if self._followers and len(self.isr) < self.min_isr:
            return (*instructions, IsrBelowMinimum())
        return instructions

    def _advance(self) -> bool:
        """Raise the high watermark to the offset that enough replicas have; return whether it rose."""
        if not self.is_leader or len(self.isr) < self.min_isr:
            return False
        end = reached = self.log.log_end_offset
        for broker_id, follower in self._followers.items():
            if follower.log_end_offset < reached and self._holds_watermark(broker_id, follower, end):
                reached = follower.log_end_offset
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True

    def _holds_watermark(self, broker_id: int, follower: FollowerState, end: int) -> bool:
        """Whether the high watermark waits for a follower.

        It waits for members of the maximal ISR, and for followers about to join: otherwise a follower that is always a
        little behind would never reach the watermark, which is the log end while the leader is alone in the ISR.
        """
        if broker_id in self.isr or (self._proposal is not None and broker_id in self._proposal.isr):
            return True
        return self._is_eligible(broker_id, follower) and follower.is_caught_up(end, self._now_ms, self._lag_ms_max)

    def _is_isr_silent(self) -> bool:
        """Whether the ISR has other members, of whom none was heard of within the lag time."""
        others = [follower for broker_id, follower in self._followers.items() if broker_id in self.isr]
        return bool(others) and all(self._now_ms - each.heard_ms > self._lag_ms_max for each in others)

    def _is_eligible(self, broker_id: int, follower: FollowerState) -> bool:
        """Whether the broker is live in the epoch of its fetches (KIP-903, KAFKA-14140)."""
        known = follower.broker_epoch
        return known != UNKNOWN_BROKER_EPOCH and self._live_brokers.get(broker_id) == known

    def _may_join(self, broker_id: int, follower: FollowerState) -> bool:
        """Whether a follower has every record that may be acknowledged or was by an earlier leader."""
        end = follower.log_end_offset
        return end >= self.high_watermark and end >= self._epoch_start_offset and self._is_eligible(broker_id, follower)

    def _propose(self, isr: Iterable[int], repeated: ProposeIsr | None = None) -> ProposeIsr:
        """Begin a proposal; a repeated one keeps the followers' epochs, in which they qualified."""
        if repeated is None:
            epochs = {each: follower.broker_epoch for each, follower in self._followers.items()}
        else:
            epochs = dict(repeated.members)
        epochs[self.broker_id] = self._live_brokers.get(self.broker_id, UNKNOWN_BROKER_EPOCH)
        members = tuple(IsrMember(each, epochs[each]) for each in isr)
        self._proposal = ProposeIsr(
            self.topic_partition, self.leader_epoch, self.partition_epoch, members, is_repeated=repeated is not None
        )
        return self._proposal
