"""What an assignor is given and gives: the server-side assignment of partitions to members (KIP-848). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from headwater.logtier.group.partitions import Partitions


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it.

    Attributes:
        instance_id: Of a static member: it keeps its rank when it comes back under another member id.
        topic_ids: The topics it wants, of those that exist.
        target: What it was to have so far.
    """

    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Partitions


class Assignor(Protocol):
    """Decides who shall have what.

    The result is a function of its arguments alone. Every partition of a topic that somebody wants goes to exactly one
    member that wants it.
    """

    name: str

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
    ) -> dict[str, dict[UUID, set[int]]]:
        """The partitions of each member.

        Args:
            members: By member id.
            partition_counts: Of every topic that a member wants.
        """


def ranked(members: Mapping[str, Subscriber]) -> list[str]:
    """Member ids in an order that a static member's new id leaves as it is: static ones first, by instance id."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(members, key=rank)
