"""Reconciles a member with its target assignment: revocation first, then new partitions (KIP-848). Pure.

Stable --a newer target: partitions to revoke--> UnrevokedPartitions --the member confirms--> (again)
Stable --a newer target: none to revoke--> Stable, or UnreleasedPartitions while others still own some of it
UnreleasedPartitions --the other members have revoked them--> Stable
"""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from headwater.logtier.group.consumer.consumer_member import (
    ConsumerMember,
    MemberState,
    without_empty,
)
from headwater.logtier.group.partitions import NO_PARTITIONS, Partitions
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

Owner = Callable[[UUID, int], str | None]


def reconcile(
    member: ConsumerMember, target_epoch: int, target: Partitions, reported: Partitions | None, owner: Owner
) -> ConsumerMember:
    """Return the member one step nearer to its target, or unchanged if it must wait.

    Args:
        reported: Partitions that the member reports; None if the heartbeat has none.
        owner: Returns the present owner of a partition, None without one.

    Raises:
        KafkaError: fenced_member_epoch, for a state of a later version.
    """
    if member.is_reconciled_to(target_epoch):
        return member
    match member.state:
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_has(reported, member.revoking):
                return member
            # The member has confirmed: others may get those partitions. It continues from the epoch of the revocation.
            return _next(member, member.member_epoch + 1, target_epoch, target, reported, owner)
        case MemberState.STABLE | MemberState.UNRELEASED_PARTITIONS:
            return _next(member, member.member_epoch, target_epoch, target, reported, owner)
        case _:
            if reported is None or reported:
                raise KafkaError(
                    ErrorCode.fenced_member_epoch,
                    "The consumer group member is in a unknown state. The member must abandon all its partitions and "
                    "rejoin.",
                )
            return _next(member, target_epoch, target_epoch, target, reported, owner)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    reported: Partitions | None,
    owner: Owner,
) -> ConsumerMember:
    kept: dict[UUID, set[int]] = {}
    revoking: dict[UUID, set[int]] = {}
    is_waiting = False
    gained: dict[UUID, set[int]] = {}
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, frozenset())
        has = member.assigned.get(topic_id, frozenset())
        kept[topic_id] = set(wanted & has)
        revoking[topic_id] = set(has - wanted)
        for index in wanted - has:
            owned_by = owner(topic_id, index)
            if owned_by is None:
                gained.setdefault(topic_id, set()).add(index)
            else:
                is_waiting = True
    to_revoke = without_empty(revoking)
    if to_revoke and _still_has(reported, to_revoke):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=member.member_epoch,
            member_epoch=epoch,
            assigned=without_empty(kept),
            revoking=to_revoke,
        )
    for topic_id, indexes in gained.items():
        kept[topic_id] |= indexes
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
        previous_member_epoch=member.member_epoch,
        member_epoch=target_epoch,
        assigned=without_empty(kept),
        revoking=NO_PARTITIONS,
    )


def _still_has(reported: Partitions | None, some: Partitions) -> bool:
    """Whether the member reports some of these partitions, or reports nothing."""
    if reported is None:
        return True
    return any(not indexes.isdisjoint(reported.get(topic_id, ())) for topic_id, indexes in some.items())
