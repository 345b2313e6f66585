"""OffsetFetch: the committed offsets of groups; without listed topics, all of them.

In a cluster the other replicas confirm first that this broker still coordinates the groups: to read an offset that is
older than a committed one is to process records twice, in transactions as well.

An offset that was committed for a deleted topic is not answered for another topic of the name. The coordinator deletes
such offsets after the topic, and other brokers rely on the answer before (see `cluster.remote_group_offsets`).
"""

from collections.abc import Iterable
from typing import Any

from headwater.logtier.group.persistence.offsets import CommittedOffset, GroupOffsets
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.groups.coordinator_checks import check_coordinators, coordinator_error
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.security.audit_log import shown
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 9
VERSIONS = (1, 9)

#: Earlier versions report an error of the group for each partition.
_GROUP_ERROR_FROM = 2
#: The error of a partition whose offset is about to change (KIP-447).
_UNSTABLE_FROM = 7
#: Several groups in one request (KIP-709).
_SEVERAL_GROUPS_FROM = 8

_NOTHING_COMMITTED = CommittedOffset(offset=-1)


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Answer for each group separately."""
    if context.api_version >= _SEVERAL_GROUPS_FROM:
        await check_coordinators([each.group_id for each in request.groups], context)
        return {"groups": [_group(each.group_id, each.topics, context, request, each) for each in request.groups]}
    await check_coordinators([request.group_id], context)
    answer = _group(request.group_id, request.topics, context, request)
    del answer["group_id"]
    if context.api_version < _GROUP_ERROR_FROM:
        del answer["error_code"]
    return answer


def _group(
    group_id: str, topics: Iterable[Any] | None, context: RequestContext, request: Any, asked: Any = None
) -> dict[str, Any]:
    try:
        if not context.is_authorized(AclOperation.describe, ResourceType.group, group_id):
            raise KafkaError(ErrorCode.group_authorization_failed)
        if (error := coordinator_error(group_id, context)) is not None:
            context.log_refusal(f"OffsetFetch of group {shown(group_id)}", error)
            if context.api_version >= _UNSTABLE_FROM and topics is not None:
                return _unstable(group_id, topics)
            raise KafkaError(ErrorCode.not_coordinator)
        offsets = context.services.groups.committed(
            group_id, member_id=getattr(asked, "member_id", None), member_epoch=getattr(asked, "member_epoch", -1)
        )
    except KafkaError as error:
        failed: list[dict[str, Any]] = []
        if context.api_version < _GROUP_ERROR_FROM and topics is not None:
            failed = [
                {
                    "name": topic.name,
                    "partitions": [
                        _partition(index, _NOTHING_COMMITTED, error.code) for index in topic.partition_indexes
                    ],
                }
                for topic in topics
            ]
        return {"group_id": group_id, "topics": failed, "error_code": error.code}
    found = _all(offsets, context) if topics is None else _named(offsets, topics, context)
    if getattr(request, "require_stable", False):
        _hide_unstable(group_id, found, context)
    return {"group_id": group_id, "topics": found, "error_code": ErrorCode.none}


def _is_of_earlier_topic(key: TopicPartition, committed: CommittedOffset, context: RequestContext) -> bool:
    """Whether an offset is known to be of a deleted topic with the name of a present one."""
    topic = context.services.metadata.image.topic(key.topic)
    return topic is not None and committed.topic_id not in (None, topic.topic_id)


def _unstable(group_id: str, topics: Iterable[Any]) -> dict[str, Any]:
    """The answer for which all consumers ask again, until the coordinator is confirmed, or knows that it is none.

    After an error of the group librdkafka never fetches the partitions (its issue 5586), and Java's consumers before
    3.9 end if it is COORDINATOR_NOT_AVAILABLE (KAFKA-17279). Java's Admin leaves the partitions out.
    """
    answers = [
        {
            "name": topic.name,
            "partitions": [
                _partition(index, _NOTHING_COMMITTED, ErrorCode.unstable_offset_commit)
                for index in topic.partition_indexes
            ],
        }
        for topic in topics
    ]
    return {"group_id": group_id, "topics": answers, "error_code": ErrorCode.none}


def _hide_unstable(group_id: str, topics: Iterable[dict[str, Any]], context: RequestContext) -> None:
    """Report UNSTABLE_OFFSET_COMMIT for offsets with a pending transaction, so that the consumer waits (KIP-447)."""
    transactional = context.services.groups.transactional
    for topic in topics:
        partitions = topic["partitions"]
        for position, answer in enumerate(partitions):
            index = answer["partition_index"]
            if answer["error_code"] is ErrorCode.none and transactional.is_pending(
                group_id, TopicPartition(topic["name"], index)
            ):
                partitions[position] = _partition(index, _NOTHING_COMMITTED, ErrorCode.unstable_offset_commit)


def _all(offsets: GroupOffsets, context: RequestContext) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for key, committed in offsets.items():
        if not _is_of_earlier_topic(key, committed, context):
            by_topic.setdefault(key.topic, []).append(_partition(key.partition, committed))
    return [
        {"name": name, "partitions": partitions}
        for name, partitions in by_topic.items()
        if context.is_authorized(AclOperation.describe, ResourceType.topic, name, log_denied=False)
    ]


def _named(offsets: GroupOffsets, topics: Iterable[Any], context: RequestContext) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [_one(offsets, topic.name, index, context) for index in topic.partition_indexes],
        }
        for topic in topics
    ]


def _one(offsets: GroupOffsets, topic: str, index: int, context: RequestContext) -> dict[str, Any]:
    if not context.is_authorized(AclOperation.describe, ResourceType.topic, topic):
        return _partition(index, _NOTHING_COMMITTED, ErrorCode.topic_authorization_failed)
    key = TopicPartition(topic, index)
    committed = offsets.get(key)
    if committed is None or _is_of_earlier_topic(key, committed, context):
        committed = _NOTHING_COMMITTED
    return _partition(index, committed)


def _partition(index: int, committed: CommittedOffset, error: ErrorCode = ErrorCode.none) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": error,
    }
