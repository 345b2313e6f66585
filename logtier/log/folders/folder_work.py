"""Creates and renames folders of logs outside the event loop: thousands of them would block all requests."""

import contextlib
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

# Folders of one task: a few milliseconds of work, and few enough for the loop to process the results in between.
_FOLDERS_PER_TASK: Final = 64


class NewLog(NamedTuple):
    """A log to be created."""

    topic_partition: TopicPartition
    topic_id: UUID
    config: TopicConfig


class Place(NamedTuple):
    """Path of a new log, and the path to which a left-over folder at that path is renamed."""

    directory: LogDirectory
    path: str
    path_of_left_over: str
    roll_jitter_ms: int
    now_ms: int


class MadeLog(NamedTuple):
    """Result of creating a log: the log, not yet taken over, or the error of the disk."""

    directory: LogDirectory
    result: Log | OSError
    #: Whether a left-over folder was renamed.
    has_left_over: bool


def make_log(disk: Disk, wanted: NewLog, place: Place, post: Post | None) -> MadeLog:
    """Create the folder and the files of a log; callable on any thread."""
    has_left_over = is_new = False
    path = place.path
    try:
        if disk.exists(path):
            # Left by a failed deletion or creation: none of its records may appear in the new log.
            disk.rename(path, place.path_of_left_over)
            has_left_over = True
        is_new = True
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
        if is_new:
            # The next attempt may be in another log folder: two folders of a partition keep a broker from starting.
            with contextlib.suppress(OSError):
                disk.rmtree(path)
        return MadeLog(place.directory, error, has_left_over)
    return MadeLog(place.directory, log, has_left_over)


class _Rename(NamedTuple):
    directory: LogDirectory
    path: str
    new_path: str


class FolderWork:
    """Running work in the log folders: creation of logs, and renames of deleted logs' folders.

    Both run in the order of the requests, on the one thread of the disk for them, so that a name is free when the next
    log takes it. Invariant: a created log belongs to nobody until it is taken. Called from the event loop by the log
    manager only.
    """

    def __init__(self, disk: Disk, post: Post | None) -> None:
        self._disk = disk
        self._post = post
        self._made: dict[TopicPartition, MadeLog] = {}
        #: Number of logs created or being created, by the path of their log folder.
        self.placed: Counter[str] = Counter()
        self._running: Completion | None = None
        self._renames: list[tuple[Completion, list[tuple[_Rename, OSError]]]] = []
        self._is_closed = False

    # -- making

    async def make(
        self, wanted: Sequence[NewLog], place: Callable[[NewLog], Place], left_over: Callable[[NewLog, Place], None]
    ) -> None:
        """Create logs, to be taken over by `take`; an error affects only its own log.

        Args:
            place: Returns the place of a log when its creation begins; OSError if there is none.
            left_over: Called for each left-over folder that was renamed.
        """
        for first in range(0, len(wanted), _FOLDERS_PER_TASK):
            placed: list[tuple[NewLog, Place]] = []
            for each in wanted[first : first + _FOLDERS_PER_TASK]:
                try:
                    placed.append((each, place(each)))
                except OSError:
                    continue  # `create` gets the same error
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
        """Return the log created for a partition, or its error; None if there is none with this topic id."""
        made = self._made.get(topic_partition)
        if made is None or (isinstance(made.result, Log) and made.result.topic_id != topic_id):
            return None
        del self._made[topic_partition]
        self.placed[made.directory.path] -= 1
        return made

    def take_rest(self) -> Iterator[tuple[LogDirectory, Log]]:
        """Yield the created logs that were not taken over, because their topics were deleted meanwhile."""
        while self._made:
            _, made = self._made.popitem()
            self.placed[made.directory.path] -= 1
            if isinstance(made.result, Log):
                yield made.directory, made.result

    # -- putting away

    def rename(self, renames: Sequence[tuple[LogDirectory, str, str]]) -> None:
        """Rename folders; a disk error is logged and reported to the folder's health."""
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
        """Whether all renames are done."""
        return not self._renames

    def poll(self) -> None:
        """Process finished renames."""
        while self._renames and self._renames[0][0].done():
            _, failed = self._renames.pop(0)
            for (directory, path, _), error in failed:
                # The log is no longer read, and the next start removes the folder.
                logger.error("%s cannot be renamed: %s", path, error)
                directory.health.observe(f"rename {path}", error)

    def wait(self) -> None:
        """Block until all renames are done."""
        for completion, _ in list(self._renames):
            completion.result()
        self.poll()

    def close(self) -> None:
        """Wait for running work; no further work begins."""
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
    # The partition's next log may be made in another log folder: if a power loss took back the rename alone, the
    # partition would have two, which keep a broker from starting.
    for path, rename in {rename.directory.path: rename for rename in renames}.items():
        try:
            disk.fsync_directory(path)
        except OSError as error:
            failed.append((rename, error))
