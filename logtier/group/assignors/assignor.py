"""Interface of server-side assignors: members and partition counts in, assignment out (KIP-848). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from headwater.logtier.group.partitions import Partitions


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member in an assignor's input.

    Attributes:
        instance_id: Instance id of a static member, which keeps its rank under a new member id.
        topic_ids: Existing topics of the member's subscription.
        target: Present target assignment of the member.
    """

    instance_id: str | None
    topic_ids: frozenset[UUID]
    target: Partitions


class Assignor(Protocol):
    """Assigns partitions to members.

    The result depends on the arguments alone. Each partition of a subscribed topic goes to exactly one of the topic's
    subscribers.
    """

    name: str

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
    ) -> dict[str, dict[UUID, set[int]]]:
        """Return the partitions of each member.

        Args:
            members: Members by member id.
            partition_counts: Partition count of every subscribed topic.
        """


def ranked(members: Mapping[str, Subscriber]) -> list[str]:
    """Return member ids in an order independent of static members' ids: static ones first, by instance id."""

    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(members, key=rank)
