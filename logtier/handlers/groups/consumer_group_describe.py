"""ConsumerGroupDescribe: epochs, members, present and target assignments of consumer groups (KIP-848)."""

from typing import Any

from headwater.logtier.config.group_protocol import assignor_name
from headwater.logtier.group.consumer.consumer_group import ConsumerGroup
from headwater.logtier.group.consumer.consumer_member import ConsumerMember
from headwater.logtier.group.consumer.consumer_state import existing
from headwater.logtier.group.partitions import Partitions
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups.consumer_protocol_level import require_consumer_protocol
from headwater.logtier.handlers.security.authorized_operations import NOT_ASKED, authorized_operations
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 69
VERSIONS = (0, 1)

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Describe each group separately."""
    return {"groups": [_group(group_id, request, context) for group_id in request.group_ids]}


def _group(group_id: str, request: Any, context: RequestContext) -> dict[str, Any]:
    try:
        require_consumer_protocol(context)
        if not context.is_authorized(AclOperation.describe, ResourceType.group, group_id):
            raise KafkaError(ErrorCode.group_authorization_failed)
        if not group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        group = context.services.groups.group(group_id)
        if not isinstance(group, ConsumerGroup):
            what = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
            raise KafkaError(ErrorCode.group_id_not_found, what)
        described = _described(group, context)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or None,
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": [],
            "authorized_operations": NOT_ASKED,
        }
    asked = request.include_authorized_operations
    operations = authorized_operations(context, ResourceType.group, group_id) if asked else NOT_ASKED
    return {**described, "authorized_operations": operations}


def _described(group: ConsumerGroup, context: RequestContext) -> dict[str, Any]:
    state, image = group.state, context.services.metadata.image
    topics = set(state.subscribed_topics())
    for partitions in (*(each.assigned for each in state.members.values()), *state.targets.values()):
        topics.update(existing(partitions, image))
    for topic in sorted(topics):
        if not context.is_authorized(AclOperation.describe, ResourceType.topic, topic):
            raise KafkaError(
                ErrorCode.topic_authorization_failed,
                "The group has described topic(s) that the client is not authorized to describe.",
            )
    default = assignor_name(context.services.metadata.config.group_consumer_assignors[0])
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": state.phase.value,
        "group_epoch": state.epoch,
        "assignment_epoch": state.target_epoch,
        "assignor_name": state.preferred_assignor(default),
        "members": [_member(member, state.target_of(member.member_id), image) for member in state.members.values()],
    }


def _member(member: ConsumerMember, target: Partitions, image: MetadataImage) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "subscribed_topic_regex": member.topic_regex or "",
        "assignment": _assignment(member.assigned, image),
        "target_assignment": _assignment(target, image),
        "member_type": _CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    }


def _assignment(partitions: Partitions, image: MetadataImage) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": sorted(indexes)}
            for name, (topic_id, indexes) in sorted(existing(partitions, image).items())
        ]
    }
