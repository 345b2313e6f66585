"""Plans a drain: every replica of some brokers moves to the other brokers, and nothing else moves. Pure."""

from __future__ import annotations

from collections.abc import Collection

from headwater.cli.reassignment.assignment import AssignmentDraft
from headwater.cli.reassignment.plan import BlockedPartition, ReassignmentPlan
from headwater.cli.reassignment.snapshot import ClusterSnapshot
from headwater.logtier.protocol.topic_partition import TopicPartition

__all__ = ["drain_plan"]


def drain_plan(
    snapshot: ClusterSnapshot, drained: Collection[int], *, allow_fewer_racks: bool = False
) -> ReassignmentPlan:
    """Return the plan that leaves no replica on the drained brokers, whether these are present or away.

    Each replica moves to the broker that keeps it in the most racks; among equals to the one with the fewest bytes,
    then the fewest replicas. Large partitions are placed first, so that small ones even out the rest. What cannot move
    is in `blocked`.

    Args:
        allow_fewer_racks: Whether the replicas of a partition may be in fewer racks than before.
    """
    draft = AssignmentDraft(snapshot)
    gone = frozenset(drained)
    draft.receivers = [each for each in draft.receivers if each not in gone]
    leads = dict.fromkeys(draft.receivers, 0)
    for replicas in draft.replicas.values():
        if replicas and replicas[0] in leads:
            leads[replicas[0]] += 1
    blocked = []
    ordered = sorted(draft.replicas, key=lambda key: (-draft.size(key), key))
    for key in ordered:
        was_leader = draft.replicas[key][0] if draft.replicas[key] else None
        for broker_id in [each for each in draft.replicas[key] if each in gone]:
            target = _target(draft, key, broker_id, allow_fewer_racks=allow_fewer_racks)
            if isinstance(target, str):
                blocked.append(BlockedPartition(key, broker_id, target))
            else:
                draft.move(key, broker_id, target)
        if was_leader in gone and draft.replicas[key][0] not in gone:
            _choose_leader(draft, key, leads)
    return draft.plan(tuple(sorted(blocked, key=lambda each: (each.broker_id, each.key))))


def _target(draft: AssignmentDraft, key: TopicPartition, source: int, *, allow_fewer_racks: bool) -> int | str:
    """Return the broker that receives a replica, or the reason why none can."""
    part = draft.snapshot.partitions[key]
    if part.leader is None:
        away = [each for each in part.replicas if each not in draft.snapshot.brokers]
        where = f"brokers away: {', '.join(map(str, away))}" if away else "no replica can lead"
        return f"it is offline, and there is nothing to copy from ({where})"
    free = [each for each in draft.receivers if each not in draft.replicas[key]]
    if not free:
        return (
            f"each of the {len(draft.receivers)} other brokers has a replica already, of {len(part.replicas)}: "
            "add a broker"
        )
    with_room = [each for each in free if draft.has_room(each, part.size_bytes)]
    if not with_room:
        return f"no broker has room for its {part.size_bytes} bytes: {', '.join(map(str, free))}"
    target = min(
        with_room,
        key=lambda each: (-draft.spread_after(key, source, each), draft.sizes[each], draft.counts[each], each),
    )
    if draft.spread_after(key, source, target) < draft.spread(key) and not allow_fewer_racks:
        return f"no broker with room keeps its replicas in {draft.spread(key)} racks; see --allow-fewer-racks"
    return target


def _choose_leader(draft: AssignmentDraft, key: TopicPartition, leads: dict[int, int]) -> None:
    """Make that replica the preferred leader whose broker leads the fewest partitions; one with the data if equal."""
    old = draft.snapshot.partitions[key].replicas
    can_lead = [each for each in draft.replicas[key] if each in leads]
    leader = min(can_lead, key=lambda each: (leads[each], each not in old, each))
    leads[leader] += 1
    draft.lead(key, leader)
