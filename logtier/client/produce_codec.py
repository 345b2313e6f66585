"""Hand-written codec of Produce, versions 3 to 12: batches are written unchanged."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headwater.logtier.client.connection import Request
from headwater.logtier.client.messages import ApiKey
from headwater.logtier.client.wire import Cursor, array_length, string
from headwater.logtier.protocol.wire import compact_length

__all__ = ["ProducedPartition", "produce_request"]

FLEXIBLE_FROM = 9
ACKS_ALL = -1
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PARTITION = struct.Struct(">ihqq")
_TAG_CURRENT_LEADER = 0


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """A broker's response for one partition's batch."""

    topic: str
    partition: int
    error_code: int
    error_message: str | None
    base_offset: int
    # Id and epoch of the leader, which a broker may add to an error (KIP-951).
    current_leader: tuple[int, int] | None = None


def produce_request(
    version: int,
    batches: Mapping[str, Sequence[tuple[int, bytes | bytearray]]],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> Request[list[ProducedPartition]]:
    """Encodes a Produce with acks=all: (partition, record batch) pairs by topic, at most one batch a partition."""
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    out: list[bytes | bytearray] = [
        string(transactional_id, flexible=flexible),
        struct.pack(">hi", ACKS_ALL, timeout_ms),
        array_length(len(batches), flexible=flexible),
    ]
    for topic, partitions in batches.items():
        out.append(string(topic, flexible=flexible))
        out.append(array_length(len(partitions), flexible=flexible))
        for partition, batch in partitions:
            out.append(_I32.pack(partition))
            out.append(compact_length(len(batch)) if flexible else _I32.pack(len(batch)))
            out.append(batch)
            out.append(tags)
        out.append(tags)
    out.append(tags)
    return Request(
        ApiKey.PRODUCE, version, flexible, b"".join(out), lambda body: _decode(body, version, flexible), flexible
    )


def _decode(body: memoryview, version: int, flexible: bool) -> list[ProducedPartition]:
    cursor = Cursor(body, flexible=flexible)
    produced: list[ProducedPartition] = []
    for _ in range(cursor.array(element_bytes_min=3)):
        topic = cursor.string() or ""
        for _ in range(cursor.array(element_bytes_min=_PARTITION.size)):
            partition, code, base_offset, _append_time = cursor.unpack(_PARTITION)
            if version >= 5:
                cursor.unpack(_I64)  # log start offset
            message: str | None = None
            if version >= 8:
                for _ in range(cursor.array(element_bytes_min=5)):
                    cursor.unpack(_I32)
                    record_message = cursor.string()
                    message = message or record_message
                    cursor.tags()
                message = cursor.string() or message
            leader = cursor.current_leader(_TAG_CURRENT_LEADER)
            produced.append(ProducedPartition(topic, partition, code, message, base_offset, leader))
        cursor.tags()
    cursor.unpack(_I32)  # throttle time
    cursor.tags()
    return produced
