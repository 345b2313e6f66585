"""Chooses the log among two folders of one partition, such as after an interrupted move between disks.

A move copies a log into `<topic>-<partition>.<hex>-future` on the other disk. When the copy is complete and on the
device, a marker in it names the folder it replaces; then the old log's folder gets the name of a deleted log and the
copy the name of the log; when both names are on the device, the marker is removed. After an interruption:

- a log and a future, marked or not: the copy starts again;
- a marked future alone: the future is the log;
- two logs, one marked to replace the other: the marked one is the log.

A log that was created while its folder of before was offline, because its replica was assigned to other brokers and
back, is the log when the folder is there again: the metadata name its folder (KIP-858). If the broker ended before it
could report that folder, the log is the one with the later records. A log whose creation failed on a full disk, and was
then repeated on another one, may have left an empty folder.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.partition_metadata import NO_TOPIC_ID
from headwater.logtier.log.segments.batch_scan import checked_batches
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import Disk, File

logger = logging.getLogger(__name__)

_MARKER: Final = "replaces"


class Replaces(NamedTuple):
    """Content of a marker: the id of the log folder with the replaced log, and that log's start offset."""

    directory_id: str
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
    disk.write_atomic(f"{path}/{_MARKER}", f"{replaces.directory_id} {replaces.log_start_offset}\n".encode())


def read_marker(disk: Disk, path: str) -> Replaces | None:
    """Return the marker in `path`; None if it is missing or incomplete."""
    try:
        directory_id, log_start_offset = disk.read(f"{path}/{_MARKER}").decode().split()
        return Replaces(directory_id, int(log_start_offset))
    except (FileNotFoundError, ValueError):
        return None


def remove_marker(disk: Disk, path: str) -> None:
    """Remove the marker; a missing marker is ignored."""
    disk.remove(f"{path}/{_MARKER}")


def choose_copy(
    disk: Disk, first: Copy, second: Copy, topic_id: UUID | None, directory_id: str | None = None
) -> Copy | None:
    """Return which of two folders is the log; None if it cannot be decided.

    Of folders with different topic ids, one of which may be lost, it is that of the present topic. If it is neither,
    both are left over: it is the first that has an id.

    Args:
        topic_id: The topic id, if known; a left-over of a deleted topic of the same name has another id.
        directory_id: Id of the log folder that the metadata name for this replica, if they name one.
    """
    of_two_topics = are_of_two_topics(first, second)
    if of_two_topics and topic_id in (first.topic_id, second.topic_id):
        return first if first.topic_id == topic_id else second
    for mine, other in ((first, second), (second, first)):
        replaces = read_marker(disk, mine.path)
        if replaces is not None and replaces.directory_id == other.directory.directory_id:
            return mine
    if of_two_topics:
        return second if first.topic_id == NO_TOPIC_ID else first
    for mine in (first, second):
        if directory_id and mine.directory.directory_id == directory_id:
            return mine
    is_empty, other_is_empty = not has_records(disk, first.path), not has_records(disk, second.path)
    if is_empty is other_is_empty:
        return None
    return second if is_empty else first


def later_copy(disk: Disk, first: Copy, second: Copy) -> Copy:
    """Return the log with the later records, of two that are replicas of one partition at different times.

    By the last batch: the one of a later leader epoch, then that with the larger offset, as replicas are elected in
    Raft. Whatever either has acknowledged is in it: logs agree up to the end of a common epoch, and records of a later
    epoch come from a leader that had all committed ones.
    """
    return second if _last_place(disk, second.path) > _last_place(disk, first.path) else first


def _last_place(disk: Disk, path: str) -> tuple[int, int]:
    """Return leader epoch and offset of a log's last whole batch; (-1, -1) without one."""
    names = sorted((each.name for each in disk.listdir(path) if each.name.endswith(".log")), reverse=True)
    for name in names:
        file = disk.open_read_only(f"{path}/{name}")
        try:
            last = None
            for batch, _ in checked_batches(_Records(int(name.removesuffix(".log")), file.size, file), 0):
                last = batch.header
        finally:
            file.close()
        if last is not None:
            return last.partition_leader_epoch, last.last_offset
    return -1, -1


@dataclass(slots=True)
class _Records:
    """The records of a log's segment, as a scan needs them."""

    base_offset: int
    size: int
    file: File


def has_records(disk: Disk, path: str) -> bool:
    """Whether the folder of a log has any bytes of records."""
    return any(entry.size_bytes for entry in disk.listdir(path) if entry.name.endswith(".log"))


def is_to_keep(disk: Disk, other: Copy, chosen: Copy, directory_id: str | None) -> bool:
    """Whether the folder that is not the log may be needed: another topic's, or with records that nobody copied.

    A marker that was left behind by an old move speaks of another log than the one that the metadata name since: that
    one is kept, too, as is the former log of a move that was not reported yet.
    """
    if are_of_two_topics(other, chosen):
        return True
    replaces = read_marker(disk, chosen.path)
    is_copied = replaces is not None and replaces.directory_id == other.directory.directory_id
    is_named = other.directory.directory_id == directory_id
    return (is_named or not is_copied) and has_records(disk, other.path)


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
