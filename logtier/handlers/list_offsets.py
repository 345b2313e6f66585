"""ListOffsets: the first, the last, or the first offset at or after a timestamp (KIP-79; the largest one: KIP-734)."""

import logging
from typing import Any

from logtier.handlers.context import RequestContext
from logtier.protocol.errors import ErrorCode, KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.records.batch import CorruptRecordsError

API_KEY = 2
VERSIONS = (1, 10)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
#: Tiered storage (KIP-405): all is local here, nothing is remote.
EARLIEST_LOCAL = -4
LATEST_TIERED = -5

logger = logging.getLogger(__name__)

NOT_FOUND = {"timestamp": -1, "offset": -1, "leader_epoch": -1}


def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Look up each partition by itself; an error concerns its partition only."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition(topic.name, partition, context) for partition in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _partition(topic: str, wanted: Any, context: RequestContext) -> dict[str, Any]:
    try:
        found = _look_up(TopicPartition(topic, wanted.partition_index), wanted, context)
    except KafkaError as error:
        return {"partition_index": wanted.partition_index, "error_code": error.code, **NOT_FOUND}
    except (OSError, CorruptRecordsError) as error:
        logger.error("%s-%d: timestamps cannot be looked up: %s", topic, wanted.partition_index, error)
        damaged = isinstance(error, CorruptRecordsError)
        code = ErrorCode.corrupt_message if damaged else ErrorCode.kafka_storage_error
        return {"partition_index": wanted.partition_index, "error_code": code, **NOT_FOUND}
    return {"partition_index": wanted.partition_index, "error_code": ErrorCode.none, **found}


def _look_up(topic_partition: TopicPartition, wanted: Any, context: RequestContext) -> dict[str, int]:
    partition = context.services.replica_manager.partition(topic_partition)
    partition.check_leader(getattr(wanted, "current_leader_epoch", -1))
    log = partition.log
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return {"timestamp": -1, "offset": log.log_start_offset, "leader_epoch": partition.leader_epoch}
    if wanted.timestamp == LATEST:
        return {"timestamp": -1, "offset": partition.high_watermark, "leader_epoch": partition.leader_epoch}
    if wanted.timestamp == LATEST_TIERED:
        return NOT_FOUND
    if wanted.timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp()
    elif wanted.timestamp < 0:
        raise KafkaError(ErrorCode.unsupported_version, f"unknown timestamp {wanted.timestamp}")
    else:
        found = log.offset_for_timestamp(wanted.timestamp)
    if found is None or found.offset >= partition.high_watermark:
        return NOT_FOUND
    return {"timestamp": found.timestamp_ms, "offset": found.offset, "leader_epoch": found.leader_epoch}
