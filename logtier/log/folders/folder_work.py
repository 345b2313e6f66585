"""Folders of logs, made and put away beside the event loop: thousands of them would hold everybody up."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from headwater.logtier.config import TopicConfig
from headwater.logtier.log.durability import Post
from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import begin_log
from headwater.logtier.log.partition_metadata import write_partition_metadata
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.completed import completed
from headwater.logtier.runtime.disk import Completion, Disk

logger = logging.getLogger(__name__)

# Folders of one task: a few milliseconds' work, and few enough for the loop to take what comes of it in between.
_FOLDERS_PER_TASK: Final = 64


class NewLog(NamedTuple):
    """A log that is to be."""

    topic_partition: TopicPartition
    topic_id: UUID
    config: TopicConfig


class Place(NamedTuple):
    """Where a log is made, and the name that a left-over of another log gets if it is in the way."""

    directory: LogDirectory
    path: str
    path_of_left_over: str
    roll_jitter_ms: int
    now_ms: int


class MadeLog(NamedTuple):
    """What came of it: a log that nobody knows yet, or the disk's error."""

    directory: LogDirectory
    result: Log | OSError
    #: Whether a left-over had to be renamed.
    has_left_over: bool


def make_log(disk: Disk, wanted: NewLog, place: Place, post: Post | None) -> MadeLog:
    """Make the folder and the files of a log; on any thread."""
    has_left_over = False
    path = place.path
    try:
        if disk.exists(path):
            # Left behind by a deletion or a creation that the disk failed: none of it may show in the new log.
            disk.rename(path, place.path_of_left_over)
            has_left_over = True
        disk.makedirs(path)
        write_partition_metadata(disk, path, wanted.topic_id)
        log = begin_log(
            disk,
            path,
            wanted.topic_partition,
            wanted.topic_id,
            wanted.config,
            now_ms=place.now_ms,
            roll_jitter_ms=place.roll_jitter_ms,
            health=place.directory.health,
            post=post,
        )
    except OSError as error:
        return MadeLog(place.directory, error, has_left_over)
    return MadeLog(place.directory, log, has_left_over)


class _Rename(NamedTuple):
    directory: LogDirectory
    path: str
    new_path: str


class FolderWork:
    """What is under way in the log folders: logs being made, folders of deleted ones being renamed.

    Both are done in the order they were asked for, by the disk's one thread for it, so that a name is free when the
    next log takes it. Invariant: a log that was made is nobody's until it is taken. Called from the event loop, by the
    log manager only.
    """

    def __init__(self, disk: Disk, post: Post | None) -> None:
        self._disk = disk
        self._post = post
        self._made: dict[TopicPartition, MadeLog] = {}
        #: Logs that are made or being made, by their folder's path.
        self.placed: Counter[str] = Counter()
        self._running: Completion | None = None
        self._renames: list[tuple[Completion, list[tuple[_Rename, OSError]]]] = []
        self._is_closed = False

    # -- making

    async def make(
        self, wanted: Sequence[NewLog], place: Callable[[NewLog], Place], left_over: Callable[[NewLog, Place], None]
    ) -> None:
        """Make logs, to be taken by `take`; an error belongs to its log alone.

        Args:
            place: Says where each goes, when its turn comes; OSError where nowhere.
            left_over: Told of each folder that was in the way.
        """
        for first in range(0, len(wanted), _FOLDERS_PER_TASK):
            placed: list[tuple[NewLog, Place]] = []
            for each in wanted[first : first + _FOLDERS_PER_TASK]:
                try:
                    placed.append((each, place(each)))
                except OSError:
                    continue  # whoever takes it finds out the same
                self.placed[placed[-1][1].directory.path] += 1
            if self._is_closed or not placed:
                return
            made: list[MadeLog] = []
            self._running = self._disk.change_folders(partial(_make_all, self._disk, placed, self._post, made))
            await completed(self._running)
            for (each, where), found in zip(placed, made, strict=True):
                if found.has_left_over:
                    left_over(each, where)
                if isinstance(found.result, OSError):
                    found.directory.health.observe(f"create {where.path}", found.result)
                self._made[each.topic_partition] = found

    def take(self, topic_partition: TopicPartition, topic_id: UUID) -> MadeLog | None:
        """The log that was made for a partition, or why there is none; None where nobody tried, or for another id."""
        made = self._made.get(topic_partition)
        if made is None or (isinstance(made.result, Log) and made.result.topic_id != topic_id):
            return None
        del self._made[topic_partition]
        self.placed[made.directory.path] -= 1
        return made

    def take_rest(self) -> Iterator[tuple[LogDirectory, Log]]:
        """The logs that were made and that nobody has taken: their topics went meanwhile."""
        while self._made:
            _, made = self._made.popitem()
            self.placed[made.directory.path] -= 1
            if isinstance(made.result, Log):
                yield made.directory, made.result

    # -- putting away

    def rename(self, renames: Sequence[tuple[LogDirectory, str, str]]) -> None:
        """Give folders other names; what the disk says to it is its health's business, and logged."""
        for first in range(0, len(renames), _FOLDERS_PER_TASK):
            part = [_Rename(*each) for each in renames[first : first + _FOLDERS_PER_TASK]]
            failed: list[tuple[_Rename, OSError]] = []
            completion = self._disk.change_folders(partial(_rename_all, self._disk, part, failed))
            self._renames.append((completion, failed))
            completion.add_done_callback(self._renamed)

    def _renamed(self, _: object) -> None:
        if self._post is not None:
            self._post(self.poll)

    @property
    def has_renamed_all(self) -> bool:
        """Whether every folder has its name."""
        return not self._renames

    def poll(self) -> None:
        """Notice what has been renamed."""
        while self._renames and self._renames[0][0].done():
            _, failed = self._renames.pop(0)
            for (directory, path, _), error in failed:
                # Nobody reads it any more, and the next start removes it.
                logger.error("%s is not moved away: %s", path, error)
                directory.health.observe(f"rename {path}", error)

    def wait(self) -> None:
        """Wait until every folder has its name; blocks."""
        for completion, _ in list(self._renames):
            completion.result()
        self.poll()

    def close(self) -> None:
        """Wait for what is under way; nothing is begun any more."""
        self._is_closed = True
        if self._running is not None:
            self._running.result()
        self.wait()


def _make_all(disk: Disk, placed: Sequence[tuple[NewLog, Place]], post: Post | None, made: list[MadeLog]) -> None:
    for wanted, place in placed:
        made.append(make_log(disk, wanted, place, post))


def _rename_all(disk: Disk, renames: Sequence[_Rename], failed: list[tuple[_Rename, OSError]]) -> None:
    for rename in renames:
        try:
            disk.rename(rename.path, rename.new_path)
        except OSError as error:
            failed.append((rename, error))
