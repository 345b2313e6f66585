"""Hand-written codec of a follower's Fetch, version 18: records are views of the received response.

The follower identifies itself by id and broker epoch (KIP-903), names topics by id (KIP-516), and states the epoch of
its last record, so that the leader detects divergence (KIP-595). kio's writer takes ten times as long, and its reader
copies the records.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.client.wire import Cursor
from headwater.logtier.protocol.wire import compact_length

__all__ = ["ReplicaFetchPartition", "ReplicaFetchResponse", "ReplicaFetchedPartition", "replica_fetch_request"]

VERSION: Final = 18

_TAG_DIVERGING_EPOCH: Final = 0
_TAG_CURRENT_LEADER: Final = 1
#: Topics whose ids are held as objects: a response repeats those of the previous one.
_TOPIC_IDS_MAX: Final = 4096

_HEAD = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqiB")
#: The number of tagged fields, and the field ReplicaState: tag, size, replica id, replica epoch, no tags of its own.
_REPLICA_STATE = struct.Struct(">BBBiqB")
_EMPTY_STRING: Final = b"\x01"
_I32 = struct.Struct(">i")
_RESPONSE_HEAD = struct.Struct(">ihi")
#: Up to the log start offset, and the first byte of the number of aborted transactions: 0 or 1 for none.
_FETCHED = struct.Struct(">ihqqqB")
_ABORTED_BYTES_MIN: Final = 17
_EPOCH_END = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")


class ReplicaFetchPartition(NamedTuple):
    """A follower's position in one partition.

    Attributes:
        leader_epoch: The epoch in which the follower follows; the leader rejects another one (KIP-320).
        last_fetched_epoch: Epoch of the follower's last record, -1 for an empty log.
        log_start_offset: The follower's log start offset.
    """

    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class ReplicaFetchedPartition(NamedTuple):
    """One partition of a response.

    Attributes:
        records: A view of the response; it may end with a truncated batch.
        diverging_epoch: Epoch and end offset after which the follower's log differs from the leader's; None without
            divergence.
        current_leader: Id and epoch of the leader, with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH; None if not
            stated.
    """

    topic_id: UUID
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None
    current_leader: tuple[int, int] | None


class ReplicaFetchResponse(NamedTuple):
    """A response: the error of the whole request, the session (KIP-227) and the partitions in it."""

    error_code: int
    session_id: int
    partitions: list[ReplicaFetchedPartition]


def replica_fetch_request(
    replica_id: int,
    broker_epoch: int,
    partitions: Mapping[UUID, Sequence[ReplicaFetchPartition]],
    *,
    wait_ms: int,
    bytes_min: int,
    bytes_max: int,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Mapping[UUID, Sequence[int]] | None = None,
) -> Request[ReplicaFetchResponse]:
    """Encode a follower's Fetch.

    Args:
        partitions: Positions by topic id; within a session only the changed ones.
        session_epoch: 0 requests a session, -1 ends it or requests none.
        forgotten: Partitions to remove from the session, by topic id.
    """
    out = [_HEAD.pack(wait_ms, bytes_min, bytes_max, 0, session_id, session_epoch), compact_length(len(partitions))]
    for topic_id, positions in partitions.items():
        out.append(topic_id.bytes)
        out.append(compact_length(len(positions)))
        out.extend([_PARTITION.pack(*position, 0) for position in positions])
        out.append(b"\0")
    forgotten = forgotten or {}
    out.append(compact_length(len(forgotten)))
    for topic_id, indexes in forgotten.items():
        out.append(topic_id.bytes)
        out.append(compact_length(len(indexes)))
        out.append(struct.pack(f">{len(indexes)}iB", *indexes, 0))
    out.append(_EMPTY_STRING)  # rack: of consumers only
    out.append(_REPLICA_STATE.pack(1, 1, 13, replica_id, broker_epoch, 0))
    return Request(ApiKey.FETCH, VERSION, True, b"".join(out), _decode, True)


def _decode(body: memoryview) -> ReplicaFetchResponse:
    cursor = Cursor(body, flexible=True)
    _throttle_ms, error_code, session_id = cursor.unpack(_RESPONSE_HEAD)
    fetched: list[ReplicaFetchedPartition] = []
    for _ in range(cursor.array(element_bytes_min=18)):
        topic_id = _uuid(cursor.raw(16))
        count = cursor.array(element_bytes_min=_FETCHED.size)
        fetched.extend([_fetched(topic_id, cursor) for _ in range(count)])
        cursor.tags()
    cursor.tags()
    return ReplicaFetchResponse(error_code, session_id, fetched)


def _fetched(topic_id: UUID, cursor: Cursor) -> ReplicaFetchedPartition:
    partition, error_code, high_watermark, last_stable, log_start, aborted = cursor.unpack(_FETCHED)
    if aborted > 1:  # aborted transactions, which only consumers get
        cursor.position -= 1
        for _ in range(cursor.array(element_bytes_min=_ABORTED_BYTES_MIN)):
            cursor.raw(16)
            cursor.tags()
    cursor.unpack(_I32)  # preferred read replica: of consumers only
    records = cursor.bytes_view()
    diverging = leader = None
    if cursor.data[cursor.position] == 0:  # nearly always
        cursor.position += 1
    else:
        tagged = cursor.tagged()
        if (field := tagged.get(_TAG_DIVERGING_EPOCH)) is not None:
            diverging = _pair(_EPOCH_END, field)
        if (field := tagged.get(_TAG_CURRENT_LEADER)) is not None:
            leader = _pair(_LEADER, field)
    return ReplicaFetchedPartition(
        topic_id, partition, error_code, high_watermark, last_stable, log_start, records, diverging, leader
    )


def _pair(fields: struct.Struct, data: memoryview) -> tuple[int, int] | None:
    """Return a tagged pair; None for its default, an epoch or a leader of -1."""
    first, second = fields.unpack_from(data)
    return None if first == second == -1 else (first, second)


@lru_cache(maxsize=_TOPIC_IDS_MAX)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)
