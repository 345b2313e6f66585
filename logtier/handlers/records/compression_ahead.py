"""Performs slow work before the append of a produce request on other threads.

Batches for topics with a codec are recompressed, and records for compacted topics are checked. The log does both itself
for quick batches; batches prepared here are only written.
"""

from collections.abc import Awaitable, Hashable, Mapping
from functools import partial
from typing import Any, TypeAlias

from headwater.logtier.config import TopicConfig
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.log.appending import record_frames
from headwater.logtier.log.appending.recompression import PRODUCER, is_quick, recompressed
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import Buffer
from headwater.logtier.runtime.worker_threads import ClientWork
from headwater.logtier.security.operations import AclOperation, ResourceType

Refusals: TypeAlias = Mapping[TopicPartition, KafkaError]
"""Partitions with invalid records, with the error."""


def compress_ahead(request: Any, context: RequestContext) -> Awaitable[Refusals] | None:
    """Perform the slow work on a produce request's records; None if there is none.

    With the result, the request has the records to append, except for partitions in the result. Views into the frame
    are copied before the first wait.
    """
    manager = context.services.replica_manager
    if not manager.recompressing_topics and not manager.compacted_topics:
        return None
    work: list[tuple[Any, TopicPartition, bytes, TopicConfig]] = []
    for topic_data in request.topic_data:
        name = topic_data.name or _name(topic_data.topic_id, context)
        if name not in manager.recompressing_topics and name not in manager.compacted_topics:
            continue
        if not context.is_authorized(AclOperation.write, ResourceType.topic, name):
            continue  # rejected by the append
        for data in topic_data.partition_data:
            if not data.records:
                continue
            topic_partition = TopicPartition(name, data.index)
            try:
                config = manager.log(topic_partition).config
            except KafkaError:
                continue  # rejected by the append
            if _takes_long(data.records, config):
                work.append((data, topic_partition, bytes(data.records), config))
    return _prepare_all(work, context.services.record_work, context.share_owner) if work else None


def _name(topic_id: Any, context: RequestContext) -> str:
    topic = context.services.metadata.image.topic_by_id(topic_id) if topic_id else None
    return "" if topic is None else topic.name


def _takes_long(records: Buffer, config: TopicConfig) -> bool:
    if config.compression_type != PRODUCER and not is_quick(records, config):
        return True
    return "compact" in config.cleanup_policy and not record_frames.is_quick(records)


async def _prepare_all(
    work: list[tuple[Any, TopicPartition, bytes, TopicConfig]], threads: ClientWork, owner: Hashable
) -> Refusals:
    refused: dict[TopicPartition, KafkaError] = {}
    for data, topic_partition, records, config in work:
        prepared = await threads.run(owner, partial(_prepared, records, config))
        if isinstance(prepared, KafkaError):
            refused[topic_partition] = prepared
        else:
            data.records = prepared
    return refused


def _prepared(records: Buffer, config: TopicConfig) -> Buffer | KafkaError:
    """Return the records to append, or the error of invalid records."""
    try:
        if config.compression_type != PRODUCER:
            records = memoryview(recompressed(records, config))
        if "compact" in config.cleanup_policy:
            records = record_frames.check_keyed_batch(records, config.max_message_bytes)
    except KafkaError as error:
        return error.without_traceback()
    return records
