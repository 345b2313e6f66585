"""ConsumerGroupHeartbeat: the whole protocol of a member of a consumer group (KIP-848).

A member joins with epoch 0, leaves with -1 (a static member temporarily with -2), and otherwise reports its partitions.
The response has its epoch, and its partitions whenever they change.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from headwater.logtier.config.group_protocol import assignor_name
from headwater.logtier.group.consumer.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
)
from headwater.logtier.group.consumer.consumer_step import Heartbeat
from headwater.logtier.group.partitions import Partitions
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups.consumer_protocol_level import require_consumer_protocol
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.messages import milliseconds
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 68
VERSIONS = (0, 1)

#: From this version on members create their own ids (KIP-1082).
_OWN_ID_FROM = 1
_AS_BEFORE_MS = -1


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Join, heartbeat, or leave."""
    try:
        require_consumer_protocol(context)
        _authorize(request, context)
        beat = _event(request, context)
        result = await context.services.groups.consumer_heartbeat(
            request.group_id,
            beat,
            lambda topic: context.is_authorized(AclOperation.describe, ResourceType.topic, topic, log_denied=False),
        )
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
        }
    return {
        "error_code": ErrorCode.none,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": None
        if result.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": sorted(indexes)} for topic_id, indexes in result.assignment.items()
            ]
        },
    }


def _authorize(request: Any, context: RequestContext) -> None:
    if not context.is_authorized(AclOperation.read, ResourceType.group, request.group_id):
        raise KafkaError(ErrorCode.group_authorization_failed)
    for topic in request.subscribed_topic_names or ():
        if not context.is_authorized(AclOperation.describe, ResourceType.topic, topic):
            raise KafkaError(ErrorCode.topic_authorization_failed)


def _event(request: Any, context: RequestContext) -> Heartbeat:
    """Convert the request to an event.

    Raises:
        KafkaError: invalid_request or unsupported_assignor, checked in Kafka's order.
    """
    epoch = request.member_epoch
    regex = getattr(request, "subscribed_topic_regex", None)
    owned = request.topic_partitions
    names = request.subscribed_topic_names
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    if (context.api_version >= _OWN_ID_FROM or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH) and not request.member_id:
        raise _invalid("MemberId can't be empty.")
    for name, value in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        if rebalance_timeout_ms == _AS_BEFORE_MS:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if owned is None or owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if names is None and regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    assignors = [assignor_name(name) for name in context.services.metadata.config.group_consumer_assignors]
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )
    return Heartbeat(
        request.member_id,
        epoch,
        context.client_id or "",
        # Java's format of an address, shown by tools that describe groups.
        f"/{context.client_host}",
        request.instance_id,
        request.rack_id,
        rebalance_timeout_ms,
        None if names is None else frozenset(names),
        regex,
        request.server_assignor,
        None if owned is None else _partitions(owned),
    )


def _partitions(owned: Iterable[Any]) -> Partitions:
    partitions: dict[UUID, frozenset[int]] = {}
    for topic in owned:
        if topic.topic_id is not None and topic.partitions:
            partitions[topic.topic_id] = partitions.get(topic.topic_id, frozenset()).union(topic.partitions)
    return partitions


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
