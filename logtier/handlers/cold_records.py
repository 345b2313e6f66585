"""What becomes of fetched records that are not in the page cache, so that nobody but their reader waits for them."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from logtier.protocol.fetch_response import FetchedPartition, RecordSlice
from logtier.runtime.read_ahead import ReadAhead

#: So many fetches after a cold one are taken for cold ones, too.
COLD_FETCHES: Final = 250
#: But only as to slices from here on: a reader that has caught up gets small ones.
COLD_BYTES_MIN: Final = 256 << 10

#: Slices that are being read ahead; then those that could not be.
Warming: TypeAlias = asyncio.Future[list[tuple[RecordSlice, OSError]]]


class Reader(Protocol):
    """The connection that fetches.

    Attributes:
        cold_fetches: Fetches still to come that are taken for cold ones without a look at the page cache.
    """

    cold_fetches: int

    def sends_cold(self) -> bool:
        """Whether cold records would be sent, at present, without the event loop waiting for the device."""


def warm_up(fetched: Sequence[FetchedPartition], read_ahead: ReadAhead | None, reader: Reader | None) -> Warming | None:
    """Have what is cold read ahead; None where nothing is, or where it is marked as cold and sent without waiting.

    Who reads old data is known for it for some fetches: to look costs as much as to send, and finds what was read ahead
    for this reader, which tells nothing of what follows.

    Args:
        read_ahead: Looks and reads; without it everything counts as being there.
        reader: None for one whose records are sent by the event loop.
    """
    if read_ahead is None:
        return None
    is_known = reader is not None and reader.cold_fetches > 0 and reader.sends_cold()
    cold: list[RecordSlice] = []
    marked: list[FetchedPartition] = []
    for partition in fetched:
        records = partition.records
        if (
            records is not None
            and records.size
            and ((is_known and records.size >= COLD_BYTES_MIN) or read_ahead.is_cold(records))
        ):
            cold.append(records)
            marked.append(partition)
    if reader is not None and is_known:
        reader.cold_fetches -= 1
    if not cold:
        return None
    if reader is None or not (is_known or reader.sends_cold()):
        return read_ahead.warm(cold)
    if not is_known:
        reader.cold_fetches = COLD_FETCHES
    for partition in marked:
        partition.is_cold = True
    return None
