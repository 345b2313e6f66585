"""The index files of a segment, read and written whole. `PathOf` maps a suffix to the path of a file."""

import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias

from headwater.logtier.log.directory_health import is_no_space
from headwater.logtier.log.segments.offset_index import OffsetIndex
from headwater.logtier.log.segments.paged_index import PagedOffsetIndex, PagedTimeIndex
from headwater.logtier.log.segments.time_index import TimeIndex
from headwater.logtier.runtime.disk import Disk, File

INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"

Indexes: TypeAlias = tuple[OffsetIndex, TimeIndex]
PagedIndexes: TypeAlias = tuple[PagedOffsetIndex, PagedTimeIndex]
PathOf: TypeAlias = Callable[[str], str]


def read_index_file(disk: Disk, path: str) -> bytes | None:
    """Return the content of an index file; None if there is none."""
    try:
        return disk.read(path)
    except FileNotFoundError:
        return None


def write_index_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace the content of an index file; after an OSError the file is missing."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.append([data])
    except OSError:
        # A partial index would count as complete.
        disk.remove(path)
        raise


def read_indexes(disk: Disk, path_of: PathOf, log_size: int) -> Indexes | None:
    """Return both indexes of a segment of `log_size` bytes; None if a file is missing or damaged."""
    offsets = read_index_file(disk, path_of(INDEX_SUFFIX))
    times = read_index_file(disk, path_of(TIME_INDEX_SUFFIX))
    offset_index = None if offsets is None else OffsetIndex.from_bytes(offsets, log_size)
    time_index = None if times is None else TimeIndex.from_bytes(times)
    return None if offset_index is None or time_index is None else (offset_index, time_index)


def write_indexes(disk: Disk, path_of: PathOf, indexes: Indexes) -> bool:
    """Write both indexes of a segment; False if the disk is full: one is then missing, and both are rebuilt."""
    try:
        write_index_file(disk, path_of(INDEX_SUFFIX), indexes[0].to_bytes())
        write_index_file(disk, path_of(TIME_INDEX_SUFFIX), indexes[1].to_bytes())
    except OSError as error:
        if not is_no_space(error):
            raise
        disk.remove(path_of(INDEX_SUFFIX))
        return False
    return True


def paged_indexes(disk: Disk, path_of: PathOf, indexes: Indexes) -> PagedIndexes:
    """Return paged indexes that replace complete indexes whose files are written."""
    return (
        PagedOffsetIndex(disk, path_of(INDEX_SUFFIX), indexes[0]),
        PagedTimeIndex(disk, path_of(TIME_INDEX_SUFFIX), indexes[1]),
    )


def open_index_files(disk: Disk, path_of: PathOf) -> list[File]:
    """Open the existing index files of a segment."""
    files: list[File] = []
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            files.append(disk.open(path_of(suffix)))
    return files
