"""Chooses the log among two folders of one partition, such as after an interrupted move between disks.

A move copies a log into `<topic>-<partition>.<hex>-future` on the other disk. When the copy is complete and on the
device, a marker in it names the folder it replaces; then the old log's folder gets the name of a deleted log and the
copy the name of the log; when both names are on the device, and the metadata name the new folder, the marker is
removed. After an interruption:

- a log and a future, marked or not: the copy starts again;
- a marked future alone: the future is the log;
- two logs, one marked to replace the other: the marked one is the log.

A log that is created while other folders are offline replaces what they may have: a replica that was assigned to other
brokers meanwhile, and back. It has the marker, too, until the metadata name its folder. From then on they decide, as
in KIP-858. A log whose creation failed on a full disk, and was then repeated on another one, may have left an empty
folder.
"""

import logging
import os
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.partition_metadata import NO_TOPIC_ID
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import Disk

logger = logging.getLogger(__name__)

_MARKER: Final = "replaces"


class Replaces(NamedTuple):
    """Content of a marker: the ids of the log folders that may have a replaced log, and that log's start offset."""

    directory_ids: tuple[str, ...]
    log_start_offset: int


class Copy(NamedTuple):
    """A folder with a log of a partition."""

    path: str
    topic_id: UUID
    directory: LogDirectory


class FutureFolder(NamedTuple):
    """A folder that a move was copying to."""

    topic_partition: TopicPartition
    path: str
    directory: LogDirectory


def write_marker(disk: Disk, path: str, replaces: Replaces) -> None:
    """Write the marker in `path`, which names the replaced log; waits for the device."""
    disk.write_atomic(f"{path}/{_MARKER}", f"{' '.join(replaces.directory_ids)} {replaces.log_start_offset}\n".encode())


def read_marker(disk: Disk, path: str) -> Replaces | None:
    """Return the marker in `path`; None if it is missing or incomplete."""
    try:
        *directory_ids, log_start_offset = disk.read(f"{path}/{_MARKER}").decode().split()
        return Replaces(tuple(directory_ids), int(log_start_offset))
    except (FileNotFoundError, ValueError):
        return None


def remove_marker(disk: Disk, path: str) -> None:
    """Remove the marker; a missing marker is ignored."""
    disk.remove(f"{path}/{_MARKER}")


def settle_names(disk: Disk, old_directory: str, path: str, *, is_known: bool) -> None:
    """Wait until both names of a finished move are on the device; the marker is removed if its folder `is_known`."""
    try:
        disk.fsync_directory(old_directory)
        disk.fsync_directory(os.path.dirname(path))
    except OSError as error:
        logger.warning("%s: its name cannot be written to the device: %s", path, error)
        return
    if is_known:
        discard_marker(disk, path)


def discard_marker(disk: Disk, path: str) -> None:
    """Remove a marker that is not needed any more, if possible."""
    try:
        remove_marker(disk, path)
    except OSError as error:
        logger.warning("%s: its marker of a replaced log cannot be removed: %s", path, error)


def choose_copy(
    disk: Disk, first: Copy, second: Copy, topic_id: UUID | None, directory_id: str | None = None
) -> Copy | None:
    """Return which of two folders is the log; None if it cannot be decided.

    Of folders with different topic ids, one of which may be lost, it is that of the present topic. If it is neither,
    both are left over: it is the first that has an id.

    Args:
        topic_id: The topic id, if known; a left-over of a deleted topic of the same name has another id.
        directory_id: The log folder that the metadata name for this replica, if any.
    """
    of_two_topics = are_of_two_topics(first, second)
    for mine, other in ((first, second), (second, first)):
        if of_two_topics and mine.topic_id == topic_id:
            return mine
        replaces = read_marker(disk, mine.path)
        if replaces is not None and other.directory.directory_id in replaces.directory_ids:
            return mine
    if of_two_topics:
        return second if first.topic_id == NO_TOPIC_ID else first
    for mine in (first, second):
        if mine.directory.directory_id == directory_id:
            return mine
    is_empty, other_is_empty = not has_records(disk, first.path), not has_records(disk, second.path)
    if is_empty is other_is_empty:
        return None
    return second if is_empty else first


def has_records(disk: Disk, path: str) -> bool:
    """Whether the folder of a log has any bytes of records."""
    return any(entry.size_bytes for entry in disk.listdir(path) if entry.name.endswith(".log"))


def are_of_two_topics(first: Copy, second: Copy) -> bool:
    """Whether two folders may be of topics with the same name, one of which was deleted while a folder was offline.

    A power loss may have taken the id of one.
    """
    return first.topic_id != second.topic_id


def sort_futures(
    disk: Disk,
    futures: Sequence[FutureFolder],
    logs: Collection[TopicPartition],
    *,
    all_online: bool,
) -> tuple[list[tuple[FutureFolder, Replaces]], list[FutureFolder]]:
    """Return the futures that are the log, and those whose copy must start again; all others are left unchanged."""
    finished: list[tuple[FutureFolder, Replaces]] = []
    interrupted: list[FutureFolder] = []
    for future in futures:
        replaces = read_marker(disk, future.path)
        if future.topic_partition in logs:
            interrupted.append(future)
        elif replaces is not None and all_online:
            finished.append((future, replaces))
        elif all_online:
            logger.warning("%s is left unchanged: it is an unfinished copy, and its log is missing", future.path)
    return finished, interrupted
