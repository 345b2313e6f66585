"""The Fetch response, written by hand: its records are slices of files that are sent without being read.

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
#: Up to here records are read and joined with what surrounds them: one send costs less than the two system calls more.
COPIED_RECORDS_BYTES_MAX = 32 << 10

_FRAME = struct.Struct(">ii")
_THROTTLE = struct.Struct(">i")
_ERROR_AND_SESSION = struct.Struct(">hi")
_COUNT = struct.Struct(">i")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED_TRANSACTION = struct.Struct(">qq")
_PREFERRED_REPLICA = struct.Struct(">i")
_NULL_ARRAY = b"\xff\xff\xff\xff"
_COMPACT_NULL_ARRAY = b"\x00"
_NO_TAGS = b"\x00"
_NO_REPLICA = _PREFERRED_REPLICA.pack(-1)


class RecordFile(Protocol):
    """An open segment."""

    @property
    def path(self) -> str:
        """Its name, for messages."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def fileno(self) -> int:
        """The descriptor that the slice is sent from."""

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes."""


class RecordSlice(Protocol):
    """Whole record batches as they lie in a file."""

    @property
    def file(self) -> RecordFile:
        """The segment; kept open by the slice."""

    @property
    def position(self) -> int:
        """Where the slice begins, in bytes."""

    @property
    def size(self) -> int:
        """Its bytes; 0 for no records."""


#: What is to be done about records that the disk does not give.
CannotRead = Callable[[RecordSlice, OSError], None]


def _log_unreadable(records: RecordSlice, error: OSError) -> None:
    logger.error("%s cannot be read at byte %d: %s", records.file.path, records.position, error)


@dataclass(slots=True)  # not frozen: one is made of every partition of every fetch, and that doubles what it costs
class FetchedPartition:
    """One partition of a response.

    Attributes:
        high_watermark: The first offset that is not replicated to all yet.
        last_stable_offset: The first offset of an open transaction, or the high watermark.
        records: What was found, None with an error or when there is nothing.
        aborted_transactions: For read_committed, the transactions among the records that were aborted: (producer id,
            first offset) and what else is known of each.
        is_cold: Whether the records are not in the page cache, as far as is known.
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


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str, UUID | None, Sequence[FetchedPartition]]],
    error_code: ErrorCode = ErrorCode.none,
    session_id: int = 0,
    throttle_ms: int = 0,
    cannot_read: CannotRead = _log_unreadable,
) -> list[Part]:
    """Make the parts of a Fetch response, length and header included.

    Args:
        topics: Name, id and partitions of each topic.
        session_id: The incremental fetch session (KIP-227), 0 for none.
        throttle_ms: How long the client's connection is not read, since it exceeded a quota.
        cannot_read: Told of records that the disk does not give; their partition gets an error.
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
                head += _NO_TAGS
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
    """Read records that are few; a disk that does not give them makes an error of this partition alone."""
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
    """Everything of a partition but its records, up to their length."""
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
        head += _NO_REPLICA
    return head + (compact_length(fetched.size) if flexible else _COUNT.pack(fetched.size))
