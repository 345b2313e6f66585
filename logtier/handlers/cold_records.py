"""What becomes of fetched records that are not in the page cache, so that nobody but their reader waits for them."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

from headwater.logtier.protocol.fetch_response import FetchedPartition, RecordSlice
from headwater.logtier.runtime.read_ahead import ReadAhead

#: So many fetches after a cold one are taken for cold ones, too, before it is looked whether that still holds.
COLD_FETCHES: Final = 50
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

    Who reads old data is known for it as long as what comes far behind is cold, too. What comes next tells nothing: the
    kernel reads ahead for whoever reads a file from its beginning to its end, and to look costs as much as to send.
    Nor does a single cold slice: a few pages may be gone of what is read all the time.

    Args:
        read_ahead: Looks and reads; without it everything counts as being there.
        reader: None for one whose records are sent by the event loop.
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
