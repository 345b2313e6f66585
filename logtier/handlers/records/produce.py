"""Produce: appends record batches to partitions (KIP-98; acks 0, 1, all).

Versions 3-13; 0-2 are advertised as well, since librdkafka before 2.11 otherwise sends uncompressed batches
(librdkafka#4956). As with Kafka 4, a request of these versions closes the connection.

A transactional batch waits for the transaction coordinator if its partition does not know the transaction (KIP-890, see
`transaction_verification`); all others are appended at once.
"""

from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.records.compression_ahead import Refusals, compress_ahead
from headwater.logtier.handlers.records.transaction_verification import Verdict, Verdicts, verify
from headwater.logtier.log.appending.recompression import codec_of
from headwater.logtier.log.durability import FlushRound
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.protocol.produce_response import ProducedPartition, encode_produce_response
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.batch import ATTRIBUTES, TRANSACTIONAL, Buffer
from headwater.logtier.records.compression import ZSTD
from headwater.logtier.replication.flush_wait import wait_flushed
from headwater.logtier.runtime.metrics import TopicTraffic
from headwater.logtier.security.audit_log import shown
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 0
VERSIONS = (3, 13)
ADVERTISED_VERSIONS = (0, 13)

#: Earlier versions have no zstd (KIP-110).
FIRST_VERSION_WITH_ZSTD: Final = 7
_TOPIC_ID_FROM: Final = 13

ACKS = (-1, 0, 1)
# Reported, never raised: an error raised repeatedly accumulates tracebacks.
NO_RECORDS = KafkaError(ErrorCode.invalid_record, "a partition of the request has no records")
INTERNAL_TOPIC = KafkaError(
    ErrorCode.invalid_topic_exception, "this topic is internal: its records are the committed offsets of groups"
)
DENIED = KafkaError(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
TRANSACTION_DENIED = KafkaError(
    ErrorCode.transactional_id_authorization_failed, "Transactional Id authorization failed."
)
INVALID_ACKS = KafkaError(ErrorCode.invalid_required_acks, "acks must be 0, 1 or -1 (all)")

#: A sync to wait for, the topic, its partitions in the response, and the index of the waiting partition.
Flushing: TypeAlias = tuple[FlushRound, str, list[ProducedPartition], int]

_NO_VERDICTS: Final[Mapping[TopicPartition, Verdict]] = {}
#: The low byte of a batch's attributes.
_FLAGS: Final = ATTRIBUTES + 1
_NONE: Final = ErrorCode.none
#: Creates a named tuple without its generated __new__, whose cost would arise twice for every batch.
_new: Final = tuple.__new__


def handle(request: Any, context: RequestContext) -> list[bytes] | Awaitable[list[bytes] | None] | None:
    """Append each partition's batch; with acks=0 an error closes the connection, since there is no response."""
    # Before recompression, which hides the producer's codec.
    refused = _NO_VERDICTS if context.api_version >= FIRST_VERSION_WITH_ZSTD else _zstd_refusals(request)
    compressing = compress_ahead(request, context)
    if compressing is None:
        return _handle(request, context, refused)
    return _handle_when_compressed(request, context, compressing, refused)


async def _handle_when_compressed(
    request: Any, context: RequestContext, compressing: Awaitable[Refusals], refused: Mapping[TopicPartition, Verdict]
) -> list[bytes] | None:
    response = _handle(request, context, {**await compressing, **refused})
    return await response if isinstance(response, Awaitable) else response


def _handle(
    request: Any, context: RequestContext, refused: Mapping[TopicPartition, Verdict]
) -> list[bytes] | Awaitable[list[bytes] | None] | None:
    """Append the batches that are not `refused` and, of transactions, those that the coordinator confirms."""
    if request.transactional_id is None or request.acks not in ACKS:
        return _append(request, context, refused)
    if not context.is_authorized(AclOperation.write, ResourceType.transactional_id, request.transactional_id):
        return _append(request, context, refused, TRANSACTION_DENIED)
    try:
        verdicts = verify(request.transactional_id, _batches(request, context), context)
    except KafkaError as error:
        return _append(request, context, refused, error.without_traceback())
    if isinstance(verdicts, Awaitable):
        return _append_when_verified(request, context, verdicts, refused)
    return _append(request, context, {**verdicts, **refused})


async def _append_when_verified(
    request: Any, context: RequestContext, verdicts: Awaitable[Verdicts], refused: Mapping[TopicPartition, Verdict]
) -> list[bytes] | None:
    response = _append(request, context, {**await verdicts, **refused})
    return await response if isinstance(response, Awaitable) else response


def _append(
    request: Any, context: RequestContext, verdicts: Mapping[TopicPartition, Verdict], refusal: KafkaError | None = None
) -> list[bytes] | Awaitable[list[bytes]] | None:
    """Append the batches that are not rejected: all by `refusal`, a partition by its verdict or by the log."""
    services = context.services
    append = services.replica_manager.append
    acks = request.acks
    acks_error = None if acks in ACKS else INVALID_ACKS
    may_be_transactional = request.transactional_id is not None
    now_ms = services.clock.now_ms()
    topics = []
    flushes: list[Flushing] = []
    first_error: KafkaError | None = None
    for topic_data in request.topic_data:
        name, topic_error = _topic(topic_data, context)
        topic_error = refusal or topic_error or acks_error
        partitions: list[ProducedPartition] = []
        traffic: TopicTraffic | None = None
        for data in topic_data.partition_data:
            index = data.index
            records = data.records
            error = topic_error
            if error is None:
                if not records:
                    error = NO_RECORDS
                elif not may_be_transactional and len(records) > _FLAGS and records[_FLAGS] & TRANSACTIONAL:
                    error = TRANSACTION_DENIED
            if error is None:
                topic_partition = _new(TopicPartition, (name, index))
                verdict = verdicts.get(topic_partition) if verdicts else None
                if isinstance(verdict, KafkaError):
                    error = verdict
                else:
                    try:
                        info = append(topic_partition, records, acks=acks, now_ms=now_ms, verification=verdict)
                    except KafkaError as refused:
                        error = refused.without_traceback()
            if error is None:
                first_offset, _, append_time_ms, start_offset, record_count, size_bytes, _, flush = info
                partitions.append(
                    _new(ProducedPartition, (index, _NONE, first_offset, append_time_ms, start_offset, None))
                )
                if traffic is None:
                    traffic = services.metrics.traffic(name)
                traffic.bytes_in += size_bytes
                traffic.messages_in += record_count
                if flush is not None:
                    flushes.append((flush, name, partitions, len(partitions) - 1))
                continue
            first_error = first_error or error
            _note_refusal(name, index, error, context)
            partitions.append(ProducedPartition(index, error.code, message=error.message or None))
        topics.append((name, topic_data.topic_id, partitions))
    if services.quotas.is_active:
        context.count_produced()
    if acks == 0:
        if first_error is not None:
            raise ProtocolViolationError(f"produce with acks=0 failed: {first_error}")
        return None
    if flushes:
        return _answer_when_flushed(flushes, topics, context)
    return _encode(topics, context)


async def _answer_when_flushed(flushes: list[Flushing], topics: list[Any], context: RequestContext) -> list[bytes]:
    """With flush.messages: acknowledge batches on the device, and reject those whose sync failed."""
    for flush, name, partitions, position in flushes:
        error = await wait_flushed(flush)
        if error is not None:
            index = partitions[position].partition_index
            _note_refusal(name, index, error, context)
            partitions[position] = ProducedPartition(index, error.code, message=error.message or None)
    return _encode(topics, context)


def _encode(topics: list[Any], context: RequestContext) -> list[bytes]:
    throttle_ms = context.finish_throttling() if context.services.quotas.is_active else 0
    return [encode_produce_response(context.api_version, context.correlation_id, topics, throttle_ms)]


def _topic(topic_data: Any, context: RequestContext) -> tuple[str, KafkaError | None]:
    """Return the topic's name, "" for an unknown id, and the error that prevents appends to it."""
    name = topic_data.name
    if not name:
        topic_id = topic_data.topic_id
        topic = context.services.metadata.image.topic_by_id(topic_id) if topic_id else None
        if topic is None and context.api_version < _TOPIC_ID_FROM:
            return "", KafkaError(ErrorCode.unknown_topic_or_partition, "a topic without a name")
        if topic is None:
            return "", KafkaError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        name = topic.name
    if context.services.authorizer is not None and not context.is_authorized(
        AclOperation.write, ResourceType.topic, name
    ):
        return name, DENIED
    return name, INTERNAL_TOPIC if name in INTERNAL_TOPICS else None


def _zstd_refusals(request: Any) -> dict[TopicPartition, Verdict]:
    """Return the errors of partitions with zstd batches; topics have names, since topic ids came later."""
    return {
        TopicPartition(topic_data.name, data.index): KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce version {FIRST_VERSION_WITH_ZSTD} or later"
        )
        for topic_data in request.topic_data
        for data in topic_data.partition_data
        if data.records and codec_of(data.records) == ZSTD
    }


def _batches(request: Any, context: RequestContext) -> Iterator[tuple[TopicPartition, Buffer]]:
    """Yield the batches that pass all checks without the coordinator: only these are added to the transaction."""
    for topic_data in request.topic_data:
        name, error = _topic(topic_data, context)
        if error is None:
            for data in topic_data.partition_data:
                if data.records:
                    yield TopicPartition(name, data.index), data.records


def _note_refusal(topic: str, index: int, error: KafkaError, context: RequestContext) -> None:
    context.note_error(error.code)
    traffic = context.services.metrics.topics.get(topic)
    if traffic is not None:
        traffic.failed_produces += 1
    context.log_refusal(f"a produce to {shown(topic)}-{index}", error)
