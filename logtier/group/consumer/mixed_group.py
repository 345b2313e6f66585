"""Requests of classic members in a consumer group (KIP-848's online migration).

These members have no leader. JoinGroup advances a member to its next epoch, which its response calls the generation.
SyncGroup returns the assignment of that epoch. Heartbeat makes the member rejoin when it must revoke or gets
partitions. Pure.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace

from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_member import JOIN_EPOCH, ClassicProtocols, ConsumerMember, MemberState
from headwater.logtier.group.consumer.consumer_step import ConsumerGroupLimits, Deadline, Heartbeat, Step
from headwater.logtier.group.consumer.migration import by_topic_id, classic_assignment
from headwater.logtier.group.consumer_protocol import PROTOCOL_TYPE, parse_subscription
from headwater.logtier.group.events import UNKNOWN_MEMBER_ID, Join, JoinResult, LeavingMember, Sync, SyncResult
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError


def join(
    group: ConsumerGroup, event: Join, image: MetadataImage, limits: ConsumerGroupLimits, now_ms: int
) -> tuple[JoinResult, Step]:
    """Join a classic member, or advance it to the next epoch.

    Raises:
        KafkaError: the error of the response.
    """
    is_unknown = event.member_id == UNKNOWN_MEMBER_ID
    member_id = event.new_member_id if is_unknown else event.member_id
    group.check_room(member_id, limits)
    _check_protocols(group, event)
    if is_unknown and event.group_instance_id is None and event.requires_known_member_id:
        return JoinResult(member_id, ErrorCode.member_id_required), Step(group.state)
    try:
        subscription = parse_subscription(event.protocols[0][1])
    except (struct.error, ValueError) as error:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"the subscription is malformed: {error}") from error
    step = Step(group.state)
    before, is_new = _member_of(group, step, event, member_id, is_unknown=is_unknown)
    after = replace(
        before,
        instance_id=event.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        topic_names=subscription.topics,
        topic_regex=None,
        server_assignor=None,
        client_id=event.client_id,
        client_host=event.client_host,
        classic=ClassicProtocols(event.session_timeout_ms, event.protocols),
    )
    beat = Heartbeat(
        member_id, JOIN_EPOCH, event.client_id, event.client_host, owned=by_topic_id(subscription.owned, image)
    )
    member = group.advance(step, before, after, beat, image, limits, now_ms, is_new=is_new)
    step.clear_deadline(member_id, Deadline.CLASSIC_JOIN)
    step.set_deadline(member_id, Deadline.SESSION, now_ms + event.session_timeout_ms)
    step.set_deadline(member_id, Deadline.CLASSIC_SYNC, now_ms + event.rebalance_timeout_ms)
    result = JoinResult(
        member_id,
        generation_id=member.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=event.protocols[0][0],
    )
    return result, step


def sync(group: ConsumerGroup, event: Sync, image: MetadataImage, now_ms: int) -> tuple[SyncResult, Step]:
    """Return a classic member's assignment.

    Raises:
        KafkaError: the error of the response.
    """
    member, classic = _classic_member(group, event.member_id, event.group_instance_id, event.generation_id)
    name = classic.protocols[0][0]
    if event.protocol_type not in (None, PROTOCOL_TYPE) or event.protocol_name not in (None, name):
        raise KafkaError(ErrorCode.inconsistent_group_protocol, f"The protocol of {member.member_id} is {name}.")
    step = Step(group.state)
    if group.state.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        raise KafkaError(
            ErrorCode.rebalance_in_progress,
            f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin to "
            "catch up.",
        )
    step.clear_deadline(member.member_id, Deadline.CLASSIC_SYNC)
    step.set_deadline(member.member_id, Deadline.SESSION, now_ms + classic.session_timeout_ms)
    assignment = classic_assignment(member, member.assigned, image)
    return SyncResult(ErrorCode.none, event.protocol_type, event.protocol_name, assignment), step


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int, now_ms: int
) -> tuple[ErrorCode, Step]:
    """Extend a classic member's session; `rebalance_in_progress` makes it rejoin.

    Raises:
        KafkaError: the error of the response.
    """
    member, classic = _classic_member(group, member_id, instance_id, generation_id)
    step = Step(group.state)
    step.set_deadline(member.member_id, Deadline.SESSION, now_ms + classic.session_timeout_ms)
    rejoins = (
        member.member_epoch < group.state.epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.state.is_waiting_for_others(member))
    )
    if not rejoins:
        return ErrorCode.none, step
    if not group.has_deadline(member.member_id, Deadline.CLASSIC_JOIN):
        step.set_deadline(member.member_id, Deadline.CLASSIC_JOIN, now_ms + member.rebalance_timeout_ms)
    return ErrorCode.rebalance_in_progress, step


def leave(
    group: ConsumerGroup, leaving: Sequence[LeavingMember], image: MetadataImage, limits: ConsumerGroupLimits
) -> tuple[list[ErrorCode], Step]:
    """Remove members of either protocol by LeaveGroup, an administrator's only request; one error code for each."""
    step = Step(group.state)
    errors: list[ErrorCode] = []
    gone: list[ConsumerMember] = []
    causes = []
    for one in leaving:
        try:
            member = _leaving(group, one)
        except KafkaError as error:
            errors.append(error.code)
            continue
        errors.append(ErrorCode.none)
        if member not in gone:
            gone.append(member)
            causes.append(f"member {member.member_id} left{f' ({one.reason})' if one.reason else ''}")
    if gone:
        group.remove(step, gone, "; ".join(causes), image, limits)
    return errors, step


def _leaving(group: ConsumerGroup, one: LeavingMember) -> ConsumerMember:
    if one.group_instance_id is None:
        member = group.state.members.get(one.member_id)
    elif one.member_id == UNKNOWN_MEMBER_ID:  # an administrator
        member = group.state.static_member(one.group_instance_id)
    else:
        member = group.static_member_of(one.member_id, one.group_instance_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id)
    return member


def _check_protocols(group: ConsumerGroup, event: Join) -> None:
    """Check that all classic members have a common protocol."""
    names = [name for name, _ in event.protocols]
    others = [dict(each.classic.protocols) for each in group.state.classic_members() if each.classic is not None]
    if event.protocol_type != PROTOCOL_TYPE or not any(all(name in other for other in others) for name in names):
        raise KafkaError(
            ErrorCode.inconsistent_group_protocol, f"Member {event.member_id}'s protocols are not supported."
        )


def _member_of(
    group: ConsumerGroup, step: Step, event: Join, member_id: str, *, is_unknown: bool
) -> tuple[ConsumerMember, bool]:
    """Return the joining member, and whether it is new."""
    if event.group_instance_id is not None and not is_unknown:
        return group.static_member_of(member_id, event.group_instance_id), False
    if event.group_instance_id is not None:
        old = group.state.static_member(event.group_instance_id)
        if old is not None:
            return group.replace_static(step, old, member_id), False
    known = group.state.members.get(member_id)
    return known or ConsumerMember(member_id), known is None


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[ConsumerMember, ClassicProtocols]:
    if instance_id is not None:
        member: ConsumerMember | None = group.static_member_of(member_id, instance_id)
    else:
        member = group.state.members.get(member_id)
    if member is None or member.classic is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
    if generation_id != member.member_epoch:
        raise KafkaError(
            ErrorCode.illegal_generation,
            f"The request generation id {generation_id} is not equal to the member epoch {member.member_epoch} of "
            f"member {member_id}.",
        )
    return member, member.classic
