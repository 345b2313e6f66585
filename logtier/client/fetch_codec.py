"""Hand-written codec of Fetch, versions 4 to 12: records are views of the received response."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.client.wire import Cursor, array_length, string

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "CompletedFetch", "FetchPosition", "fetch_request"]

# The isolation levels of Fetch and ListOffsets (KIP-98).
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

FLEXIBLE_FROM = 12
_THROTTLE = struct.Struct(">i")
_SESSION = struct.Struct(">hi")
_PARTITION = struct.Struct(">ihqq")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_ABORTED = struct.Struct(">qq")
_TAG_CURRENT_LEADER = 1


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Partition, offset and size of one fetch; `leader_epoch` is the leader's, -1 if it is not to be checked."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class CompletedFetch:
    """One partition of a response; `records` is a view of the response and may end with a truncated batch.

    Attributes:
        aborted: The aborted transactions among the records, as (producer id, first offset). The broker lists them for
            read_committed readers only, and sends their records, too.
        preferred_read_replica: The broker to read from instead of this one, -1 for none (KIP-392).
        current_leader: Id and epoch of the leader, which a broker may add to an error (KIP-951); None if not stated.
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    aborted: tuple[tuple[int, int], ...] = ()
    preferred_read_replica: int = -1
    current_leader: tuple[int, int] | None = None


def fetch_request(
    version: int,
    partitions: Sequence[FetchPosition],
    *,
    wait_ms: int,
    bytes_min: int,
    bytes_max: int,
    isolation_level: int = READ_UNCOMMITTED,
    rack: str = "",
) -> Request[list[CompletedFetch]]:
    """Encodes a Fetch without a session (KIP-227: epoch -1)."""
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    out = [struct.pack(">iiiib", -1, wait_ms, bytes_min, bytes_max, isolation_level)]
    if version >= 7:
        out.append(struct.pack(">ii", 0, -1))
    by_topic: dict[str, list[FetchPosition]] = {}
    for wanted in partitions:
        by_topic.setdefault(wanted.topic, []).append(wanted)
    out.append(array_length(len(by_topic), flexible=flexible))
    for topic, wanted_partitions in by_topic.items():
        out.append(string(topic, flexible=flexible))
        out.append(array_length(len(wanted_partitions), flexible=flexible))
        for wanted in wanted_partitions:
            out.append(_I32.pack(wanted.partition))
            if version >= 9:
                out.append(_I32.pack(wanted.leader_epoch))
            out.append(_I64.pack(wanted.offset))
            if version >= 12:
                out.append(_I32.pack(-1))  # last fetched epoch: followers only
            if version >= 5:
                out.append(_I64.pack(-1))  # log start offset: followers only
            out.append(_I32.pack(wanted.bytes_max))
            out.append(tags)
        out.append(tags)
    if version >= 7:
        out.append(array_length(0, flexible=flexible))  # forgotten topics
    if version >= 11:
        out.append(string(rack, flexible=flexible))
    out.append(tags)
    return Request(
        ApiKey.FETCH, version, flexible, b"".join(out), lambda body: _decode(body, version, flexible), flexible
    )


def _decode(body: memoryview, version: int, flexible: bool) -> list[CompletedFetch]:
    cursor = Cursor(body, flexible=flexible)
    cursor.unpack(_THROTTLE)
    error = 0
    if version >= 7:
        error, _session = cursor.unpack(_SESSION)
    fetched: list[CompletedFetch] = []
    for _ in range(cursor.array(element_bytes_min=3)):
        topic = cursor.string() or ""
        for _ in range(cursor.array(element_bytes_min=_PARTITION.size)):
            partition, code, high_watermark, last_stable = cursor.unpack(_PARTITION)
            log_start = cursor.unpack(_I64)[0] if version >= 5 else -1
            aborted = []
            for _ in range(cursor.array(element_bytes_min=_ABORTED.size)):
                producer_id, first_offset = cursor.unpack(_ABORTED)
                aborted.append((producer_id, first_offset))
                cursor.tags()
            preferred = cursor.unpack(_I32)[0] if version >= 11 else -1
            records = cursor.bytes_view()
            leader = cursor.current_leader(_TAG_CURRENT_LEADER)
            fetched.append(
                CompletedFetch(
                    topic,
                    partition,
                    code or error,
                    high_watermark,
                    last_stable,
                    log_start,
                    records,
                    tuple(aborted),
                    preferred,
                    leader,
                )
            )
        cursor.tags()
    cursor.tags()
    if error and not fetched:
        raise ValueError(f"the whole fetch failed with error code {error}")
    return fetched
