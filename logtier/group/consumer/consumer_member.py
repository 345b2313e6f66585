"""One member of a KIP-848 consumer group: an immutable value, built from its records."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headwater.logtier.group.partitions import NO_PARTITIONS, Partitions

#: Epochs of requests that join, leave, or (static members) leave temporarily.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2


class MemberState(enum.IntEnum):
    """State of a member's reconciliation with its target assignment, with the log's numbers."""

    STABLE = 0
    #: The member has not yet confirmed the revocation of partitions.
    UNREVOKED_PARTITIONS = 1
    #: Other members still own partitions of the member's target.
    UNRELEASED_PARTITIONS = 2
    #: A state of a later version.
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """Classic protocol's settings of a member of a consumer group (online migration).

    Attributes:
        protocols: (name, subscription) in the member's order of preference.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: its subscription and the state of its assignment.

    Invariant: `assigned` and `revoking` are disjoint; the member owns both, and other members wait for them.

    Attributes:
        member_epoch: LEAVE_STATIC_EPOCH while a static member is away.
        previous_member_epoch: Accepted besides the epoch, because the response with the new epoch may be lost.
        assigned: Partitions that the member keeps or has just received.
        revoking: Partitions that the member must revoke.
        classic: None for a member that speaks the consumer protocol.
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    server_assignor: str | None = None
    assigned: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    revoking: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    classic: ClassicProtocols | None = None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether the member has reached the target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def owned(self) -> Iterable[tuple[UUID, int]]:
        """Every partition that the member owns: assigned ones and those being revoked."""
        for partitions in (self.assigned, self.revoking):
            for topic_id, indexes in partitions.items():
                for index in indexes:
                    yield topic_id, index


def without_empty(partitions: Mapping[UUID, Iterable[int]]) -> Partitions:
    """Return the partitions as an immutable value."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items() if indexes}


def is_subset(some: Partitions, of: Partitions) -> bool:
    """Return whether every partition of `some` is in `of`."""
    return all(indexes <= of.get(topic_id, frozenset()) for topic_id, indexes in some.items())


def partition_count(partitions: Partitions) -> int:
    """Return the number of partitions."""
    return sum(map(len, partitions.values()))
