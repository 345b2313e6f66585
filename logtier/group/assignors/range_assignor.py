"""The `range` assignor: contiguous ranges of each topic's partitions, one for each member."""

from collections.abc import Mapping
from uuid import UUID

from headwater.logtier.group.assignors.assignor import Subscriber, ranked


class RangeAssignor:
    """Assigns ranges to members in order, topic by topic; the first members get one more of a remainder.

    Topics with the same partition count and subscribers are divided alike, so that equal partitions belong to one
    member, as joins require. The assignor is not sticky.
    """

    name = "range"

    def assign(
        self, members: Mapping[str, Subscriber], partition_counts: Mapping[UUID, int]
    ) -> dict[str, dict[UUID, set[int]]]:
        """See Assignor."""
        result: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
        subscribers: dict[UUID, list[str]] = {}
        for member_id in ranked(members):
            for topic_id in members[member_id].topic_ids:
                subscribers.setdefault(topic_id, []).append(member_id)
        for topic_id, member_ids in subscribers.items():
            share, longer = divmod(partition_counts[topic_id], len(member_ids))
            first = 0
            for rank, member_id in enumerate(member_ids):
                end = first + share + (rank < longer)
                if end > first:
                    result[member_id][topic_id] = set(range(first, end))
                first = end
        return result
