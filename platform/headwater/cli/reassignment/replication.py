"""Plans more replicas: partitions with fewer than a number of them get others, and keep those that they have. Pure."""

from __future__ import annotations

from collections.abc import Collection

from headwater.cli.reassignment.assignment import AssignmentDraft
from headwater.cli.reassignment.plan import BlockedPartition, ReassignmentPlan
from headwater.cli.reassignment.snapshot import ClusterSnapshot, rack_spread
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["replication_plan"]


def replication_plan(
    snapshot: ClusterSnapshot, replicas: int, topics: Collection[str] | None = None
) -> ReassignmentPlan:
    """Return the plan after which each partition has at least so many replicas, such as those of a migrated node.

    Each replica is added at the broker that spreads the partition over the most racks; among equals at the one with the
    fewest bytes, then the fewest replicas. The order of the present replicas stays, and with it the preferred leader.
    What cannot be added is in `blocked`, with the partition's first broker.

    Args:
        topics: Topics to consider; None for all.
    """
    draft = AssignmentDraft(snapshot)
    blocked = []
    for key in sorted(draft.replicas, key=lambda key: (-draft.size(key), key)):
        if topics is not None and key.topic not in topics:
            continue
        while len(draft.replicas[key]) < replicas:
            target = _target(draft, key, replicas)
            if isinstance(target, str):
                blocked.append(BlockedPartition(key, snapshot.partitions[key].replicas[0], target))
                break
            draft.add(key, target)
    return draft.plan(tuple(sorted(blocked, key=lambda each: each.key)))


def _target(draft: AssignmentDraft, key: TopicPartition, replicas: int) -> int | str:
    """Return the broker that receives another replica, or the reason why none can."""
    part = draft.snapshot.partitions[key]
    if part.leader is None:
        return "it is offline, and there is nothing to copy from"
    free = [each for each in draft.receivers if each not in draft.replicas[key]]
    if not free:
        return (
            f"{replicas} replicas need as many brokers, and {len(draft.receivers)} can receive replicas: add a broker"
        )
    with_room = [each for each in free if draft.has_room(each, part.size_bytes)]
    if not with_room:
        return f"no broker has room for its {part.size_bytes} bytes: {', '.join(map(str, free))}"

    def rank(broker_id: int) -> tuple[int, int, int, int]:
        spread = rack_spread((*draft.replicas[key], broker_id), draft.racks)
        return -spread, draft.sizes[broker_id], draft.counts[broker_id], broker_id

    return min(with_room, key=rank)
