"""OffsetFetch: how far groups have read. No topics named means all that the group has committed."""

from collections.abc import Iterable
from typing import Any

from logtier.group.offsets import CommittedOffset, GroupOffsets
from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition

API_KEY = 9
VERSIONS = (1, 9)

#: Before, an error of the group is told with each partition.
_GROUP_ERROR_FROM = 2
#: Several groups in one request (KIP-709).
_SEVERAL_GROUPS_FROM = 8

_NOTHING_COMMITTED = CommittedOffset(offset=-1)


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Answer for each group by itself."""
    if context.api_version >= _SEVERAL_GROUPS_FROM:
        return {"groups": [_group(each.group_id, each.topics, context) for each in request.groups]}
    answer = _group(request.group_id, request.topics, context)
    del answer["group_id"]
    if context.api_version < _GROUP_ERROR_FROM:
        del answer["error_code"]
    return answer


def _group(group_id: str, topics: Iterable[Any] | None, context: RequestContext) -> dict[str, Any]:
    try:
        offsets = context.services.groups.committed(group_id)
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
    found = _all(offsets) if topics is None else _named(offsets, topics)
    return {"group_id": group_id, "topics": found, "error_code": ErrorCode.none}


def _all(offsets: GroupOffsets) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), committed in offsets.items():
        by_topic.setdefault(topic, []).append(_partition(partition, committed))
    return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]


def _named(offsets: GroupOffsets, topics: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                _partition(index, offsets.get(TopicPartition(topic.name, index)) or _NOTHING_COMMITTED)
                for index in topic.partition_indexes
            ],
        }
        for topic in topics
    ]


def _partition(index: int, committed: CommittedOffset, error: ErrorCode = ErrorCode.none) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": error,
    }
