"""What goes into a group (events) and what comes out of it (instructions): plain values, nothing that acts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headwater.logtier.protocol.errors import ErrorCode

#: The member id of somebody who has none yet.
UNKNOWN_MEMBER_ID = ""


class GroupState(Enum):
    """The states of a classic group, by the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Join:
    """Event: a JoinGroup request.

    Attributes:
        token: Names the waiting request; the answer carries it.
        new_member_id: The id this member gets if it has none (drawn by the caller: the group has no randomness).
        protocols: (name, metadata) in the member's order of preference; the metadata is opaque.
        requires_known_member_id: From version 4 on a dynamic member is sent away once with its id (KIP-394).
        supports_skipping_assignment: From version 9 on a static leader that comes back is told not to assign (KIP-814).
        reason: What the client says why it joins (KIP-800).
    """

    token: int
    member_id: str
    new_member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sync:
    """Event: a SyncGroup request; the leader's carries every member's assignment."""

    token: int
    member_id: str
    group_instance_id: str | None
    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member of a LeaveGroup request; an administrator names a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader is told about a member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a Join."""

    member_id: str
    error: ErrorCode = ErrorCode.none
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The answer to a Sync."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member as it is written to the log."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group as it is written to the log: one generation.

    Attributes:
        current_state_timestamp_ms: When the group got there, in epoch milliseconds; -1 before it is written.
    """

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberMetadata, ...] = ()
    current_state_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class RespondJoin:
    """Instruction: answer the JoinGroup request that waits under this token."""

    token: int
    result: JoinResult


@dataclass(frozen=True, slots=True)
class RespondSync:
    """Instruction: answer the SyncGroup request that waits under this token."""

    token: int
    result: SyncResult


@dataclass(frozen=True, slots=True)
class Persist:
    """Instruction: write the group to the log, then call `Group.persisted` with this id and the outcome."""

    persist_id: int
    metadata: GroupMetadata


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Instruction: call `Group.timer_expired` at this time, earlier than any timer armed before."""

    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Explain:
    """Instruction: log this line. Exactly one for every completed rebalance: who joined, left or timed out."""

    text: str


Instruction = RespondJoin | RespondSync | Persist | ArmTimer | Explain
