"""Fetch: read record batches, waiting for them if need be.

Versions 4-18, by topic id from 13. Incremental fetch sessions (KIP-227) are not kept: the answer to a full fetch says
session 0, which every client takes as "no sessions here".
"""

import asyncio
from typing import Any

from logtier.handlers.context import RequestContext
from logtier.protocol import messages
from logtier.protocol.errors import ErrorCode
from logtier.protocol.fetch_response import FIRST_VERSION_WITH_TOPIC_IDS, encode_fetch_response
from logtier.protocol.topic_partition import TopicPartition
from logtier.replication.delayed_fetch import Fetched, FetchPartition
from logtier.runtime.network import Part

API_KEY = 1
VERSIONS = (4, 18)

#: A session epoch that asks for no session (KIP-227).
FINAL_EPOCH = -1
INITIAL_EPOCH = 0


def handle(request: Any, context: RequestContext) -> list[Part] | asyncio.Future[list[Part]]:
    """Answer at once if there is enough, else when there is or when the time is over."""
    version = context.api_version
    session_id = getattr(request, "session_id", 0)
    if session_id or getattr(request, "session_epoch", FINAL_EPOCH) not in (INITIAL_EPOCH, FINAL_EPOCH):
        return encode_fetch_response(
            version, context.correlation_id, (), error_code=ErrorCode.fetch_session_id_not_found
        )
    wanted = _wanted(request, context)
    fetched = context.services.replica_manager.fetch(
        wanted,
        bytes_max=min(request.max_bytes, context.services.config.fetch_max_bytes),
        bytes_min=request.min_bytes,
        wait_ms_max=messages.milliseconds(request.max_wait),
    )
    if isinstance(fetched, list):
        return _encode(wanted, fetched, context)
    return _when_there(fetched, wanted, context)


def _wanted(request: Any, context: RequestContext) -> list[FetchPartition]:
    by_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    image = context.services.metadata.image
    wanted = []
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
        for partition in topic.partitions:
            wanted.append(  # noqa: PERF401
                FetchPartition(
                    TopicPartition(name, partition.partition),
                    topic_id,
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    getattr(partition, "current_leader_epoch", -1),
                    error_code,
                )
            )
    return wanted


def _when_there(
    fetched: asyncio.Future[Fetched], wanted: list[FetchPartition], context: RequestContext
) -> asyncio.Future[list[Part]]:
    """A future of the response; cancelling it, because the client is gone, gives the fetch up."""
    response: asyncio.Future[list[Part]] = fetched.get_loop().create_future()

    def answer(done: asyncio.Future[Fetched]) -> None:
        if response.done() or done.cancelled():
            return
        try:
            response.set_result(_encode(wanted, done.result(), context))
        except Exception as error:  # noqa: BLE001 (whoever awaits the response has to learn of it)
            response.set_exception(error)

    fetched.add_done_callback(answer)
    response.add_done_callback(lambda done: fetched.cancel() if done.cancelled() else None)
    return response


def _encode(wanted: list[FetchPartition], fetched: Fetched, context: RequestContext) -> list[Part]:
    topics: list[tuple[str, Any, list[Any]]] = []
    last_topic: tuple[str, Any] | None = None
    for each, partition in zip(wanted, fetched, strict=True):
        topic = (each.topic_partition.topic, each.topic_id)
        if topic != last_topic:
            topics.append((*topic, []))
            last_topic = topic
        topics[-1][2].append(partition)
    return encode_fetch_response(context.api_version, context.correlation_id, topics)
