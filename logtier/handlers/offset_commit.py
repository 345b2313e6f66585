"""OffsetCommit: keep how far a group has read; answered when it is in the log of `__consumer_offsets`."""

from typing import Any

from logtier.group.offsets import NO_LEADER_EPOCH, CommittedOffset
from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.messages import milliseconds
from logtier.protocol.topic_partition import TopicPartition
from logtier.security.operations import AclOperation, ResourceType

API_KEY = 8
VERSIONS = (2, 9)

_NO_RETENTION_OF_ITS_OWN_MS = -1


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Commit what names an existing partition; unknown partitions and overlong metadata are refused one by one."""
    services = context.services
    image = services.metadata.image
    metadata_max = services.config.offset_metadata_max_bytes
    now_ms = services.clock.now_ms()
    expire_timestamp_ms = _expire_timestamp_ms(request, now_ms)
    has_epoch = context.api_version >= 6
    commits: dict[TopicPartition, CommittedOffset] = {}
    may_commit = context.is_authorized(AclOperation.read, ResourceType.group, request.group_id)
    answers = []
    accepted = []
    for requested in request.topics:
        topic = image.topic(requested.name)
        partition_count = 0 if topic is None else len(topic.partitions)
        topic_id = None if topic is None else topic.topic_id
        denial = None
        if not may_commit:
            denial = ErrorCode.group_authorization_failed
        elif not context.is_authorized(AclOperation.read, ResourceType.topic, requested.name):
            denial = ErrorCode.topic_authorization_failed
        partitions = []
        for partition in requested.partitions:
            index = partition.partition_index
            metadata = partition.committed_metadata or ""
            answer = {"partition_index": index, "error_code": ErrorCode.none}
            if denial is not None:
                answer["error_code"] = denial
            elif not 0 <= index < partition_count:
                answer["error_code"] = ErrorCode.unknown_topic_or_partition
            elif len(metadata) > metadata_max:
                answer["error_code"] = ErrorCode.offset_metadata_too_large
            else:
                accepted.append(answer)
                commits[TopicPartition(requested.name, index)] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch if has_epoch else NO_LEADER_EPOCH,
                    metadata,
                    now_ms,
                    expire_timestamp_ms,
                    topic_id,
                )
            partitions.append(answer)
        answers.append({"name": requested.name, "partitions": partitions})
    if request.topics and not commits:
        return {"topics": answers}
    try:
        await services.groups.commit_offsets(
            request.group_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            generation_id=request.generation_id_or_member_epoch,
            commits=commits,
            api_version=context.api_version,
        )
    except KafkaError as error:
        for answer in accepted:
            answer["error_code"] = error.code
    return {"topics": answers}


def _expire_timestamp_ms(request: Any, now_ms: int) -> int | None:
    """Until when the client wants its offsets kept (versions 2 to 4 only; KIP-211 took it away)."""
    retention = getattr(request, "retention_time", None)
    if retention is None or milliseconds(retention) == _NO_RETENTION_OF_ITS_OWN_MS:
        return None
    return now_ms + milliseconds(retention)
