"""Fetch: reads record batches, with an optional wait.

Versions 4-18, by topic id from 13; incremental fetch sessions (KIP-227) from 7. Another process sends records that are
not in the page cache, or another thread reads them into it first, so that a reader of old data delays only itself.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from headwater.logtier.handlers.cold_records import Reader, Warming, warm_up
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.fetch_response import (
    FIRST_VERSION_WITH_TOPIC_IDS,
    FetchedPartition,
    TaggedPartition,
    encode_fetch_response,
)
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    SESSION_PARTITIONS_MAX,
    FetchSession,
    PartitionKey,
)
from headwater.logtier.replication.follower_state import UNKNOWN_BROKER_EPOCH
from headwater.logtier.replication.partition_reads import Fetched, FetchingFollower, FetchPartition
from headwater.logtier.replication.session_moves import DuePartitions, SessionMoves
from headwater.logtier.replication.throttled_reads import record_answer
from headwater.logtier.runtime.metrics import TopicTraffic
from headwater.logtier.runtime.network import Part
from headwater.logtier.security.operations import AclOperation, ResourceType

API_KEY = 1
VERSIONS = (4, 18)

#: Earlier versions have no zstd (KIP-110).
FIRST_VERSION_WITH_ZSTD = 10

#: An isolation level (KIP-98): records below the last stable offset, with the aborted transactions.
READ_COMMITTED = 1
#: The replica id of a consumer.
CONSUMER = -1

#: First version with the consumer's rack: a client of it may be served by a follower (KIP-392).
FIRST_VERSION_WITH_RACK = 11
#: First version in which consumers are told the leader (KIP-951).
FIRST_VERSION_WITH_LEADER = 16
_ERRORS_WITH_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)

#: Longest time between two reads of all partitions of a session, in ms.
READ_ALL_MS = 3_000

#: Encodes the response of a fetch.
_Respond = Callable[[Fetched], list[Part]]


def handle(request: Any, context: RequestContext) -> list[Part] | asyncio.Future[list[Part]]:
    """Answer at once if there are enough records, otherwise when there are or at the timeout."""
    session_id = getattr(request, "session_id", NO_SESSION)
    epoch = getattr(request, "session_epoch", FINAL_EPOCH)
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if session_id != NO_SESSION:
            context.services.fetch_sessions.remove(session_id)
        if epoch == INITIAL_EPOCH:
            return _begin_session(request, context)
        wanted = _permitted([each for _, each in _wanted(request, context)], request, context)
        return _fetch(wanted, lambda fetched: _encode(wanted, fetched, context), request, context)
    session = context.services.fetch_sessions.find(session_id, epoch, by_topic_id=_is_by_id(context))
    if isinstance(session, ErrorCode):
        return _refuse(session, context)
    if session.is_privileged != _is_of_replica(request):
        # Its partitions are those of a replica, or of a consumer, and are read as such.
        return _refuse(ErrorCode.fetch_session_id_not_found, context)
    return _go_on(session, request, context)


def _begin_session(request: Any, context: RequestContext) -> list[Part] | asyncio.Future[list[Part]]:
    """Answer a full fetch and begin a session, which has each partition once."""
    image = context.services.metadata.image
    asked = dict(_wanted(request, context))
    wanted = _permitted(list(asked.values()), request, context)

    def respond(fetched: Fetched) -> list[Part]:
        # Only now: a client that disconnects during the wait takes no slot.
        services = context.services
        is_of_replica = _is_of_replica(request)
        if is_of_replica and not context.is_authorized(
            AclOperation.cluster_action, ResourceType.cluster, log_denied=False
        ):
            return _encode(wanted, fetched, context)
        session = services.fetch_sessions.create(
            tuple(asked.items()),
            by_topic_id=_is_by_id(context),
            is_privileged=is_of_replica,
            now_ms=services.clock.now_ms(),
        )
        if session is None:
            return _encode(wanted, fetched, context)
        session.metadata = image
        session.is_read_committed = _is_read_committed(request)
        moves = services.replica_manager.fetches.moves(session)
        session.news(list(asked), fetched, _stands(moves, request))
        return _encode(wanted, fetched, context, session.id)

    return _fetch(wanted, respond, request, context)


def _go_on(
    session: FetchSession[FetchPartition], request: Any, context: RequestContext
) -> list[Part] | asyncio.Future[list[Part]]:
    """Answer an incremental fetch: the partitions that are due are read, those with changes are returned."""
    services = context.services
    fetches = services.replica_manager.fetches
    moves = cast("SessionMoves", session.moves)
    changed, forgotten = _wanted(request, context), tuple(_forgotten(request))
    for key in (*(key for key, _ in changed), *forgotten):
        moves.leave(key)
    session.update(changed, forgotten)
    epoch = session.advance()
    if not session.partitions:
        services.fetch_sessions.remove(session.id)
        return _encode((), [], context)
    if len(session.partitions) > SESSION_PARTITIONS_MAX:
        services.fetch_sessions.remove(session.id)
        return _refuse(ErrorCode.fetch_session_id_not_found, context)
    image = services.metadata.image
    is_read_committed = _is_read_committed(request)
    is_outdated = session.metadata is not image or session.is_read_committed != is_read_committed
    if is_outdated:
        session.replace_wanted(lambda each: _resolved(each, image, is_read_committed))
        session.metadata = image
        session.is_read_committed = is_read_committed
        moves.leave_all()
    services.fetch_sessions.touch(session, services.clock.now_ms())
    # Bytes are counted, followers elsewhere found, and throttles kept over all partitions.
    selects = bool(getattr(request, "rack_id", "")) and bool(services.metadata.config.replica_selector_class)
    reads_all = fetches.reads_all or request.min_bytes > 1 or selects
    now_ms = services.clock.monotonic_ms()
    if is_outdated or reads_all or now_ms - session.read_ms >= _read_all_ms(context):
        session.read_all(now_ms)
    due = DuePartitions(session, moves, lambda wanted: _permitted(wanted, request, context))
    stands = _stands(moves, request)

    def respond(fetched: Fetched) -> list[Part]:
        if session.epoch != epoch:
            # Another connection used the session meanwhile and may have changed its partitions.
            return _refuse(ErrorCode.invalid_fetch_session_epoch, context)
        told = session.news(due.keys, fetched, stands)
        return _encode([due.wanted[i] for i in told], [fetched[i] for i in told], context, session.id)

    return _fetch(due.wanted, respond, request, context, session.id, None if reads_all else due)


def _read_all_ms(context: RequestContext) -> int:
    """Time after which a session reads all its partitions again, in ms: a leader knows then that followers keep up.

    It is what a start of the log, which retention moves without a sign, may take to be told.
    """
    config = context.services.metadata.config
    return min(READ_ALL_MS, max(0, config.replica_lag_time_max_ms - config.replica_fetch_wait_max_ms) // 10)


def _stands(moves: SessionMoves, request: Any) -> Callable[[PartitionKey, FetchPartition, FetchedPartition], bool]:
    follower_id = _replica_id(request) if _is_of_replica(request) else None
    return lambda key, wanted, answer: moves.begins_to_stand(key, wanted, answer, follower_id)


def _throttling(respond: _Respond, session_id: int, context: RequestContext) -> _Respond:
    """Respond without records, but with a throttle time, if they would exceed the client's quota."""

    def throttled(fetched: Fetched) -> list[Part]:
        if not context.finish_throttling():
            size = sum(partition.size for partition in fetched)
            now_ms = context.services.clock.monotonic_ms()
            context.throttle(context.services.quotas.record_fetch(context.user, context.client_id or "", size, now_ms))
        return _encode((), [], context, session_id) if context.throttle_ms else respond(fetched)

    return throttled


def _recording(
    respond: _Respond, wanted: Sequence[FetchPartition], follower: FetchingFollower, context: RequestContext
) -> _Respond:
    """Respond after what the follower gets of throttled partitions is counted (KIP-73)."""

    def recorded(fetched: Fetched) -> list[Part]:
        manager, now_ms = context.services.replica_manager, context.services.clock.monotonic_ms()
        partition_of = manager.usable_partition
        record_answer(manager.throttles.leader, wanted, fetched, follower.broker_id, partition_of, now_ms)
        return respond(fetched)

    return recorded


def _fetch(
    wanted: Sequence[FetchPartition],
    respond: _Respond,
    request: Any,
    context: RequestContext,
    session_id: int = NO_SESSION,
    due: DuePartitions | None = None,
) -> list[Part] | asyncio.Future[list[Part]]:
    services = context.services
    reader = context.reader
    follower: FetchingFollower | None = None
    bytes_max = min(request.max_bytes, services.metadata.config.fetch_max_bytes)
    if _replica_id(request) >= 0:
        follower = _follower(request)
        if _is_stale(follower, services.metadata.image):
            return _refuse(ErrorCode.stale_broker_epoch, context)
        # The sender of cold records runs only when nothing else does: a follower must keep up.
        reader = None
    elif request_rack := getattr(request, "rack_id", ""):
        wanted = _by_rack(wanted, request_rack, context)
    if follower is not None and services.replica_manager.throttles.leader.is_active:
        respond = _recording(respond, wanted, follower, context)
    elif follower is None and services.quotas.is_active and _replica_id(request) == CONSUMER:
        bytes_max = services.quotas.fetch_bytes_max(context.user, context.client_id or "", bytes_max)
        respond = _throttling(respond, session_id, context)
    fetched = services.replica_manager.fetches.fetch(
        wanted,
        bytes_max=bytes_max,
        bytes_min=min(request.min_bytes, bytes_max),
        wait_ms_max=messages.milliseconds(request.max_wait),
        follower=follower,
        due=due,
    )
    if isinstance(fetched, list):
        warm = warm_up(fetched, context.services.read_ahead, reader)
        return respond(fetched) if warm is None else _when_warm(warm, fetched, respond, context)
    return _when_there(fetched, respond, context, reader)


def _is_by_id(context: RequestContext) -> bool:
    return context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS


def _replica_id(request: Any) -> int:
    """Return the replica id of the request, a separate field from version 15 on."""
    replica_id: int = getattr(request, "replica_id", CONSUMER)
    state = getattr(request, "replica_state", None)
    return replica_id if state is None else state.replica_id


def _is_of_replica(request: Any) -> bool:
    """Whether the request needs the right of brokers, and not those of consumers."""
    return _replica_id(request) != CONSUMER


def _follower(request: Any) -> FetchingFollower:
    """Return the broker of a replica's request; its epoch is known from version 15 on (KIP-903)."""
    state = getattr(request, "replica_state", None)
    return FetchingFollower(_replica_id(request), UNKNOWN_BROKER_EPOCH if state is None else state.replica_epoch)


def _is_stale(follower: FetchingFollower, image: MetadataImage) -> bool:
    """Whether the request comes from a process of the broker before its present registration."""
    registration = image.registrations.get(follower.broker_id)
    return registration is not None and UNKNOWN_BROKER_EPOCH < follower.broker_epoch < registration.epoch


def _is_read_committed(request: Any) -> bool:
    return bool(request.isolation_level == READ_COMMITTED and _replica_id(request) == CONSUMER)


def _wanted(request: Any, context: RequestContext) -> list[tuple[PartitionKey, FetchPartition]]:
    by_id = _is_by_id(context)
    image = context.services.metadata.image
    is_read_committed = _is_read_committed(request)
    is_of_replica = _replica_id(request) >= 0
    is_from_any_replica = not is_of_replica and context.api_version >= FIRST_VERSION_WITH_RACK
    wanted: list[tuple[PartitionKey, FetchPartition]] = []
    for topic in request.topics:
        error_code = ErrorCode.none
        topic_id = None
        if by_id:
            topic_id = topic.topic_id
            known = image.topic_by_id(topic_id) if topic_id else None
            name = known.name if known else ""
            if known is None:
                error_code = ErrorCode.unknown_topic_id
        else:
            name = topic.topic
        key = topic_id if by_id else name
        for partition in topic.partitions:
            index = partition.partition
            wanted.append(
                (
                    (key, index),
                    FetchPartition(
                        TopicPartition(name, index),
                        topic_id,
                        partition.fetch_offset,
                        partition.partition_max_bytes,
                        getattr(partition, "current_leader_epoch", -1),
                        error_code,
                        is_read_committed,
                        is_of_replica,
                        is_from_any_replica=is_from_any_replica,
                    ),
                )
            )
            if is_of_replica:
                wanted[-1] = (key, index), _of_follower(wanted[-1][1], partition)
    return wanted


def _of_follower(wanted: FetchPartition, partition: Any) -> FetchPartition:
    return wanted._replace(
        last_fetched_epoch=getattr(partition, "last_fetched_epoch", -1),
        follower_start_offset=getattr(partition, "log_start_offset", -1),
    )


def _forgotten(request: Any) -> Iterator[PartitionKey]:
    for topic in request.forgotten_topics_data:
        name = topic.topic_id if hasattr(topic, "topic_id") else topic.topic
        for index in topic.partitions:
            yield name, index


def _resolved(wanted: FetchPartition, image: MetadataImage, is_read_committed: bool) -> FetchPartition:
    """Update a session's partition after a change of the metadata or of the isolation level."""
    topic_id = wanted.topic_id
    name, index = wanted.topic_partition
    if topic_id is None and name:
        return wanted._replace(is_read_committed=is_read_committed)
    known = image.topic_by_id(topic_id) if topic_id else None
    if known is not None:
        error_code = ErrorCode.none
        name = known.name
    elif not name:
        error_code = ErrorCode.unknown_topic_id
    else:
        # The topic existed: it was deleted, or another topic has its name now.
        made_anew = image.topic(name) is not None
        error_code = ErrorCode.inconsistent_topic_id if made_anew else ErrorCode.unknown_topic_or_partition
    return wanted._replace(
        topic_partition=TopicPartition(name, index),
        error_code=error_code,
        is_read_committed=is_read_committed,
    )


def _permitted(wanted: list[FetchPartition], request: Any, context: RequestContext) -> list[FetchPartition]:
    """Replace partitions that the client may not read by errors: consumers by topic, replicas all or none.

    Clients without zstd may not read topics with zstd as their codec.
    """
    if context.api_version < FIRST_VERSION_WITH_ZSTD:
        wanted = [_without_zstd(each, context) for each in wanted]
    if context.services.authorizer is None:
        return wanted
    is_replica = _is_of_replica(request)
    allowed: dict[str, bool] = {}
    checked = []
    for each in wanted:
        name = each.topic_partition.topic
        if name and name not in allowed:
            allowed[name] = (
                context.is_authorized(AclOperation.cluster_action, ResourceType.cluster)
                if is_replica
                else context.is_authorized(AclOperation.read, ResourceType.topic, name)
            )
        may_read = allowed.get(name, True)
        checked.append(each if may_read else each._replace(error_code=ErrorCode.topic_authorization_failed))
    return checked


def _without_zstd(wanted: FetchPartition, context: RequestContext) -> FetchPartition:
    partition = context.services.replica_manager.usable_partition(wanted.topic_partition)
    if partition is None or partition.log.config.compression_type != "zstd":
        return wanted
    return wanted._replace(error_code=ErrorCode.unsupported_compression_type)


def _by_rack(wanted: Sequence[FetchPartition], rack: str, context: RequestContext) -> Sequence[FetchPartition]:
    """Note for each partition the replica of the consumer's rack that should serve it (KIP-392).

    The session keeps the partitions without it: the next fetch decides anew.
    """
    services = context.services
    image = services.metadata.image
    if services.metadata.config.replica_selector_class is None or len(image.brokers) < 2:
        return wanted
    nearby = {broker.id for broker in image.brokers.values() if broker.rack == rack}
    if not nearby or services.metadata.static_config.node_id in nearby:
        return wanted
    chosen = []
    for each in wanted:
        partition = services.replica_manager.usable_partition(each.topic_partition)
        nearest = None if partition is None else partition.nearest_replica(nearby, each.offset)
        chosen.append(each if nearest is None else each._replace(preferred_read_replica=nearest))
    return chosen


def _when_warm(
    warm: Warming, fetched: Fetched, respond: _Respond, context: RequestContext
) -> asyncio.Future[list[Part]]:
    response: asyncio.Future[list[Part]] = warm.get_loop().create_future()
    warm.add_done_callback(lambda _: _answer(response, respond, _readable(fetched, warm, context)))
    return response


def _readable(fetched: Fetched, warm: Warming, context: RequestContext) -> Fetched:
    """Return the fetched partitions, with an error for those that the disk failed to read."""
    failed = [] if warm.cancelled() or warm.exception() else warm.result()
    if not failed:
        return fetched
    unreadable = set()
    for records, error in failed:
        context.services.replica_manager.cannot_read(records, error)
        unreadable.add(id(records))
    return [
        FetchedPartition(each.index, ErrorCode.kafka_storage_error) if id(each.records) in unreadable else each
        for each in fetched
    ]


def _when_there(
    fetched: asyncio.Future[Fetched], respond: _Respond, context: RequestContext, reader: Reader | None
) -> asyncio.Future[list[Part]]:
    """Return a future of the response; cancelling it, when the client disconnects, cancels the fetch."""
    response: asyncio.Future[list[Part]] = fetched.get_loop().create_future()

    def answer(done: asyncio.Future[Fetched]) -> None:
        if response.done() or done.cancelled():
            return
        try:
            found = done.result()
            warm = warm_up(found, context.services.read_ahead, reader)
        except Exception as error:  # noqa: BLE001 (the error belongs to the response)
            response.set_exception(error)
            return
        if warm is None:
            _answer(response, respond, found)
        else:
            warm.add_done_callback(lambda _: _answer(response, respond, _readable(found, warm, context)))

    fetched.add_done_callback(answer)
    response.add_done_callback(lambda done: fetched.cancel() if done.cancelled() else None)
    return response


def _answer(response: asyncio.Future[list[Part]], respond: _Respond, fetched: Fetched) -> None:
    if response.done():
        return
    try:
        response.set_result(respond(fetched))
    except Exception as error:  # noqa: BLE001 (the error belongs to the response)
        response.set_exception(error)


def _with_leader(partition: FetchedPartition, wanted: FetchPartition, image: MetadataImage) -> FetchedPartition:
    """Add the leader in the metadata, which a client with older metadata may ask next."""
    topic, index = wanted.topic_partition
    known = image.topic(topic)
    if known is None or index >= len(known.partitions):
        return partition
    state = known.partitions[index]
    return TaggedPartition(
        index,
        partition.error_code,
        log_start_offset=partition.log_start_offset,
        current_leader=(state.leader, state.leader_epoch),
    )


def _refuse(error_code: ErrorCode, context: RequestContext) -> list[Part]:
    """Reject a whole request; the client begins a new session."""
    return encode_fetch_response(context.api_version, context.correlation_id, (), error_code=error_code)


def _encode(
    wanted: Sequence[FetchPartition], fetched: Fetched, context: RequestContext, session_id: int = NO_SESSION
) -> list[Part]:
    topics: list[tuple[str, Any, list[Any]]] = []
    last_topic: tuple[str, Any] | None = None
    traffic: TopicTraffic | None = None
    for each, partition in zip(wanted, fetched, strict=True):
        topic = (each.topic_partition.topic, each.topic_id)
        if topic != last_topic:
            topics.append((*topic, []))
            last_topic = topic
            traffic = context.services.metrics.topics.get(topic[0])
        if partition.error_code:
            context.note_error(partition.error_code)
            if partition.error_code in _ERRORS_WITH_LEADER and context.api_version >= FIRST_VERSION_WITH_LEADER:
                partition = _with_leader(partition, each, context.services.metadata.image)
            if traffic is not None:
                traffic.failed_fetches += 1
        elif partition.size and not each.is_of_replica:
            if traffic is None:
                traffic = context.services.metrics.traffic(topic[0])
            traffic.bytes_out += partition.size
        topics[-1][2].append(partition)
    return encode_fetch_response(
        context.api_version,
        context.correlation_id,
        topics,
        session_id=session_id,
        throttle_ms=context.throttle_ms,
        cannot_read=context.services.replica_manager.cannot_read,
    )
