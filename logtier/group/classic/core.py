"""State of a classic group without decisions: its outbox, its timer, the shapes of its responses."""

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.logtier.group.classic.member import Member
from headwater.logtier.group.classic.membership import Membership
from headwater.logtier.group.consumer_protocol import PROTOCOL_TYPE, all_subscribed_topics
from headwater.logtier.group.events import (
    ArmTimer,
    Explain,
    GroupMetadata,
    GroupState,
    Instruction,
    Join,
    JoinedMember,
    JoinResult,
    Persist,
    RespondJoin,
    RespondSync,
    SyncResult,
)
from headwater.logtier.group.explanation import Explanation
from headwater.logtier.protocol.errors import ErrorCode

_PREVIOUS_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The broker's configs of groups (Kafka's `group.*`)."""

    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3000


@dataclass(frozen=True, slots=True)
class AssignmentWrite:
    """A leader's assignment is being written."""

    generation_id: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class StaticMemberWrite:
    """A static member's new member id is being written."""

    event: Join
    new_member_id: str
    old_leader: str
    old: Member


class GroupCore:
    """The state of a group; `Group` adds the decisions.

    Invariants: a state is entered only from its permitted previous states; after sessions have begun, the armed timer
    is never later than the earliest deadline; a waiting request is answered once, when its member's token is removed.
    """

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = Membership()
        #: Member ids assigned and not yet used, with their expiry.
        self.pending_joins: dict[str, int] = {}
        #: Members without a SyncGroup in this generation.
        self.pending_syncs: set[str] = set()
        #: Topics of the members' subscriptions, if readable (protocol type `consumer`).
        self.subscribed_topics: frozenset[str] | None = None
        self.join_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        #: Remaining delay of the first rebalance for joining members; None in later rebalances.
        self.initial_delay_left_ms: int | None = None
        #: Epoch milliseconds of the last write; set by the coordinator.
        self.current_state_timestamp_ms = -1
        self._limits = limits
        self._previous_state = GroupState.EMPTY
        self._new_member_added = False
        self._out: list[Instruction] = []
        self._armed_ms: int | None = None
        #: False for a loaded group until its members' sessions begin.
        self._has_begun = True
        self._persist_id = 0
        self._writes: dict[int, AssignmentWrite | StaticMemberWrite] = {}
        self._explanation = Explanation()

    def metadata(self) -> GroupMetadata:
        """Return the group's metadata for the log."""
        return self._metadata(self.members.assignments())

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to this topic; also true if a consumer's subscription is unreadable."""
        if self.subscribed_topics is None:
            return self.protocol_type == PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def _enter(self, state: GroupState) -> None:
        assert self.state in _PREVIOUS_STATES[state], f"group {self.group_id}: {self.state} to {state}"
        self._previous_state, self.state = self.state, state

    def _members_for_leader(self) -> tuple[JoinedMember, ...]:
        return self.members.as_joined(self.protocol_name)

    def _joined(self, member_id: str, members: tuple[JoinedMember, ...]) -> JoinResult:
        return JoinResult(
            member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            members=members,
        )

    def _assigned(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.none, self.protocol_type, self.protocol_name, member.assignment)

    def _refuse_join(self, event: Join, error: ErrorCode, member_id: str | None = None) -> None:
        self._out.append(
            RespondJoin(event.token, JoinResult(event.member_id if member_id is None else member_id, error))
        )

    def _answer_join(self, member: Member, result: JoinResult) -> None:
        if member.join_token is not None:
            self._out.append(RespondJoin(member.join_token, result))
            member.join_token = None

    def _answer_sync(self, member: Member, result: SyncResult) -> None:
        if member.sync_token is not None:
            self._out.append(RespondSync(member.sync_token, result))
            member.sync_token = None

    def _read_subscriptions(self) -> None:
        if self.protocol_type != PROTOCOL_TYPE:
            self.subscribed_topics = None
        else:
            name = self.protocol_name or ""
            self.subscribed_topics = all_subscribed_topics(member.protocols.get(name, b"") for member in self.members)

    def _metadata(self, assignments: Mapping[str, bytes]) -> GroupMetadata:
        return GroupMetadata(
            self.protocol_type or "",
            self.generation_id,
            self.protocol_name,
            self.members.leader_id,
            self.members.as_metadata(self.protocol_name, assignments),
            self.current_state_timestamp_ms,
        )

    def _persist(self, write: AssignmentWrite | StaticMemberWrite | None, assignments: Mapping[str, bytes]) -> None:
        self._persist_id += 1
        if write is not None:
            self._writes[self._persist_id] = write
        self._out.append(Persist(self._persist_id, self._metadata(assignments)))

    def _explain(self, now_ms: int) -> None:
        outcome = "no members"
        if self.members:
            noun = "member" if len(self.members) == 1 else "members"
            outcome = f"{len(self.members)} {noun}, leader {self.members.leader_id}, protocol {self.protocol_name}"
        outcome = f"group {self.group_id}: generation {self.generation_id} with {outcome}"
        self._out.append(Explain(self._explanation.finish(outcome, now_ms)))

    def _set_join_deadline(self, deadline_ms: int) -> None:
        self.join_deadline_ms = deadline_ms
        self._arm(deadline_ms)

    def _arm(self, deadline_ms: int) -> None:
        if self._armed_ms is None or deadline_ms < self._armed_ms:
            self._armed_ms = deadline_ms
            self._out.append(ArmTimer(deadline_ms))

    def _arm_next(self) -> None:
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is not None:
            self._arm(deadline_ms)

    def _next_deadline_ms(self) -> int | None:
        deadlines = [*self.members.deadlines_ms(), *self.pending_joins.values()]
        deadlines.extend(each for each in (self.join_deadline_ms, self.sync_deadline_ms) if each is not None)
        return min(deadlines, default=None)

    def _drain(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out
