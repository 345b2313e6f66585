"""Inputs and outputs of a consumer group: heartbeats, limits, and steps that are not yet in the log."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.logtier.group.assignors.assignor import Assignor
from headwater.logtier.group.consumer.consumer_member import ConsumerMember
from headwater.logtier.group.consumer.consumer_records import (
    Change,
    ConsumerValue,
    CurrentValue,
    MemberValue,
    RecordKind,
    RegexValue,
)
from headwater.logtier.group.consumer.consumer_state import ConsumerState
from headwater.logtier.group.events import GroupMetadata
from headwater.logtier.group.partitions import Partitions


@dataclass(frozen=True, slots=True)
class ConsumerGroupLimits:
    """Configs of a consumer group.

    Attributes:
        assignors: Assignors by name; the first is the default.
        allows_upgrade, allows_downgrade: Whether a group with members may change its protocol.
    """

    assignors: Mapping[str, Assignor]
    max_size: int = 2**31 - 1
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    allows_upgrade: bool = True
    allows_downgrade: bool = True
    classic_max_size: int = 2**31 - 1

    @property
    def default_assignor(self) -> str:
        """Name of the default assignor."""
        return next(iter(self.assignors))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Event: a ConsumerGroupHeartbeat request. None, and a timeout of -1, mean unchanged.

    Attributes:
        owned: Partitions that the member reports.
        resolved: Matches of regular expressions that are new to the group or due for a refresh.
    """

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    resolved: Mapping[str, RegexValue] = field(default_factory=dict)
    #: The group's `topics_version` before the match of `resolved`.
    resolved_version: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the request is complete: the member joins, or its last heartbeat may be lost."""
        says_topics = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and says_topics and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The response to a Heartbeat; `assignment` is None if unchanged."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class Deadline(enum.Enum):
    """Kinds of deadlines of a member; each value completes "the member ..."."""

    SESSION = "was not heard of"
    REBALANCE = "did not give up its partitions"
    CLASSIC_JOIN = "did not rejoin"
    CLASSIC_SYNC = "sent no SyncGroup"


@dataclass(frozen=True, slots=True)
class ClassicSuccessor:
    """The classic group that replaces a consumer group after its last member of the consumer protocol leaves.

    Attributes:
        protocols: Supported protocols of each member, by member id.
    """

    metadata: GroupMetadata
    protocols: Mapping[str, Mapping[str, bytes]]
    cause: str


class Step:
    """Changes of a group that are decided and not yet in the log.

    Invariant: `state` is the group's state after `changes`; until they are written the group is unchanged, so a failed
    write needs no undo.
    """

    __slots__ = ("_is_copied", "assignor", "causes", "changes", "deadlines", "state", "successor", "topics_version")

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self._is_copied = False
        self.changes: list[Change] = []
        #: Member and kind -> deadline and the epoch it refers to; None removes the deadline.
        self.deadlines: dict[tuple[str, Deadline], tuple[int, int] | None] = {}
        #: Causes of a rebalance, for the log.
        self.causes: list[str] = []
        #: Assignor of a new target assignment.
        self.assignor: str | None = None
        #: Version of the topics that the decision covers; 0 if none.
        self.topics_version = 0
        self.successor: ClassicSuccessor | None = None

    def put(self, kind: RecordKind, name: str, value: ConsumerValue | None) -> None:
        """Add one record to the step; None is a tombstone."""
        if not self._is_copied:
            self.state = self.state.copy()
            self._is_copied = True
        self.changes.append(self.state.change(kind, name, value))
        self.state.apply(kind, name, value)

    def put_told(self, member: ConsumerMember) -> None:
        """Change a member's subscription and settings."""
        self.put(RecordKind.MEMBER, member.member_id, MemberValue.of(member))

    def put_current(self, member: ConsumerMember) -> None:
        """Change a member's current assignment."""
        self.put(RecordKind.CURRENT, member.member_id, CurrentValue.of(member))

    def remove_member(self, member_id: str) -> None:
        """Remove a member and its assignments, in the order that replay requires."""
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self.put(kind, member_id, None)
        for deadline in Deadline:
            self.deadlines[member_id, deadline] = None

    def set_deadline(self, member_id: str, kind: Deadline, deadline_ms: int, epoch: int = 0) -> None:
        """Set a member's deadline; `epoch` is the epoch it refers to."""
        self.deadlines[member_id, kind] = (deadline_ms, epoch)

    def clear_deadline(self, member_id: str, kind: Deadline) -> None:
        """Remove a member's deadline."""
        self.deadlines[member_id, kind] = None
