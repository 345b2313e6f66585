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
from headwater.logtier.log.log import AppendInfo
from headwater.logtier.metadata.topic_names import INTERNAL_TOPICS
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.protocol.produce_response import ProducedPartition, encode_produce_response
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.records.awaited_batches import AwaitedBatches, BatchSequence, sequence_of
from headwater.logtier.records.batch import ATTRIBUTES, TRANSACTIONAL, Buffer
from headwater.logtier.records.compression import ZSTD
from headwater.logtier.replication.acknowledgements import ReplicationWait, Results
from headwater.logtier.replication.replica_manager import ReplicaManager
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
HELD_BACK = KafkaError(
    ErrorCode.not_enough_replicas, "a batch before this one was refused; send it again, and then this one"
)
INVALID_ACKS = KafkaError(ErrorCode.invalid_required_acks, "acks must be 0, 1 or -1 (all)")

#: An append that may have to wait: its partition, its log's answer, the partitions of its topic in the response, the
#: index among them, and the place of the batch.
_Append: TypeAlias = tuple[TopicPartition, AppendInfo, list[ProducedPartition], int, BatchSequence | None]
_Topics: TypeAlias = list[tuple[str, Any, list[ProducedPartition]]]
#: The outcome of the appends of a request: the response, the appends for which it may have to wait, and the first
#: error, which with acks=0 closes the connection.
_Produced: TypeAlias = tuple[_Topics, list[_Append], KafkaError | None]

_NO_VERDICTS: Final[Mapping[TopicPartition, Verdict]] = {}
#: The low byte of a batch's attributes.
_FLAGS: Final = ATTRIBUTES + 1
_NONE: Final = ErrorCode.none
#: Creates a named tuple without its generated __new__, whose cost would arise twice for every batch.
_new: Final = tuple.__new__


def handle(request: Any, context: RequestContext) -> list[bytes] | Awaitable[list[bytes] | None] | None:
    """Append each partition's batch; with acks=0 an error closes the connection, since there is no response.

    Most requests are answered at once. A request waits for slow work on its records, then for the transaction
    coordinator, in `_handle_later`, then for the device and the followers, in `_acknowledge`.
    """
    # Before recompression, which hides the producer's codec.
    refused = _NO_VERDICTS if context.api_version >= FIRST_VERSION_WITH_ZSTD else _zstd_refusals(request)
    compressing = compress_ahead(request, context)
    if compressing is not None:
        return _handle_later(request, context, refused, compressing=compressing)
    if request.transactional_id is None:
        produced = _append_all(request, context, refused)
    else:
        verdicts = _verdicts(request, context, refused)
        if isinstance(verdicts, Awaitable):
            return _handle_later(request, context, refused, verifying=verdicts)
        produced = _append_all(request, context, *verdicts)
    wait = _wait(request, context, produced)
    if wait is not None:
        return _acknowledge(context, produced, wait)
    return _respond(request.acks, context, produced)


async def _handle_later(
    request: Any,
    context: RequestContext,
    refused: Mapping[TopicPartition, Verdict],
    *,
    compressing: Awaitable[Refusals] | None = None,
    verifying: Awaitable[Verdicts] | None = None,
) -> list[bytes] | None:
    """Go on with a request from the step that it waits for before its append."""
    if compressing is not None:
        refused = {**await compressing, **refused}
    verdicts = verifying or _verdicts(request, context, refused)
    if isinstance(verdicts, Awaitable):
        verdicts = {**await verdicts, **refused}, None
    produced = _append_all(request, context, *verdicts)
    wait = _wait(request, context, produced)
    if wait is None:
        return _respond(request.acks, context, produced)
    acknowledged = _acknowledge(context, produced, wait)
    del request, refused, verdicts, compressing, verifying  # with records that may be far larger than the request
    return await acknowledged


def _acknowledge(context: RequestContext, produced: _Produced, wait: ReplicationWait) -> Awaitable[list[bytes] | None]:
    """Answer when the device and the followers have the records; meanwhile the client's next records are appended.

    The wait holds nothing of the request, whose memory the next one takes.
    """
    # The client is muted now, if it is, and not when others have followed.
    throttle_ms = _throttle(context)
    if context.reader is not None:
        context.reader.carried_out()

    async def acknowledged() -> list[bytes]:
        _refuse_unacknowledged(produced, await wait.results(), context)
        return _encode(context, produced, throttle_ms)

    return acknowledged()


def _verdicts(
    request: Any, context: RequestContext, refused: Mapping[TopicPartition, Verdict]
) -> tuple[Mapping[TopicPartition, Verdict], KafkaError | None] | Awaitable[Verdicts]:
    """Return the verdicts of partitions, with the error of all of them, if any; or those of the coordinator, later."""
    transactional_id = request.transactional_id
    if transactional_id is None or request.acks not in ACKS:
        return refused, None
    if not context.is_authorized(AclOperation.write, ResourceType.transactional_id, transactional_id):
        return refused, TRANSACTION_DENIED
    try:
        verdicts = verify(transactional_id, _batches(request, context), context)
    except KafkaError as error:
        return refused, error.without_traceback()
    return verdicts if isinstance(verdicts, Awaitable) else ({**verdicts, **refused}, None)


def _append_all(
    request: Any,
    context: RequestContext,
    verdicts: Mapping[TopicPartition, Verdict],
    refusal: KafkaError | None = None,
) -> _Produced:
    """Append the batches that are not rejected, all by `refusal` or a partition by its verdict, and count them."""
    services = context.services
    manager = services.replica_manager
    acks = request.acks
    acks_error = None if acks in ACKS else INVALID_ACKS
    may_be_transactional = request.transactional_id is not None
    waits_for_followers = acks == -1 and bool(manager.followed)
    now_ms = services.clock.now_ms()
    topics: _Topics = []
    unacknowledged: list[_Append] = []
    first_error: KafkaError | None = None
    awaited = _awaited(context)
    for topic_data in request.topic_data:
        name, topic_error = _topic(topic_data, context)
        topic_error = refusal or topic_error or acks_error
        partitions: list[ProducedPartition] = []
        traffic: TopicTraffic | None = None
        for data in topic_data.partition_data:
            index = data.index
            key = _new(TopicPartition, (name, index))
            verdict = verdicts.get(key) if verdicts else None
            info = topic_error or _append(
                manager, awaited, key, data.records, verdict, may_be_transactional, acks, now_ms
            )
            if isinstance(info, KafkaError):
                if topic_error is None:
                    info = _refused(awaited, key, sequence_of(data.records), info)
                first_error = first_error or info
                _note_refusal(name, index, info, context)
                partitions.append(ProducedPartition(index, info.code, message=info.message or None))
                continue
            if awaited:
                awaited.appended(key, sequence_of(data.records))
            first_offset, _, append_time_ms, start_offset, record_count, size_bytes, _, flush = info
            if flush is not None or waits_for_followers:
                unacknowledged.append((key, info, partitions, len(partitions), sequence_of(data.records)))
            partitions.append(_new(ProducedPartition, (index, _NONE, first_offset, append_time_ms, start_offset, None)))
            if traffic is None:
                traffic = services.metrics.traffic(name)
            traffic.bytes_in += size_bytes
            traffic.messages_in += record_count
        topics.append((name, topic_data.topic_id, partitions))
    if services.quotas.is_active:
        context.count_produced()
    return topics, unacknowledged, first_error


def _append(
    manager: ReplicaManager,
    awaited: AwaitedBatches | None,
    key: TopicPartition,
    records: Buffer | None,
    verdict: Verdict | None,
    may_be_transactional: bool,
    acks: int,
    now_ms: int,
) -> AppendInfo | KafkaError:
    """Append a partition's batch, or return why not: not valid, refused before, or refused by its partition or log.

    A log that does not know the producer would also take a batch that comes behind an awaited one.
    """
    if not records:
        return NO_RECORDS
    if not may_be_transactional and len(records) > _FLAGS and records[_FLAGS] & TRANSACTIONAL:
        return TRANSACTION_DENIED
    if isinstance(verdict, KafkaError):
        return verdict
    if (
        awaited
        and (batch := sequence_of(records)) is not None
        and manager.takes_any_sequence(key, batch.producer_id)
        and awaited.hold_back(key, batch)
    ):
        return HELD_BACK
    try:
        return manager.append(key, records, acks=acks, now_ms=now_ms, verification=verdict)
    except KafkaError as error:
        return error.without_traceback()


def _awaited(context: RequestContext) -> AwaitedBatches | None:
    return None if context.reader is None else context.reader.awaited_batches


def _refused(
    awaited: AwaitedBatches | None, key: TopicPartition, batch: BatchSequence | None, error: KafkaError
) -> KafkaError:
    """Await a batch that was refused, or hold it back behind an awaited one; return what its producer is told."""
    if awaited is None or batch is None or error is HELD_BACK:
        return error
    if error.code is ErrorCode.out_of_order_sequence_number:
        return HELD_BACK if awaited.hold_back(key, batch) else error
    awaited.refused(key, batch)
    return error


def _wait(request: Any, context: RequestContext, produced: _Produced) -> ReplicationWait | None:
    """Return the wait for the device (flush.messages) and the followers (acks=all); None without one."""
    unacknowledged = produced[1]
    if not unacknowledged or request.acks == 0:
        return None
    appends = [(key, info) for key, info, *_ in unacknowledged]
    return context.services.replica_manager.acknowledgement(appends, request.timeout_ms, acks=request.acks)


def _refuse_unacknowledged(produced: _Produced, results: Results, context: RequestContext) -> None:
    """Report the appends that did not reach the device or the followers."""
    for (key, _, partitions, position, batch), error in zip(produced[1], results, strict=True):
        if error is not None:
            _refused(_awaited(context), key, batch, error)
            _note_refusal(key.topic, key.partition, error, context)
            partitions[position] = ProducedPartition(key.partition, error.code, message=error.message or None)


def _respond(acks: int, context: RequestContext, produced: _Produced) -> list[bytes] | None:
    if acks == 0:
        if produced[2] is not None:
            raise ProtocolViolationError(f"produce with acks=0 failed: {produced[2]}")
        return None
    return _encode(context, produced, _throttle(context))


def _throttle(context: RequestContext) -> int:
    return context.finish_throttling() if context.services.quotas.is_active else 0


def _encode(context: RequestContext, produced: _Produced, throttle_ms: int) -> list[bytes]:
    return [encode_produce_response(context.api_version, context.correlation_id, produced[0], throttle_ms)]


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
