"""Warms look-ups in logs that would wait for a device, on another thread, so that only their client waits.

The data read is in the page cache afterwards, and the log takes over the loaded indexes: the same look-up then runs on
the event loop from memory.
"""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from headwater.logtier.log.log import Log
from headwater.logtier.log.reading import LogReader, LogView
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.runtime.read_ahead import ReadAhead

Result = TypeVar("Result")


class ColdRead(NamedTuple):
    """A read of a log that would wait for the device; the arguments are those of `LogReader.read`."""

    log: Log
    offset: int
    bytes_max: int
    upper_bound_offset: int
    min_one_batch: bool
    is_read_committed: bool


async def warm(reads: Sequence[ColdRead], read_ahead: ReadAhead) -> None:
    """Load all data of the reads into memory on another thread; errors are left to the reads themselves."""
    views = [LogView(read.log, read.offset) for read in reads]
    await read_ahead.run(partial(_read_all, reads, views))
    for view in views:
        view.hand_back()


async def look_up(log: Log, find: Callable[[LogReader, bool], Result], read_ahead: ReadAhead | None) -> Result:
    """Look up something in a log: at once if the data is in memory, otherwise on another thread.

    Args:
        find: Performs the look-up; with False as second argument it raises BlockingIOError instead of waiting.
        read_ahead: Runs look-ups on other threads; without it the look-up waits on this thread.
    """
    if read_ahead is None:
        return find(log, True)
    with contextlib.suppress(BlockingIOError):
        return find(log, False)
    view = LogView(log, log.log_start_offset)
    is_given_up = False
    try:
        return await read_ahead.run(partial(find, view, True))
    except asyncio.CancelledError:
        # The thread continues after the cancellation: its indexes are incomplete, and are discarded with the view.
        is_given_up = True
        raise
    except FileNotFoundError:
        # Retention or compaction removed a segment meanwhile.
        return find(log, True)
    finally:
        if not is_given_up:
            view.hand_back()


def _read_all(reads: Sequence[ColdRead], views: Sequence[LogView]) -> None:
    for read, view in zip(reads, views, strict=True):
        with contextlib.suppress(OSError, ValueError, KafkaError, struct.error):
            found = view.read(
                read.offset,
                read.bytes_max,
                upper_bound_offset=read.upper_bound_offset,
                min_one_batch=read.min_one_batch,
            )
            if read.is_read_committed and found.size:
                view.aborted_transactions(read.offset, min(read.upper_bound_offset, view.end_of_slice(found)))
