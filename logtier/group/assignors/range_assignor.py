"""The `range` assignor: each topic's partitions in order, cut into contiguous ranges, one a member."""

from collections.abc import Mapping
from uuid import UUID

from headwater.logtier.group.assignors.assignor import Subscriber, ranked


class RangeAssignor:
    """Members in order get ranges in order, topic by topic; the first get one more where it does not come out even.

    Topics with the same number of partitions and the same subscribers are cut alike, so equal partitions meet in one
    member: what joins need. It does not try to keep what members had.
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
