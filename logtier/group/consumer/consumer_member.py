"""One member of a KIP-848 consumer group, as its records make it: a value, of which a change makes a new one."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from headwater.logtier.group.partitions import NO_PARTITIONS, Partitions

#: The epoch of a request that joins, leaves, or leaves for a while (static members only).
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2


class MemberState(enum.IntEnum):
    """How far a member is on its way to its target assignment, as the log numbers it."""

    STABLE = 0
    #: It has partitions that it has been asked to give up, and has not said yet that it did.
    UNREVOKED_PARTITIONS = 1
    #: Partitions of its target still belong to others.
    UNRELEASED_PARTITIONS = 2
    #: Written by a later version.
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """What a member brought that speaks the classic protocol inside a consumer group (online migration).

    Attributes:
        protocols: (name, subscription) in the member's order of preference.
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: what it told of itself, and how far its assignment is.

    Invariant: `assigned` and `revoking` are disjoint; both are owned by the member, others have to wait for them.

    Attributes:
        member_epoch: LEAVE_STATIC_EPOCH while a static member is away.
        previous_member_epoch: Taken as good as the epoch itself while the answer that told the new one may be lost.
        assigned: Its partitions, those that it keeps or has just been given.
        revoking: Partitions that it has to give up.
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
        """Whether it has all of the target assignment of this epoch, and nothing else."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def owned(self) -> Iterable[tuple[UUID, int]]:
        """Every partition that others have to wait for."""
        for partitions in (self.assigned, self.revoking):
            for topic_id, indexes in partitions.items():
                for index in indexes:
                    yield topic_id, index


def without_empty(partitions: Mapping[UUID, Iterable[int]]) -> Partitions:
    """The same partitions as a value that cannot change."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items() if indexes}


def is_subset(some: Partitions, of: Partitions) -> bool:
    """Whether every partition of `some` is in `of`."""
    return all(indexes <= of.get(topic_id, frozenset()) for topic_id, indexes in some.items())


def partition_count(partitions: Partitions) -> int:
    """How many partitions there are."""
    return sum(map(len, partitions.values()))
