"""Handles fetched records that are not in the page cache, so that only their reader waits for them."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from headwater.logtier.protocol.fetch_response import FetchedPartition, RecordSlice
from headwater.logtier.runtime.read_ahead import ReadAhead

#: Number of fetches after a cold one that count as cold without a check.
COLD_FETCHES: Final = 50
#: Smallest slice that counts as cold without a check: a reader that has caught up gets small slices.
COLD_BYTES_MIN: Final = 256 << 10

#: Slices being read ahead; its result lists those that could not be read, with the error.
Warming: TypeAlias = asyncio.Future[list[tuple[RecordSlice, OSError]]]


class Reader(Protocol):
    """The connection that fetches.

    Attributes:
        cold_fetches: Number of further fetches that count as cold without a check of the page cache.
    """

    cold_fetches: int

    def sends_cold(self) -> bool:
        """Whether cold records can be sent at present without the event loop waiting for the device."""


def warm_up(fetched: Sequence[FetchedPartition], read_ahead: ReadAhead | None, reader: Reader | None) -> Warming | None:
    """Read cold records ahead; None if there are none, or if they are marked as cold and sent without waiting.

    A reader counts as cold while data far ahead of it is uncached. The check looks far ahead, since the kernel reads
    adjacent data ahead for sequential readers, and runs once in COLD_FETCHES fetches, since it costs as much as
    sending. A single cold slice does not suffice: a few pages of frequently read data may be evicted.

    Args:
        read_ahead: Checks and reads; without it all records count as cached.
        reader: None if the event loop sends the records.
    """
    if read_ahead is None:
        return None
    is_known = reader is not None and reader.cold_fetches > 0 and reader.sends_cold()
    cold = [
        (partition, records)
        for partition in fetched
        if (records := partition.records) is not None
        and records.size
        and ((is_known and records.size >= COLD_BYTES_MIN) or read_ahead.is_cold(records))
    ]
    slices = [records for _, records in cold]
    if reader is None:
        return read_ahead.warm(slices) if cold else None
    if is_known:
        reader.cold_fetches -= 1
    if cold and (not is_known or not reader.cold_fetches):
        reader.cold_fetches = COLD_FETCHES if any(map(read_ahead.is_cold_far_ahead, slices)) else 0
    if not cold:
        return None
    if not is_known and not reader.sends_cold():
        return read_ahead.warm(slices)
    for partition, _ in cold:
        partition.is_cold = True
    return None
