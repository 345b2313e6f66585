"""DeleteRecords: raises the log start offset of partitions (KIP-107).

Records below it are no longer readable; the next retention check deletes the files. The answer waits until the log of
every live replica begins at the offset or later.
"""

from collections.abc import Coroutine, Sequence
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.acknowledgements import ReplicationWait
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 21
VERSIONS = (0, 2)

_NO_LOW_WATERMARK = -1


def handle(request: Any, context: RequestContext) -> dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]:
    """Process each partition separately; of a partition listed twice the last offset counts."""
    topics: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = topics.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
    errors: dict[TopicPartition, KafkaError | None] = {}
    deleted: list[tuple[TopicPartition, int]] = []
    for name, offsets in topics.items():
        for index, offset in offsets.items():
            topic_partition = TopicPartition(name, index)
            try:
                deleted.append((topic_partition, _delete(topic_partition, offset, context)))
            except KafkaError as error:
                errors[topic_partition] = error.without_traceback()
            else:
                errors[topic_partition] = None
    wait = context.services.replica_manager.deletions(deleted, messages.milliseconds(request.timeout))
    if wait is None:
        return _respond(topics, errors, context)
    return _respond_later(topics, errors, [topic_partition for topic_partition, _ in deleted], wait, context)


async def _respond_later(
    topics: dict[str, dict[int, int]],
    errors: dict[TopicPartition, KafkaError | None],
    deleted: Sequence[TopicPartition],
    wait: ReplicationWait,
    context: RequestContext,
) -> dict[str, Any]:
    errors.update(zip(deleted, await wait.results(), strict=True))
    return _respond(topics, errors, context)


def _respond(
    topics: dict[str, dict[int, int]], errors: dict[TopicPartition, KafkaError | None], context: RequestContext
) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    _partition(TopicPartition(name, index), errors[TopicPartition(name, index)], context)
                    for index in offsets
                ],
            }
            for name, offsets in topics.items()
        ]
    }


def _partition(topic_partition: TopicPartition, error: KafkaError | None, context: RequestContext) -> dict[str, Any]:
    low_watermark = _NO_LOW_WATERMARK
    if error is None:
        try:
            low_watermark = context.services.replica_manager.partition(topic_partition).low_watermark
        except KafkaError as gone:  # during the wait for other partitions
            error = gone
    return {
        "partition_index": topic_partition.partition,
        "low_watermark": low_watermark,
        "error_code": ErrorCode.none if error is None else error.code,
    }


def _delete(topic_partition: TopicPartition, offset: int, context: RequestContext) -> int:
    """Raise the log start offset of this replica; return it."""
    name = topic_partition.topic
    if not context.is_authorized(AclOperation.delete, ResourceType.topic, name):
        raise KafkaError(ErrorCode.topic_authorization_failed)
    topic = context.services.metadata.image.topic(name)
    if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if name in INTERNAL_TOPICS:
        # Coordinators read their topics from the beginning.
        raise KafkaError(ErrorCode.invalid_topic_exception)
    try:
        return context.services.replica_manager.delete_records(topic_partition, offset)
    except OSError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
