"""Moves one replica to another disk while it is in use: copy, catch up, replace."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.folders.replica_folders import Replaces, write_marker
from headwater.logtier.log.leader_epochs import EPOCHS_FILE
from headwater.logtier.log.log import Log
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, LogSegment, segment_name
from headwater.logtier.log.segments.segment_leases import SegmentUse
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.copy_throttle import CopyThrottle
from headwater.logtier.replication.flush_wait import wait_flushed
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.completed import completed
from headwater.logtier.runtime.disk import Disk, File

logger = logging.getLogger(__name__)

# Copied per background task: other tasks, such as checkpoints, run in between.
_COPY_BYTES: Final = 64 * 1024 * 1024
# Copied on the event loop at a time, once only the newest records are missing.
_CATCH_UP_BYTES: Final = 256 * 1024
# A larger active segment is rolled, so that it can be copied outside the event loop.
_TAIL_BYTES_MAX: Final = 16 * 1024 * 1024
_ROLLS_MAX: Final = 10
# Bytes per read of the check whether a file is readable.
_READ_BYTES: Final = 1024 * 1024
# Segments kept open, with their indexes, while they wait to be copied.
_SEGMENTS_OPEN: Final = 16
# Syncs of the copy while the log grows; the final sync blocks the log.
_FLUSHES_MAX: Final = 10


class MoveInterruptedError(Exception):
    """Retention, compaction or a truncation changed the log during the copy, which must start again."""


class ReplicaMove:
    """The copy of one log to another log folder, in a `-future` folder that finally replaces the log.

    Inactive segments are copied as files outside the event loop; later records are read and appended as by a follower.
    The copy becomes visible only in the last step, between two requests. `log.folders.replica_folders` describes the
    recovery after a crash.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        log_manager: LogManager,
        directory: LogDirectory,
        clock: Clock,
        throttle: CopyThrottle,
    ) -> None:
        """`throttle` is shared by all moves."""
        self.topic_partition = topic_partition
        self.directory = directory
        #: Whether the folder stays after a failure: the next start needs it to restart the move, or as the log.
        self.keep_folder = False
        #: Bytes copied so far.
        self.copied_bytes = 0
        self._source = log_manager.logs[topic_partition]
        self._truncations = self._source.truncations
        self._log_manager = log_manager
        self._disk: Disk = log_manager.disk
        self._now_ms = clock.now_ms
        self._monotonic_ms = clock.monotonic_ms
        self._throttle = throttle
        # End offset of the last copied segment.
        self._copied_end: int | None = None
        self._future: Log | None = None
        self._lag = 1 << 62
        self._path = ""

    @property
    def offset_lag(self) -> int:
        """Number of offsets by which the copy lags."""
        if self._future is not None:
            end = self._future.log_end_offset
        else:
            end = self._source.log_start_offset if self._copied_end is None else self._copied_end
        return max(0, self._source.log_end_offset - end)

    async def run(self) -> Log:
        """Copy the log and replace it; return the new log of the replica.

        After an error the copy is removed, unless `keep_folder` is set.

        Raises:
            OSError: A disk error.
            KafkaError: A sync of the copy failed.
            MoveInterruptedError: The log changed during the copy.
        """
        self._path = self._log_manager.begin_future(self.topic_partition, self.directory)
        # A mix of old and cleaned segments could show a record whose tombstone was removed.
        lease = self._source.leases.take(SegmentUse.COPYING)
        try:
            await self._copy_segments()
            self._future = future = self._open()
            await self._catch_up(future)
            return self._take_place(future)
        except BaseException:
            if self._future is not None:
                self._future.abandon()
            if not self.keep_folder:
                path = self._path
                self._disk.in_background(lambda: self._disk.rmtree(path))
            raise
        finally:
            lease.give_back()

    # -- copying files

    async def _copy_segments(self) -> None:
        source = self._source
        source.roll(self._now_ms())
        rolls = 0
        while True:
            closed = self._closed_segments()
            if not closed:
                if rolls == _ROLLS_MAX or source.segments.active.size <= _TAIL_BYTES_MAX:
                    break
                source.roll(self._now_ms())
                rolls += 1
                continue
            part = closed[:_SEGMENTS_OPEN]
            ends = [each.base_offset for each in (*closed[1:], source.segments.active)]
            try:
                # Open from now on: the files stay readable if retention deletes the segments.
                files = [(each, each.file, each.size, each.index_files()) for each in part]
            except FileNotFoundError:
                raise MoveInterruptedError from None
            for (segment, file, size, indexes), end in zip(files, ends, strict=False):
                await self._copy_segment(segment, file, size, indexes)
                self._copied_end = end
        if self._copied_end is not None:
            await self._in_background(partial(self._copy_state, segment_name(self._copied_end)))

    def _closed_segments(self) -> list[LogSegment]:
        """Return the segments that can be copied as files, from the first one not copied."""
        segments = self._source.segments
        if self._copied_end is None:
            return segments[:-1]
        closed = [each for each in segments[:-1] if each.base_offset >= self._copied_end]
        following = closed[0] if closed else segments.active
        if following.base_offset != self._copied_end:
            raise MoveInterruptedError
        return closed

    async def _copy_segment(self, segment: LogSegment, file: File, size: int, indexes: list[File]) -> None:
        async for copied in self._copy_file(file, f"{segment_name(segment.base_offset)}{LOG_SUFFIX}", size):
            self.copied_bytes += copied
        for index in indexes:
            async for _ in self._copy_file(index, index.path.rpartition("/")[2], index.size):
                pass

    async def _copy_file(self, file: File, name: str, size: int) -> AsyncIterator[int]:
        """Copy a file in parts, within the rate limit; yield the size of each."""
        path = f"{self._path}/{name}"
        position = 0
        while True:
            part = await self._allowed(min(_COPY_BYTES, size - position))
            try:
                await self._in_background(partial(self._disk.copy, file, path, position, part))
            except OSError:
                await self._check_source(partial(_read_through, file, position, part))
                if self._source.truncations != self._truncations:
                    raise MoveInterruptedError from None
                raise
            position += part
            yield part
            if position == size:
                return

    async def _allowed(self, wanted: int) -> int:
        """Wait until copying is permitted; return the permitted part of `wanted` bytes."""
        while wanted:
            allowed = self._throttle.allow(wanted, self._monotonic_ms())
            if allowed:
                return allowed
            await asyncio.sleep(self._throttle.wait_ms(wanted, self._monotonic_ms()) / 1000)
        return 0

    async def _check_source(self, read: Callable[[], None]) -> None:
        """After a failed copy, check whether the source is unreadable: then its folder has failed, not the new one."""
        try:
            await self._in_background(read)
        except OSError as error:
            self._source_failed(error)
            raise MoveInterruptedError from None

    def _source_failed(self, error: OSError) -> None:
        logger.error("%s cannot be copied to another folder: %s", self.topic_partition, error)
        self._source.health.observe(f"read {self._source.directory}", error)

    def _copy_state(self, end_name: str) -> None:
        """Copy leader epochs and snapshot; a missing snapshot is replayed from the batches.

        Also create an empty segment for later records: the last copied segment may end early after compaction.
        """
        self._disk.open(f"{self._path}/{end_name}{LOG_SUFFIX}", create=True)
        for name in (EPOCHS_FILE, f"{end_name}{SNAPSHOT_SUFFIX}"):
            path = f"{self._source.directory}/{name}"
            if self._disk.exists(path):
                self._disk.write_atomic(f"{self._path}/{name}", self._disk.read(path))
        self._disk.fsync_directory(self._path)
        self._disk.fsync_directory(self.directory.path)

    def _open(self) -> Log:
        return open_log(
            self._disk,
            self._path,
            self.topic_partition,
            self._source.topic_id,
            self._source.config,
            was_stopped_cleanly=True,
            recovery_point=0,
            log_start_offset=self._source.log_start_offset,
            now_ms=self._now_ms(),
            health=self.directory.health,
            post=self._log_manager.post,
        )

    # -- following

    async def _catch_up(self, future: Log) -> None:
        source = self._source
        marker = Replaces(self._log_manager.directory_of(self.topic_partition).directory_id, source.log_start_offset)
        for round_number in range(_FLUSHES_MAX):
            is_behind = True
            while is_behind:
                is_behind = self._copy_turn(future, await self._allowed(_CATCH_UP_BYTES))
                await asyncio.sleep(0)  # other requests run here
            if round_number == 0:
                await self._in_background(partial(write_marker, self._disk, self._path, marker))
            error = await wait_flushed(future.durability.request())
            if error is not None:
                raise KafkaError(error.code, error.message)
            if future.log_end_offset >= source.log_end_offset:
                return

    def _copy_turn(self, future: Log, allowed: int) -> bool:
        """Copy batches for a while; return whether any are missing.

        The lag falls with each turn however fast the log grows, unless the rate limit prevents it.
        """
        goal = self._lag * 9 // 10
        copied = self.copied_bytes
        while self._copy_batches(future):
            if self.copied_bytes - copied >= allowed and (self._throttle.is_limited or self.offset_lag <= goal):
                break
        self._throttle.overdraw(self.copied_bytes - copied - allowed)
        self._lag = self.offset_lag
        return self._lag > 0

    def _copy_batches(self, future: Log) -> bool:
        """Append some of the missing batches; return whether there were any."""
        source = self._source
        if source.health.failure is not None or source.truncations != self._truncations:
            raise MoveInterruptedError
        offset = max(future.log_end_offset, source.log_start_offset)
        try:
            found = source.read(offset, _CATCH_UP_BYTES, upper_bound_offset=source.log_end_offset, min_one_batch=True)
            records = found.file.pread(found.size, found.position)
        except OSError as error:
            self._source_failed(error)
            raise MoveInterruptedError from None
        if not records:
            return False
        future.append_as_follower(records)
        self.copied_bytes += found.size
        return True

    def _take_place(self, future: Log) -> Log:
        """Finish the move between two requests: last batches, producer states, names of the folders."""
        source = self._source
        while self._copy_batches(future):
            pass
        if future.log_end_offset != source.log_end_offset:
            raise MoveInterruptedError
        future.flush()
        if future.log_start_offset < source.log_start_offset <= future.log_end_offset:
            # The start of the old log is at most the high watermark, below which the copy has every record.
            future.delete_records_before(source.log_start_offset, source.log_start_offset)
        # Producers without remaining batches are known only to the old log.
        future.take_producers(source.producers)
        future.prepare_close()
        try:
            self._log_manager.replace(future, self.directory)
        except OSError:
            # The old log's folder keeps the name of a deleted one: the next start opens the copy as the log.
            self.keep_folder = source.health.failure is not None
            raise
        return future

    async def _in_background(self, task: Callable[[], None]) -> None:
        await completed(self._disk.in_background(task))


def _read_through(file: File, position: int, size: int) -> None:
    end = position + size
    while position < end:
        position += len(file.pread(min(_READ_BYTES, end - position), position)) or size
