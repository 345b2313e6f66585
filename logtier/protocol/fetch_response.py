"""Encodes the Fetch response, whose records are slices of files sent without being read.

Kafka's FetchResponse.json, versions 4-18: flexible from 12, topic ids instead of names from 13.
"""

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.wire import compact_length, compact_string, string
from headwater.logtier.runtime.network import FileSlice, Part

logger = logging.getLogger(__name__)

FIRST_FLEXIBLE_VERSION = 12
FIRST_VERSION_WITH_TOPIC_IDS = 13
#: Smaller records are read and joined with the surrounding fields, which saves two system calls.
COPIED_RECORDS_BYTES_MAX = 32 << 10

_FRAME = struct.Struct(">ii")
_THROTTLE = struct.Struct(">i")
_ERROR_AND_SESSION = struct.Struct(">hi")
_COUNT = struct.Struct(">i")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED_TRANSACTION = struct.Struct(">qq")
_PREFERRED_REPLICA = struct.Struct(">i")
#: Tagged fields: tag, size, and their own fields, the last of which are no tagged fields.
_DIVERGING_EPOCH = struct.Struct(">BBiqB")
_CURRENT_LEADER = struct.Struct(">BBiiB")
_NULL_ARRAY = b"\xff\xff\xff\xff"
_COMPACT_NULL_ARRAY = b"\x00"
_NO_TAGS = b"\x00"
_NO_REPLICA = _PREFERRED_REPLICA.pack(-1)


class RecordFile(Protocol):
    """An open segment file."""

    @property
    def path(self) -> str:
        """Path of the file, for messages."""

    @property
    def size(self) -> int:
        """Size of the file, in bytes."""

    def fileno(self) -> int:
        """Return the descriptor from which the slice is sent."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes."""


class RecordSlice(Protocol):
    """Record batches in a file; the first one is whole."""

    @property
    def file(self) -> RecordFile:
        """The segment file, kept open by the slice."""

    @property
    def position(self) -> int:
        """Position of the slice in the file, in bytes."""

    @property
    def size(self) -> int:
        """Size of the slice, in bytes; 0 for no records."""


#: Handles a disk error while records are read.
CannotRead = Callable[[RecordSlice, OSError], None]


def _log_unreadable(records: RecordSlice, error: OSError) -> None:
    logger.error("%s cannot be read at byte %d: %s", records.file.path, records.position, error)


@dataclass(slots=True)  # not frozen, which doubles the cost: every fetch creates one per partition
class FetchedPartition:
    """One partition of a response.

    Attributes:
        high_watermark: The first offset that is not fully replicated.
        last_stable_offset: The first offset of an ongoing transaction, or the high watermark.
        records: The records read; None with an error or without records.
        aborted_transactions: For read_committed, the aborted transactions with records in the slice: (producer id,
            first offset, ...).
        is_cold: Whether the records are known not to be in the page cache.
    """

    index: int
    error_code: ErrorCode
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: RecordSlice | None = None
    aborted_transactions: Sequence[Sequence[int]] | None = None
    is_cold: bool = False

    @property
    def size(self) -> int:
        """Bytes of records."""
        return 0 if self.records is None else self.records.size


@dataclass(slots=True)
class TaggedPartition(FetchedPartition):
    """A partition with tagged fields or another replica, which few responses have.

    Attributes:
        diverging_epoch: Epoch and end offset after which a follower's log differs from the leader's (KIP-595).
        current_leader: Id and epoch of the leader, for a client that asked another broker (KIP-951).
        preferred_read_replica: The broker that a consumer should ask instead, -1 for none (KIP-392).
    """

    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1

    def encoded_tags(self) -> bytes:
        """Encode the tagged fields in the order of their tags."""
        fields = []
        if self.diverging_epoch is not None:
            fields.append(_DIVERGING_EPOCH.pack(0, 13, *self.diverging_epoch, 0))
        if self.current_leader is not None:
            fields.append(_CURRENT_LEADER.pack(1, 9, *self.current_leader, 0))
        return bytes((len(fields),)) + b"".join(fields)


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str, UUID | None, Sequence[FetchedPartition]]],
    error_code: ErrorCode = ErrorCode.none,
    session_id: int = 0,
    throttle_ms: int = 0,
    cannot_read: CannotRead = _log_unreadable,
) -> list[Part]:
    """Return the parts of a Fetch response, including length and header.

    Args:
        topics: Name, id and partitions of each topic.
        session_id: The incremental fetch session (KIP-227), 0 for none.
        throttle_ms: Throttle time of the client's quota, in ms.
        cannot_read: Called for records that the disk fails to read; their partition gets an error.
    """
    flexible = version >= FIRST_FLEXIBLE_VERSION
    parts: list[Part] = [b""]
    sent_size = 0
    head = bytearray(_NO_TAGS if flexible else b"")
    head += _THROTTLE.pack(throttle_ms)
    if version >= 7:
        head += _ERROR_AND_SESSION.pack(error_code, session_id)
    head += compact_length(len(topics)) if flexible else _COUNT.pack(len(topics))
    for name, topic_id, partitions in topics:
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            head += topic_id.bytes if topic_id else bytes(16)
        else:
            head += compact_string(name) if flexible else string(name)
        head += compact_length(len(partitions)) if flexible else _COUNT.pack(len(partitions))
        for found in partitions:
            fetched, copied = _copied(found, cannot_read)
            head += _partition_head(version, flexible, fetched)
            records = fetched.records
            if copied:
                head += copied
            elif records is not None and records.size:
                parts.append(head)
                parts.append(FileSlice(records.file.fileno(), records.position, records.size, records, found.is_cold))
                sent_size += len(head) + records.size
                head = bytearray()
            if flexible:
                head += fetched.encoded_tags() if isinstance(fetched, TaggedPartition) else _NO_TAGS
        if flexible:
            head += _NO_TAGS
    if flexible:
        head += _NO_TAGS
    if head:
        parts.append(head)
        sent_size += len(head)
    parts[0] = _FRAME.pack(sent_size + 4, correlation_id)
    return parts


def _copied(fetched: FetchedPartition, cannot_read: CannotRead) -> tuple[FetchedPartition, bytes]:
    """Read small records; a disk error becomes the error of this partition alone."""
    records = fetched.records
    if records is None or fetched.is_cold or not 0 < records.size <= COPIED_RECORDS_BYTES_MAX:
        return fetched, b""
    try:
        data = records.file.pread(records.size, records.position)
        if len(data) != records.size:
            raise OSError(f"{len(data)} of {records.size} bytes are there")
    except OSError as error:
        cannot_read(records, error)
        return FetchedPartition(fetched.index, ErrorCode.kafka_storage_error), b""
    return fetched, data


def _partition_head(version: int, flexible: bool, fetched: FetchedPartition) -> bytes:
    """Encode a partition up to the length of its records."""
    if version >= 5:
        head = _PARTITION_V5.pack(
            fetched.index,
            fetched.error_code,
            fetched.high_watermark,
            fetched.last_stable_offset,
            fetched.log_start_offset,
        )
    else:
        head = _PARTITION_V4.pack(fetched.index, fetched.error_code, fetched.high_watermark, fetched.last_stable_offset)
    aborted = fetched.aborted_transactions
    if aborted is None:
        head += _COMPACT_NULL_ARRAY if flexible else _NULL_ARRAY
    else:
        head += compact_length(len(aborted)) if flexible else _COUNT.pack(len(aborted))
        for producer_id, first_offset, *_ in aborted:
            head += _ABORTED_TRANSACTION.pack(producer_id, first_offset) + (_NO_TAGS if flexible else b"")
    if version >= 11:
        if isinstance(fetched, TaggedPartition):
            head += _PREFERRED_REPLICA.pack(fetched.preferred_read_replica)
        else:
            head += _NO_REPLICA
    return head + (compact_length(fetched.size) if flexible else _COUNT.pack(fetched.size))
