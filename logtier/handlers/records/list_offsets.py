"""ListOffsets: the first, the last, or the first offset at or after a timestamp (KIP-79; the largest one: KIP-734)."""

import logging
from collections import Counter
from enum import Enum, auto
from typing import Any

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.log.log import Log
from headwater.logtier.log.reading import LogReader, TimestampOffset
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import CorruptRecordsError
from headwater.logtier.replication.cold_reads import look_up
from headwater.logtier.replication.partition import Partition
from headwater.logtier.runtime.read_ahead import ReadAhead
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 2
VERSIONS = (1, 10)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
#: Tiered storage (KIP-405): all segments are local.
EARLIEST_LOCAL = -4
LATEST_TIERED = -5

#: Special timestamps, and the first version with each.
_SPECIAL_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}

READ_COMMITTED = 1
CONSUMER = -1
_FIRST_VERSION_WITH_NOT_AVAILABLE = 5


class _Reader(Enum):
    """Who asks, which decides the end of a partition: log end, last stable offset or high watermark."""

    REPLICA = auto()
    READ_COMMITTED = auto()
    READ_UNCOMMITTED = auto()


logger = logging.getLogger(__name__)

NOT_FOUND = {"timestamp": -1, "offset": -1, "leader_epoch": -1}


async def handle(request: Any, context: RequestContext) -> dict[str, Any]:
    """Look up each partition separately; an error concerns its partition only."""
    asked = Counter(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    reader = _reader(request)
    topics = []
    for topic in request.topics:
        allowed = context.is_authorized(AclOperation.describe, ResourceType.topic, topic.name)
        partitions = []
        for wanted in topic.partitions:
            if not allowed:
                code = ErrorCode.topic_authorization_failed
            elif asked[topic.name, wanted.partition_index] > 1:
                code = ErrorCode.invalid_request
            else:
                partitions.append(await _partition(topic.name, wanted, reader, context))
                continue
            partitions.append({"partition_index": wanted.partition_index, "error_code": code, **NOT_FOUND})
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


def _reader(request: Any) -> _Reader:
    if request.replica_id >= 0:
        return _Reader.REPLICA
    is_read_committed = request.replica_id == CONSUMER and getattr(request, "isolation_level", 0) == READ_COMMITTED
    return _Reader.READ_COMMITTED if is_read_committed else _Reader.READ_UNCOMMITTED


def _known_code(code: ErrorCode, context: RequestContext) -> ErrorCode:
    """Return the error code for the client's version: old clients retry only after LEADER_NOT_AVAILABLE (KIP-207)."""
    if code == ErrorCode.offset_not_available and context.api_version < _FIRST_VERSION_WITH_NOT_AVAILABLE:
        return ErrorCode.leader_not_available
    return code


async def _partition(topic: str, wanted: Any, reader: _Reader, context: RequestContext) -> dict[str, Any]:
    index = wanted.partition_index
    try:
        partition = context.services.replica_manager.partition(TopicPartition(topic, index))
        partition.check_leader(getattr(wanted, "current_leader_epoch", -1))
        if wanted.timestamp < 0 and context.api_version < _SPECIAL_FROM.get(wanted.timestamp, 2**15):
            raise KafkaError(ErrorCode.unsupported_version, f"unknown timestamp {wanted.timestamp}")
        found = await _look_up(partition, wanted.timestamp, reader, context.services.read_ahead)
    except KafkaError as error:
        return {"partition_index": index, "error_code": _known_code(error.code, context), **NOT_FOUND}
    except (OSError, CorruptRecordsError) as error:
        logger.error("%s-%d: timestamps cannot be looked up: %s", topic, index, error)
        damaged = isinstance(error, CorruptRecordsError)
        if isinstance(error, OSError):
            partition.log.health.observe(f"read {partition.log.directory}", error)
        code = ErrorCode.corrupt_message if damaged else ErrorCode.kafka_storage_error
        return {"partition_index": index, "error_code": code, **NOT_FOUND}
    return {"partition_index": index, "error_code": ErrorCode.none, **found}


async def _look_up(
    partition: Partition[Log], timestamp: int, reader: _Reader, read_ahead: ReadAhead | None
) -> dict[str, int]:
    log = partition.log
    if reader is _Reader.REPLICA:
        end_offset = log.log_end_offset
    else:
        end_offset = partition.last_stable_offset if reader is _Reader.READ_COMMITTED else partition.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        # The epoch of the first record; for an empty log the leader's epoch.
        epoch = log.leader_epochs.epoch_at(log.log_start_offset)
        return {
            "timestamp": -1,
            "offset": log.log_start_offset,
            "leader_epoch": partition.leader_epoch if epoch < 0 else epoch,
        }
    if timestamp == LATEST:
        if reader is not _Reader.REPLICA:
            partition.check_offsets_known()
        return {"timestamp": -1, "offset": end_offset, "leader_epoch": partition.leader_epoch}
    if timestamp == LATEST_TIERED:
        return NOT_FOUND

    def find(reader: LogReader, may_wait: bool) -> TimestampOffset | None:
        if timestamp == MAX_TIMESTAMP:
            return reader.offset_of_max_timestamp(may_wait=may_wait)
        return reader.offset_for_timestamp(timestamp, may_wait=may_wait)

    found = await look_up(log, find, read_ahead)
    if found is None or found.offset >= end_offset:
        if reader is not _Reader.REPLICA:
            # A record may be there that the former leader had acknowledged.
            partition.check_offsets_known()
        return NOT_FOUND
    return {"timestamp": found.timestamp_ms, "offset": found.offset, "leader_epoch": found.leader_epoch}
