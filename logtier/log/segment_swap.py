"""Replaces segments by cleaned segments; a crash between any two steps leaves either the old or the new segments.

The steps, and how a start handles a crash after each:

1. the cleaner writes `<base>.log.cleaned` and its indexes, and syncs them: a start removes them;
2. the indexes, then the log, get the suffix `.swap`: a start removes them without `.log.swap`, and finishes the swap
  with it;
3. the files of the old segments get the suffix `.deleted`;
4. the new files lose their suffix, the log last.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from headwater.logtier.log.log import Log
from headwater.logtier.log.segments.index_files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
from headwater.logtier.log.segments.segment import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    LogSegment,
    segment_name,
)
from headwater.logtier.runtime.disk import DirectoryEntry, Disk

_logger = logging.getLogger(__name__)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"

# The first file always exists and loses its suffix first, which marks the start of step 4. The log is last.
_RENAMED: Final = (TIME_INDEX_SUFFIX, INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)
_DIGITS: Final = len(segment_name(0))


def swap_in(
    disk: Disk, log: Log, sources: Sequence[LogSegment], *, size_bytes: int, modified_ms: int, now_ms: int
) -> None:
    """Replace the sources by the cleaned segment at the first source's base offset, which is complete and synced.

    Reads in progress continue in the old files.

    Raises:
        OSError: Before the swap counts, the log is unchanged; afterwards the log reads and appends correctly, and its
            next start finishes the swap.
    """
    cleaned = LogSegment(
        disk,
        log.directory,
        sources[0].base_offset,
        size=size_bytes,
        modified_ms=modified_ms,
        index_interval_bytes=log.config.index_interval_bytes,
        suffix=CLEANED_SUFFIX,
    )
    try:
        log.forget_checkpoint(among={source.base_offset for source in sources})
        cleaned.change_suffix(SWAP_SUFFIX, _RENAMED)
    except OSError:
        _remove_files(disk, log.directory, cleaned.base_offset, SWAP_SUFFIX)
        _remove_files(disk, log.directory, cleaned.base_offset, CLEANED_SUFFIX)
        raise
    log.replace_segments(sources, cleaned, now_ms)
    cleaned.change_suffix("", _RENAMED)


def remove_cleaned(disk: Disk, directory: str, base_offsets: Iterable[int]) -> None:
    """Remove the files of cleaned segments that were not swapped in."""
    for base_offset in base_offsets:
        _remove_files(disk, directory, base_offset, CLEANED_SUFFIX)


def finish_swaps(disk: Disk, directory: str, entries: Sequence[DirectoryEntry], *, index_interval_bytes: int) -> bool:
    """Finish or undo interrupted swaps at the start; return whether there were any.

    Args:
        entries: The entries of `directory`.
    """
    names = [entry.name for entry in entries]
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return False
    swapped = {name[:_DIGITS] for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)}
    for name in names:
        if name.endswith(CLEANED_SUFFIX) or (name.endswith(SWAP_SUFFIX) and name[:_DIGITS] not in swapped):
            disk.remove(f"{directory}/{name}")
    sizes = {entry.name: entry.size_bytes for entry in entries}
    for stem in sorted(swapped):
        new = LogSegment(
            disk,
            directory,
            int(stem),
            size=sizes[stem + LOG_SUFFIX + SWAP_SUFFIX],
            modified_ms=0,
            index_interval_bytes=index_interval_bytes,
            suffix=SWAP_SUFFIX,
        )
        end_offset = max((found.header.last_offset + 1 for found in new.headers()), default=new.base_offset)
        new.release()
        _logger.warning("%s: the swap interrupted by the last stop is being finished", new.log_path)
        if stem + _RENAMED[0] + SWAP_SUFFIX in sizes:
            _remove_files(disk, directory, int(stem))
        for name in sizes:
            base = name[:_DIGITS]
            if name == base + LOG_SUFFIX and base.isdecimal() and int(stem) < int(base) < end_offset:
                _remove_files(disk, directory, int(base))
                disk.remove(f"{directory}/{base}{SNAPSHOT_SUFFIX}")
        new.change_suffix("", _RENAMED)
    disk.fsync_directory(directory)
    return True


def _remove_files(disk: Disk, directory: str, base_offset: int, suffix: str = "") -> None:
    for name in reversed(_RENAMED):
        disk.remove(f"{directory}/{segment_name(base_offset)}{name}{suffix}")
