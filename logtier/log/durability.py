"""Tracks which part of a log is on the device; background syncs are shared by all waiting appends."""

import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from headwater.logtier.log.directory_health import DirectoryHealth
from headwater.logtier.log.segments.log_segments import LogSegments
from headwater.logtier.log.segments.segment import LogSegment
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.runtime.disk import Completion, Disk, File

logger = logging.getLogger(__name__)

# Each segment has up to four files, which stay open during the sync.
_SEGMENTS_PER_SYNC: Final = 32
# fsync itself never fails with these: a file or folder could not be opened for it.
_NOT_TRIED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))

Post = Callable[[Callable[[], None]], None]
"""Runs a call on the event loop's thread; usable from any thread."""

Done = Callable[[KafkaError | None], None]


class SyncSource(Protocol):
    """The log as `Durability` uses it."""

    log_end_offset: int
    directory: str

    @property
    def segments(self) -> LogSegments:
        """The segments, oldest first; the last segment is the active one."""


class FlushRound:
    """One sync that any number of appends wait for; it covers all records in the log when it began."""

    __slots__ = ("_error", "_is_done", "_waiters")

    def __init__(self) -> None:
        self._waiters: list[Done] = []
        self._error: KafkaError | None = None
        self._is_done = False

    def add_done_callback(self, done: Done) -> None:
        """Call `done` with None when all covered records are on the device, or with the error if the sync failed."""
        if self._is_done:
            done(self._error)
        else:
            self._waiters.append(done)

    def complete(self, error: KafkaError | None) -> None:
        """Call the callbacks of all waiting appends; later calls have no effect."""
        if not self._is_done:
            self._is_done = True
            self._error = error
            waiters, self._waiters = self._waiters, []
            for done in waiters:
                done(error)


class Durability:
    """Tracks how far a log is on the device, and syncs it outside the event loop.

    At most one sync of a log runs at a time; requests made meanwhile share the next sync (group commit). Invariants:
    every record below `flushed_offset` is on the device, and `flushed_offset` only rises, except at a truncation; the
    indexes of segments that end at or before `recovery_point` are on the device too. A failed sync is never repeated,
    because the kernel may have dropped the unwritten pages: it fails the whole folder.
    """

    __slots__ = (
        "_current",
        "_current_base",
        "_current_end",
        "_directories",
        "_disk",
        "_flushed_ms",
        "_health",
        "_is_abandoned",
        "_log",
        "_next",
        "_post",
        "_refused_offset",
        "_running",
        "_synced_base",
        "_syncing_directories",
        "_syncing_written",
        "_target",
        "_written_files",
        "flushed_offset",
        "requested_offset",
    )

    def __init__(
        self,
        disk: Disk,
        health: DirectoryHealth,
        log: SyncSource,
        *,
        flushed_offset: int,
        now_ms: int = 0,
        directories: Sequence[str] = (),
        written_files: Sequence[str] = (),
        post: Post | None = None,
    ) -> None:
        """Start at `flushed_offset`.

        Args:
            directories: Folders with new names that are not on the device yet.
            written_files: Names of files besides the segments that are not on the device yet; missing ones are ignored.
            post: Reports the end of a sync on the event loop; without it the caller calls `poll`.
        """
        self._disk = disk
        self._health = health
        self._log = log
        self._post = post
        self._directories = list(directories)
        self._written_files = list(written_files)
        #: Every record below this offset is on the device.
        self.flushed_offset = flushed_offset
        #: A sync was requested for every record below this offset.
        self.requested_offset = flushed_offset
        # A sync requested below this offset could not begin, or is unknown since the start: what a killed process left
        # in the page cache may have been promised. A repeated request must not count as done.
        self._refused_offset = max(flushed_offset, log.log_end_offset)
        # A base offset; the indexes of every segment that ends at or before it are on the device.
        self._synced_base = flushed_offset
        self._running: Completion | None = None
        self._current: FlushRound | None = None
        self._current_base = self._current_end = self._target = 0
        self._syncing_directories: list[str] = []
        self._syncing_written: list[str] = []
        self._next: FlushRound | None = None
        self._is_abandoned = False
        self._flushed_ms = now_ms

    @property
    def recovery_point(self) -> int:
        """The offset from which a restart after a crash checks the log.

        The check begins at the first byte of the segment that holds this offset. The recovery point is never the end of
        a segment whose indexes are not synced, nor the end of the active segment.
        """
        base = self._synced_base
        following = self._log.segments.base_after(base)
        end = self._log.log_end_offset if following is None else following
        return min(self.flushed_offset, max(base, end - 1))

    @property
    def is_pending(self) -> bool:
        """Whether a sync is running."""
        return self._running is not None

    @property
    def is_complete(self) -> bool:
        """Whether the whole log and the names of its files are on the device."""
        log = self._log
        return (
            self.flushed_offset >= log.log_end_offset
            and self._synced_base >= log.segments.active.base_offset
            and not self._directories
        )

    def add_names_in(self, directory: str) -> None:
        """Include a folder with a new name in the next sync."""
        if directory not in self._directories:
            self._directories.append(directory)

    def add_written(self, name: str) -> None:
        """Include a small file of the log, which was replaced, in the next sync."""
        if name not in self._written_files:
            self._written_files.append(name)
        self.add_names_in(self._log.directory)

    def request(self) -> FlushRound:
        """Request a sync of all records now in the log; other requests may share the returned round."""
        self.poll()
        if self._next is None:
            self._next = FlushRound()
        wanted = self._next
        if self._is_abandoned or self._health.failure is not None:
            self._next = None
            wanted.complete(self._storage_error())
        elif self._running is None:
            self._begin()
        else:
            self.requested_offset = self._log.log_end_offset
        return wanted

    def poll(self) -> None:
        """Complete a finished sync and begin the next one; needed only without `post`."""
        while self._running is not None and self._running.done():
            self._finish(self._running)

    def round_of(self, offset: int) -> FlushRound | None:
        """Return the sync that a repeated append waits for, or None if its records need no sync."""
        promised_offset = max(self.requested_offset, self._refused_offset)
        return self.request() if self.flushed_offset <= offset < promised_offset else None

    def request_if_due(self, now_ms: int, flush_ms: int) -> None:
        """Request a sync if records have been unflushed for `flush_ms` (config flush.ms)."""
        if self.flushed_offset >= self._log.log_end_offset:
            self._flushed_ms = now_ms
        elif now_ms - self._flushed_ms >= flush_ms:
            self.request()
            self._flushed_ms = now_ms

    def flush(self) -> None:
        """Block until the whole log is on the device.

        Raises:
            KafkaError: kafka_storage_error if the sync fails, which also fails the folder.
        """
        if self._health.failure is not None:
            raise self._storage_error()
        end, base = self._log.log_end_offset, self._log.segments.active.base_offset
        # What is added from here on, such as by those who wait for a round, is for the next sync.
        directories, self._directories = self._directories, []
        written, self._written_files = self._written_files, []
        try:
            for segment in self._unsynced_segments():
                for file in self._files(segment):
                    file.fsync()
            for file in self._open_written(written):
                file.fsync()
            for directory in directories:
                self._disk.fsync_directory(directory)
            if self._running is not None:
                self._running.result()
        except OSError as error:
            self._directories += directories
            self._written_files += written
            self._fail(error)
            raise self._storage_error() from error
        self.poll()
        self._note_synced(end, base)

    def note_synced(self) -> None:
        """Record that the whole log and the names of its files reached the device by a sync of the file system."""
        self._directories.clear()
        self._written_files.clear()
        self._note_synced(self._log.log_end_offset, self._log.segments.active.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Lower all offsets to the new end of a truncated log."""
        active_base_offset = self._log.segments.active.base_offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self.requested_offset = min(self.requested_offset, offset)
        self._refused_offset = min(self._refused_offset, offset)
        self._target = min(self._target, offset)
        self._current_end = min(self._current_end, offset)
        self._synced_base = min(self._synced_base, active_base_offset)
        self._current_base = min(self._current_base, active_base_offset)

    def restart_at(self, offset: int) -> None:
        """Set all offsets to those of an empty log that begins anew; a running sync covers no record of it."""
        self.flushed_offset = self.requested_offset = self._refused_offset = offset
        self._target = self._current_end = offset
        self._synced_base = self._current_base = offset

    def hand_over(self) -> None:
        """Complete all waiting appends: another log has the same records on its device."""
        for waiting in (self._current, self._next):
            if waiting is not None:
                waiting.complete(None)
        self._current = self._next = None

    def abandon(self) -> None:
        """Fail all waiting appends: the log is removed, or its folder failed. Running syncs are ignored."""
        self._is_abandoned = True
        self._running = None
        for waiting in (self._current, self._next):
            if waiting is not None:
                waiting.complete(self._storage_error())
        self._current = self._next = None

    def _begin(self) -> None:
        """Begin a round that covers all records now in the log."""
        self._current, self._next = self._next, None
        self._target = self.requested_offset = self._log.log_end_offset
        self._syncing_directories, self._directories = self._directories, []
        self._syncing_written, self._written_files = self._written_files, []
        self._go_on()

    def _go_on(self) -> None:
        """Sync the next segments of a round."""
        segments = self._unsynced_segments()
        part = segments[:_SEGMENTS_PER_SYNC]
        if len(part) < len(segments):
            self._current_end = self._current_base = segments[len(part)].base_offset
        else:
            self._current_end, self._current_base = self._target, segments[-1].base_offset
        try:
            written = self._open_written(self._syncing_written)
            files = [*written, *(file for segment in part for file in self._files(segment))]
        except OSError as error:
            self._fail(error)
            return
        running = self._running = self._disk.fsync_in_background(files, self._syncing_directories)
        if self._post is not None:
            post = self._post
            running.add_done_callback(lambda _: post(lambda: self._finish(running)))

    def _finish(self, running: Completion) -> None:
        if running is not self._running:
            return
        self._running = None
        try:
            running.result()
        except OSError as error:
            self._fail(error)
            return
        self._syncing_directories, self._syncing_written = [], []
        self._note_synced(self._current_end, self._current_base)
        if self._current_end < self._target:
            self._go_on()
            return
        done, self._current = self._current, None
        if self._next is not None:
            self._begin()
        if done is not None:
            done.complete(None)

    def _unsynced_segments(self) -> Sequence[LogSegment]:
        """The segments from the recovery point on."""
        return self._log.segments.from_offset(self.recovery_point)

    def _files(self, segment: LogSegment) -> list[File]:
        """Return the files to sync; the indexes of the active segment are rebuilt after a crash and are left out."""
        is_last = segment is self._log.segments.active
        return [segment.file] if is_last else [segment.file, *segment.index_files()]

    def _open_written(self, names: Sequence[str]) -> list[File]:
        """Return the small files of a sync."""
        files = []
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                files.append(self._disk.open_read_only(f"{self._log.directory}/{name}"))
        return files

    def _note_synced(self, end_offset: int, base_offset: int) -> None:
        self.flushed_offset = max(self.flushed_offset, end_offset)
        self.requested_offset = max(self.requested_offset, end_offset)
        self._synced_base = max(self._synced_base, base_offset)

    def _fail(self, error: OSError) -> None:
        """Fail the folder after a sync error; `abandon` fails the waiting appends.

        If a file could not be opened, nothing was synced and the sync may be requested again.
        """
        if error.errno in _NOT_TRIED:
            self._running = None
            self._directories += self._syncing_directories
            self._written_files += self._syncing_written
            self._syncing_directories, self._syncing_written = [], []
            self._refused_offset = max(self._refused_offset, self.requested_offset)
            self.requested_offset = self.flushed_offset
            logger.error("log folder %s: a sync could not begin: %s", self._health.path, error.strerror)
            refusal = KafkaError(ErrorCode.kafka_storage_error, f"log folder {self._health.path}: {error.strerror}")
            for waiting in (self._current, self._next):
                if waiting is not None:
                    waiting.complete(refusal)
            self._current = self._next = None
            return
        self._health.fail(f"a sync failed: {error.strerror or error}")
        self.abandon()

    def _storage_error(self) -> KafkaError:
        reason = self._health.failure or "the log is no longer there"
        return KafkaError(ErrorCode.kafka_storage_error, f"log folder {self._health.path}: {reason}")
