"""Upgrades a classic group to a consumer group and downgrades it, with members (KIP-848's online migration). Pure.

Upgrade: the first member of the consumer protocol joins a classic group of consumers. The other members continue with
JoinGroup, SyncGroup and Heartbeat, which the consumer group answers (`mixed_group`). Downgrade: the last member of the
consumer protocol leaves; the remaining members form a classic group and rebalance.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from headwater.logtier.group.classic.group import Group
from headwater.logtier.group.consumer.consumer_member import (
    ClassicProtocols,
    ConsumerMember,
    MemberState,
)
from headwater.logtier.group.consumer.consumer_records import (
    CurrentValue,
    EpochValue,
    MemberValue,
    RecordKind,
    TargetEpochValue,
    TargetValue,
)
from headwater.logtier.group.consumer.consumer_state import ConsumerState, existing, metadata_hash
from headwater.logtier.group.consumer.consumer_step import ClassicSuccessor, ConsumerGroupLimits
from headwater.logtier.group.consumer_protocol import (
    PROTOCOL_TYPE,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from headwater.logtier.group.events import GroupMetadata, MemberMetadata
from headwater.logtier.group.partitions import Partitions
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

#: Client assignors whose user data the upgrade may drop. (librdkafka returns a member's own data with its assignment,
#: so a group of cooperative-sticky members appears to have a custom assignor.)
_KNOWN_ASSIGNORS: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def upgraded(group: Group, image: MetadataImage, limits: ConsumerGroupLimits) -> ConsumerState:
    """Return the consumer group that replaces a classic group: the same members with the same assignment.

    Raises:
        KafkaError: group_id_not_found, with the reason against the upgrade.
    """
    if not limits.allows_upgrade:
        raise _cannot_upgrade(group, "online upgrade is disabled")
    if group.protocol_type != PROTOCOL_TYPE:
        raise _cannot_upgrade(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > limits.max_size:
        raise _cannot_upgrade(group, "the group size exceeds the consumer group maximum size")
    state = ConsumerState(group.group_id)
    for member in group.members:
        # During a rebalance no protocol is selected; all protocols of a consumer carry the same subscription.
        subscription_bytes = member.protocols.get(group.protocol_name or "") or next(iter(member.protocols.values()))
        try:
            subscription = parse_subscription(subscription_bytes)
            by_name, has_user_data = parse_assignment(member.assignment)
        except (struct.error, ValueError) as error:
            raise _cannot_upgrade(group, "the embedded consumer protocol is malformed") from error
        if has_user_data and group.protocol_name not in _KNOWN_ASSIGNORS:
            raise _cannot_upgrade(
                group,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        assigned = by_topic_id(by_name, image)
        told = ConsumerMember(
            member.member_id,
            group.generation_id,
            group.generation_id,
            MemberState.STABLE,
            member.group_instance_id,
            subscription.rack_id,
            member.rebalance_timeout_ms,
            member.client_id,
            member.client_host,
            subscription.topics,
            assigned=assigned,
            classic=ClassicProtocols(member.session_timeout_ms, tuple(member.protocols.items())),
        )
        state.apply(RecordKind.MEMBER, member.member_id, MemberValue.of(told))
        state.apply(RecordKind.CURRENT, member.member_id, CurrentValue.of(told))
        state.apply(RecordKind.TARGET, member.member_id, TargetValue(assigned))
    hashed = metadata_hash(state.subscribed_topics(), image)
    state.apply(RecordKind.EPOCH, "", EpochValue(group.generation_id, hashed))
    state.apply(RecordKind.TARGET_EPOCH, "", TargetEpochValue(group.generation_id))
    return state


def successor(
    state: ConsumerState, members: Sequence[ConsumerMember], image: MetadataImage, cause: str
) -> ClassicSuccessor | None:
    """Return the classic group of these members, all of the classic protocol; None without a common assignor."""
    protocols: dict[str, Mapping[str, bytes]] = {
        member.member_id: dict(member.classic.protocols) for member in members if member.classic is not None
    }
    common = set.intersection(*(set(names) for names in protocols.values()))
    name = next((each for each in next(iter(protocols.values())) if each in common), None)
    if name is None:
        return None
    written = []
    for member in members:
        assert member.classic is not None
        written.append(
            MemberMetadata(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                protocols[member.member_id][name],
                classic_assignment(member, state.target_of(member.member_id), image),
            )
        )
    metadata = GroupMetadata(PROTOCOL_TYPE, state.epoch, name, None, tuple(written))
    return ClassicSuccessor(metadata, protocols, f"{cause}; the group is a classic one again")


def classic_assignment(member: ConsumerMember, partitions: Partitions, image: MetadataImage) -> bytes:
    """Encode partitions for a member of the classic protocol."""
    assert member.classic is not None
    version = struct.unpack_from(">h", member.classic.protocols[0][1])[0]
    return encode_assignment(version, {name: indexes for name, (_, indexes) in existing(partitions, image).items()})


def by_topic_id(by_name: Mapping[str, frozenset[int]], image: MetadataImage) -> Partitions:
    """Return partitions by topic id, without those of deleted topics."""
    found: dict[UUID, frozenset[int]] = {}
    for name, indexes in by_name.items():
        topic = image.topic(name)
        if topic is not None and indexes:
            found[topic.topic_id] = indexes
    return found


def _cannot_upgrade(group: Group, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found, f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    )
