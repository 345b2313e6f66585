"""What goes into a consumer group and what comes out: events, limits, and one step that is not in the log yet."""

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
    """What the configuration says about a consumer group.

    Attributes:
        assignors: By name; the first is the default.
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
        """The name of the assignor that is taken where members do not say."""
        return next(iter(self.assignors))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Event: a ConsumerGroupHeartbeat request. None, and a timeout of -1, mean: as before.

    Attributes:
        owned: What the member says it has.
        resolved: What regular expressions match that are new to the group, or are due to be looked at again.
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
    #: The group's `topics_version` when names began to be matched for `resolved`.
    resolved_version: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the member says everything: it joins, or is not sure that its last heartbeat arrived."""
        says_topics = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and says_topics and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a Heartbeat; `assignment` is None where the member knows it."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class Deadline(enum.Enum):
    """What a member may be late with; each value completes "the member ..."."""

    SESSION = "was not heard of"
    REBALANCE = "did not give up its partitions"
    CLASSIC_JOIN = "did not rejoin"
    CLASSIC_SYNC = "sent no SyncGroup"


@dataclass(frozen=True, slots=True)
class ClassicSuccessor:
    """The classic group that a consumer group becomes when its last member of the consumer protocol goes.

    Attributes:
        protocols: All that each member supports, by member id.
    """

    metadata: GroupMetadata
    protocols: Mapping[str, Mapping[str, bytes]]
    cause: str


class Step:
    """Changes of a group that are decided and not yet in the log.

    Invariant: `state` is what the group will be once `changes` are written; until then the group itself is untouched,
    so a write that fails needs no undoing.
    """

    __slots__ = ("_is_copied", "assignor", "causes", "changes", "deadlines", "state", "successor", "topics_version")

    def __init__(self, state: ConsumerState) -> None:
        self.state = state
        self._is_copied = False
        self.changes: list[Change] = []
        #: Member and kind -> when it is over, with the epoch that it is about; None takes it away.
        self.deadlines: dict[tuple[str, Deadline], tuple[int, int] | None] = {}
        #: Why the group rebalances, for its log line.
        self.causes: list[str] = []
        #: The assignor that has made a new target assignment.
        self.assignor: str | None = None
        #: The version of topics that the decision took in; 0 if it looked at none.
        self.topics_version = 0
        self.successor: ClassicSuccessor | None = None

    def put(self, kind: RecordKind, name: str, value: ConsumerValue | None) -> None:
        """Change one thing; None removes it."""
        if not self._is_copied:
            self.state = self.state.copy()
            self._is_copied = True
        self.changes.append(self.state.change(kind, name, value))
        self.state.apply(kind, name, value)

    def put_told(self, member: ConsumerMember) -> None:
        """What a member told of itself has changed."""
        self.put(RecordKind.MEMBER, member.member_id, MemberValue.of(member))

    def put_current(self, member: ConsumerMember) -> None:
        """What a member has, has changed."""
        self.put(RecordKind.CURRENT, member.member_id, CurrentValue.of(member))

    def remove_member(self, member_id: str) -> None:
        """A member goes, with all that is known of it; a reader needs this order."""
        for kind in (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER):
            self.put(kind, member_id, None)
        for deadline in Deadline:
            self.deadlines[member_id, deadline] = None

    def set_deadline(self, member_id: str, kind: Deadline, deadline_ms: int, epoch: int = 0) -> None:
        """The member is late with something from this time on; `epoch` says what it is about."""
        self.deadlines[member_id, kind] = (deadline_ms, epoch)

    def clear_deadline(self, member_id: str, kind: Deadline) -> None:
        """The member was in time."""
        self.deadlines[member_id, kind] = None
