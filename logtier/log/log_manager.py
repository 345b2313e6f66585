"""All logs of a broker, in the folders of `log.dirs`."""

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from headwater.logtier.config import BrokerConfig, TopicConfig
from headwater.logtier.log.chores import Chore, Chores
from headwater.logtier.log.durability import Post
from headwater.logtier.log.flushing.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, read_checkpoint
from headwater.logtier.log.flushing.clean_stop import stop_cleanly
from headwater.logtier.log.flushing.log_flusher import LogFlusher
from headwater.logtier.log.folders.folder_removals import FolderRemovals
from headwater.logtier.log.folders.folder_work import FolderWork, NewLog, Place, make_log
from headwater.logtier.log.folders.log_directory import LogDirectory, LogDirError
from headwater.logtier.log.folders.log_folders import future_folder_name, parse_folder, stray_folder_name
from headwater.logtier.log.folders.opened_directories import open_directories
from headwater.logtier.log.folders.placed_logs import PlacedLogs
from headwater.logtier.log.folders.replica_folders import (
    Copy,
    FutureFolder,
    choose_copy,
    is_to_keep,
    later_copy,
    remove_marker,
    sort_futures,
)
from headwater.logtier.log.log import Log
from headwater.logtier.log.opening import open_log
from headwater.logtier.log.partition_metadata import NO_TOPIC_ID, read_partition_metadata, write_partition_metadata
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.disk import Disk

__all__ = ["LogDirError", "LogManager"]

_logger = logging.getLogger(__name__)

HighWatermark = Callable[[TopicPartition], int]
"""Returns the high watermark of a partition; 0 for a partition that has no replica here."""

# Interval of the removal of expired producers (Kafka's producer.id.expiration.check.interval.ms).
_PRODUCER_CHECK_INTERVAL_MS: Final = 600_000


class LogManager:
    """Owns the log folders and all logs in them.

    Invariants: a folder stays locked while it is open here; `logs` has one log for each partition folder of the online
    folders, and no other; the clean-stop marker exists only while no broker runs and every log is on the device. Files
    in each folder: see `log_directory`, `checkpoints` and `log_folders`. The broker starts, maintains and closes it;
    the replica manager creates and deletes logs.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        clock: Clock,
        prng: random.Random,
        *,
        cluster_id: str | None = None,
        topic_configs: Mapping[str, TopicConfig] | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
        replica_directories: Mapping[TopicPartition, str] | None = None,
        is_held_elsewhere: Callable[[TopicPartition], bool] = lambda _: False,
        post: Post | None = None,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        """Create the manager; `start` opens the logs.

        Args:
            cluster_id: Cluster that the folders must belong to; None accepts the cluster of the folders, or creates a
                new one.
            topic_configs: Configs of topics that override defaults, if known before the start; otherwise the caller
                applies them with `Log.configure` before the first `maintain`.
            topic_ids: Ids of the existing topics; they distinguish a log from the log of a deleted topic of the same
                name.
            replica_directories: Ids of the log folders that the metadata name for replicas of this broker.
            is_held_elsewhere: Whether other brokers have all records of a partition.
            post: See `durability`.
            on_fatal: Called with the reason when the folder of the metadata, or the last folder, goes offline.
        """
        self.config = config
        self.cluster_id = cluster_id or ""
        #: The folders of `log.dirs`; the first one also holds the metadata.
        self.directories: list[LogDirectory] = []
        #: Returns the broker epoch for the clean-stop markers; None if the broker never registered in a cluster.
        self.broker_epoch: Callable[[], int] | None = None
        #: Called after a folder went offline, with its partitions, in a cluster.
        self.on_failed_directory: Callable[[LogDirectory, Sequence[TopicPartition]], None] | None = None
        #: Called after a log has moved to another folder, in a cluster.
        self.on_moved: Callable[[TopicPartition], None] | None = None
        #: Called with the partitions of a folder that went offline.
        self.on_offline: Callable[[Sequence[TopicPartition]], None] | None = None
        #: Target folder of moves interrupted by a stop, by partition.
        self.interrupted_moves: dict[TopicPartition, str] = {}
        #: Target folder of a log that does not exist yet (AlterReplicaLogDirs), by partition.
        self.preferred_paths: dict[TopicPartition, str] = {}
        self._expected_cluster_id = cluster_id
        self.disk = disk
        self._clock = clock
        self.prng = prng
        self._topic_configs = dict(topic_configs or {})
        self._topic_ids = dict(topic_ids or {})
        self._replica_directories = dict(replica_directories or {})
        self._is_held_elsewhere = is_held_elsewhere
        self.post = post
        self._on_fatal = on_fatal
        self._is_started = False
        #: The logs and their folders; only the manager changes them.
        self.placed = PlacedLogs()
        self._removals = FolderRemovals(disk, clock, prng)
        self.flusher = LogFlusher(disk, self.placed, self.directories)
        self._folder_work = FolderWork(disk, post)
        self._log_chores: Chores[Callable[[Log, int, HighWatermark], object]] = Chores(
            Chore(lambda log, _, __: log.durability.poll()),
            Chore(lambda log, now_ms, _: log.maybe_roll(now_ms)),
            Chore(
                lambda log, now_ms, high_watermark: log.delete_old_segments(
                    now_ms, high_watermark(log.topic_partition)
                ),
                lambda: self.config.log_retention_check_interval_ms,
            ),
            Chore(lambda log, now_ms, _: log.remove_deleted_files(now_ms)),
            Chore(lambda log, now_ms, _: log.durability.request_if_due(now_ms, log.config.flush_ms)),
            Chore(self._forget_silent_producers, lambda: _PRODUCER_CHECK_INTERVAL_MS),
        )
        self._chores: Chores[Callable[[int], None]] = Chores(
            Chore(self._remove_deleted),
            Chore(lambda _: self.flusher.poll()),
            Chore(
                lambda _: self.flusher.checkpoint(), lambda: self.config.log_flush_start_offset_checkpoint_interval_ms
            ),
            Chore(lambda _: self.flusher.flush(), lambda: self.config.log_flush_offset_checkpoint_interval_ms),
        )

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        """The logs by partition."""
        return self.placed.by_partition

    @property
    def online_folders(self) -> tuple[str, ...]:
        """Ids and paths of the log folders that can be used: a copy of a folder has its id, and another path."""
        return tuple(each.identity for each in self.directories if each.is_online)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch in which all folders were closed cleanly before this start; -1 if there is none."""
        epochs = {each.closed_in_epoch if each.is_online else -1 for each in self.directories}
        return epochs.pop() if len(epochs) == 1 else -1

    # -- starting

    def start(self) -> None:
        """Lock the folders and open all logs; logs without a clean stop are recovered.

        A folder with a disk error is skipped, unless it is the first.

        Raises:
            LogDirError: A folder or a log cannot be opened.
        """
        try:
            self.cluster_id = open_directories(
                self.disk, self.config, self.prng, self._expected_cluster_id, self.directories, self._directory_failed
            )
            futures: list[FutureFolder] = []
            for directory in self.directories:
                if directory.is_online:
                    self._open_logs(directory, futures)
            self._adopt_futures(futures)
            # Only now: a deleted folder may have been the log that a future log replaces.
            self._remove_deleted(self._clock.now_ms())
        except BaseException:
            for directory in self.directories:
                directory.release()
            raise
        now_ms = self._clock.now_ms()
        self._log_chores.begin(now_ms)
        self._chores.begin(now_ms)
        self._is_started = True

    def _open_logs(self, directory: LogDirectory, futures: list[FutureFolder]) -> None:
        try:
            recovery_points = self._read_checkpoint(directory, RECOVERY_POINTS)
            start_offsets = self._read_checkpoint(directory, LOG_START_OFFSETS)
            default = TopicConfig.resolve({}, self.config)
            for entry in self.disk.listdir(directory.path):
                folder = parse_folder(entry.name) if entry.is_directory else None
                if folder is None:
                    continue
                path = f"{directory.path}/{entry.name}"
                topic_partition = folder.topic_partition
                if topic_partition is None:
                    self._removals.schedule(path, 0)
                elif folder.is_future:
                    futures.append(FutureFolder(topic_partition, path, directory))
                elif topic_partition not in self.logs or self._is_to_replace(directory, topic_partition, path):
                    self._open(
                        directory,
                        topic_partition,
                        read_partition_metadata(self.disk, path),
                        self._topic_configs.get(topic_partition.topic, default),
                        clean=directory.was_stopped_cleanly,
                        recovery_point=recovery_points.get(topic_partition, 0),
                        start_offset=start_offsets.get(topic_partition, 0),
                    )
        except LogDirError:
            raise
        except (OSError, ValueError) as error:
            if isinstance(error, OSError):
                directory.health.observe("open a log", error)
                if not directory.is_online and directory is not self.directories[0]:
                    return
            raise LogDirError(f"log folder {directory.path}: cannot open a log: {error}") from error

    def _is_to_replace(self, directory: LogDirectory, topic_partition: TopicPartition, path: str) -> bool:
        """Choose between two folders of one partition and move the other away; one that may be needed is kept.

        Raises:
            LogDirError: Either folder may be the log.
        """
        known, known_directory = self.logs[topic_partition], self.placed.directory_of(topic_partition)
        opened = Copy(known.directory, known.topic_id, known_directory)
        found = Copy(path, read_partition_metadata(self.disk, path), directory)
        topic_id = self._topic_ids.get(topic_partition.topic)
        directory_id = self._replica_directories.get(topic_partition)
        chosen = choose_copy(self.disk, opened, found, topic_id, directory_id)
        if chosen is None and self._has_log_in(directory_id, topic_partition):
            chosen = opened  # until that one is found
        if chosen is None and not directory_id and self._is_held_elsewhere(topic_partition):
            chosen = later_copy(self.disk, opened, found)
        if chosen is None:
            raise LogDirError(
                f"log folder {directory.path}: {topic_partition} is also in {known_directory.path}; move one of them "
                "away"
            )
        _logger.warning("%s has two folders; the log is %s", topic_partition, chosen.path)
        is_kept = is_to_keep(self.disk, found if chosen is opened else opened, chosen, directory_id)
        if chosen is opened:
            if is_kept:
                stray_path = f"{directory.path}/{stray_folder_name(topic_partition, self.prng)}"
                self.disk.rename(path, stray_path)
                _logger.warning("the other one is kept as %s; remove it if it is not needed", stray_path)
            else:
                self._move_away(topic_partition, path)
            return False
        if is_kept:
            stray_path = self.set_aside(topic_partition)
            _logger.warning("the other one is kept as %s; remove it if it is not needed", stray_path)
        else:
            self.delete(topic_partition)
        self._folder_work.wait()
        return True

    def _has_log_in(self, directory_id: str | None, topic_partition: TopicPartition) -> bool:
        """Whether the folder with an id is online and has a log of a partition."""
        return any(
            each.is_online and each.directory_id == directory_id and self.disk.exists(f"{each.path}/{topic_partition}")
            for each in self.directories
        )

    def _adopt_futures(self, futures: Sequence[FutureFolder]) -> None:
        all_online = all(directory.is_online for directory in self.directories)
        finished, interrupted = sort_futures(self.disk, futures, set(self.logs), all_online=all_online)
        for future, replaces in finished:
            topic_partition, path, directory = future
            new_path = f"{directory.path}/{topic_partition}"
            self.disk.rename(path, new_path)
            self._open(
                directory,
                topic_partition,
                read_partition_metadata(self.disk, new_path),
                self._topic_configs.get(topic_partition.topic, TopicConfig.resolve({}, self.config)),
                clean=False,
                recovery_point=0,
                start_offset=replaces.log_start_offset,
            )
            _logger.info("%s has moved to %s", topic_partition, directory.path)
        for future in interrupted:
            self.interrupted_moves[future.topic_partition] = future.directory.path
            self._move_away(future.topic_partition, future.path)

    # -- logs come and go

    def create(self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig) -> Log:
        """Create the log of a new partition in the folder with the fewest logs; an existing log gets the configs.

        Raises:
            LogDirError: The folder cannot be written.
        """
        existing = self.logs.get(topic_partition)
        if existing is not None:
            assert existing.topic_id in (topic_id, NO_TOPIC_ID), f"{topic_partition} exists with another topic id"
            if existing.topic_id == NO_TOPIC_ID:
                existing.take_topic_id(topic_id)
            existing.configure(config)
            return existing
        made = self._folder_work.take(topic_partition, topic_id)
        if made is None or (isinstance(made.result, Log) and not made.directory.is_online):
            self._folder_work.wait()
            wanted = NewLog(topic_partition, topic_id, config)
            place = self._place(wanted)
            made = make_log(self.disk, wanted, place, self.post)
            if made.has_left_over:
                self._note_left_over(wanted, place)
        directory, log = made.directory, made.result
        if isinstance(log, OSError):
            directory.health.observe(f"create a log in {directory.path}", log)
            raise LogDirError(f"cannot create the log of {topic_partition} in {directory.path}: {log.strerror}")
        if log.config is not config:
            log.configure(config)
        self.placed.put(log, directory)
        self.preferred_paths.pop(topic_partition, None)
        return log

    async def make(self, wanted: Sequence[NewLog]) -> None:
        """Create the files of logs outside the event loop; `create` then takes over each log, or raises its error."""
        # A log that only could not be changed is there: as a left-over, its folder would be removed.
        wanted = [each for each in wanted if each.topic_partition not in self.logs]
        await self._folder_work.make(wanted, self._place, self._note_left_over)

    def discard_made(self) -> None:
        """Delete the logs that `make` created and `create` did not take over."""
        renames = []
        for directory, log in self._folder_work.take_rest():
            renames.append((directory, log.directory, self._path_of_deleted(log)))
        self._folder_work.rename(renames)

    def delete(self, *topic_partitions: TopicPartition) -> None:
        """Delete logs; their files are removed after file.delete.delay.ms. A missing log is ignored.

        The logs are removed from `logs` on return; their folders are renamed outside the event loop.
        """
        renames = []
        for topic_partition in topic_partitions:
            log = self.logs.get(topic_partition)
            if log is not None:
                renames.append((self._forget(log), log.directory, self._path_of_deleted(log)))
        self._folder_work.rename(renames)

    def set_aside(self, topic_partition: TopicPartition) -> str:
        """Remove a log but keep its files under a name that no broker opens; return the new path of its folder.

        The log is removed from `logs` on return; its folder is renamed outside the event loop.
        """
        log = self.logs[topic_partition]
        directory = self._forget(log)
        path = f"{directory.path}/{stray_folder_name(topic_partition, self.prng)}"
        self._folder_work.rename([(directory, log.directory, path)])
        return path

    def _forget(self, log: Log) -> LogDirectory:
        directory = self.placed.remove(log)
        log.abandon()
        return directory

    def directory_of(self, topic_partition: TopicPartition) -> LogDirectory:
        """Return the folder of a log.

        Raises:
            KeyError: There is no log of the partition.
        """
        return self.placed.directory_of(topic_partition)

    def directory_at(self, path: str) -> LogDirectory | None:
        """Return the folder of `log.dirs` with this path, configured or absolute; None if there is no such folder."""
        return next((each for each in self.directories if path in (each.path, os.path.abspath(each.path))), None)

    def observe(self, path: str, error: OSError) -> None:
        """Take a folder offline if an error of reading one of its logs concerns the folder."""
        for directory in self.directories:
            if path.startswith(f"{directory.path}/"):
                directory.health.observe(f"read {path}", error)

    def begin_future(self, topic_partition: TopicPartition, directory: LogDirectory) -> str:
        """Create the folder for the copy of a log in another log folder; return its path."""
        log = self.logs[topic_partition]
        remove_marker(self.disk, log.directory)
        path = f"{directory.path}/{future_folder_name(topic_partition, self.prng)}"
        self.disk.makedirs(path)
        write_partition_metadata(self.disk, path, log.topic_id)
        return path

    def replace(self, future: Log, directory: LogDirectory) -> None:
        """Replace a log by its complete, marked copy in another folder (see `replica_folders`).

        The copy is open and two folders are renamed; no other step can fail. After an OSError the old log is unchanged,
        unless its folder went offline: then the copy must stay, since the next start opens it as the log.
        """
        topic_partition = future.topic_partition
        old, old_directory = self.logs[topic_partition], self.placed.directory_of(topic_partition)
        path = f"{directory.path}/{topic_partition}"
        deleted_path = self._removals.path_beside(old.directory, topic_partition)
        self.disk.rename(old.directory, deleted_path)
        try:
            self.disk.rename(future.directory, path)
        except OSError:
            self._rename_back(deleted_path, old.directory, old_directory)
            raise
        future.note_moved(path, self._draw_jitter_ms(old.config))
        future.configure(old.config)
        self.placed.put(future, directory)
        self._removals.schedule(deleted_path, old.config.file_delete_delay_ms)
        # Records awaited on the old disk are on the new disk.
        old.durability.hand_over()
        old.abandon()
        self.disk.in_background(partial(_settle, self.disk, old_directory.path, path))
        self.flusher.checkpoint()
        if self.on_moved is not None:
            self.on_moved(topic_partition)

    def _rename_back(self, path: str, old_path: str, directory: LogDirectory) -> None:
        """Restore the old name; a log in a folder named as deleted must accept no records.

        The next start removes such a folder. If the rename fails, the log folder goes offline.
        """
        try:
            self.disk.rename(path, old_path)
        except OSError as error:
            directory.health.fail(f"cannot rename {path} back to {old_path}: {error.strerror or error}")

    # -- while it runs

    def configure(self, config: BrokerConfig) -> None:
        """Apply changed dynamic configs of the broker."""
        self.config = config

    def maintain(self, now_ms: int, high_watermark: HighWatermark) -> None:
        """Roll by time, apply retention, remove deleted files, expire producers, flush and write checkpoints.

        Retention deletes only records below a partition's `high_watermark`. Each task runs at its own interval, however
        often this is called. A failure of one task of a log is logged; the remaining tasks and logs are still
        processed: on a full disk retention frees space.
        """
        of_logs = list(self._log_chores.due(now_ms))
        for topic_partition, log in list(self.logs.items()):
            for do in of_logs:
                if self.logs.get(topic_partition) is not log:
                    break  # its folder has just gone offline
                try:
                    do(log, now_ms, high_watermark)
                except (OSError, ValueError, KafkaError) as error:
                    _logger.error("%s: maintenance failed: %s", topic_partition, error)
                    if isinstance(error, OSError):
                        log.health.observe(f"maintain {log.directory}", error)
        for chore in self._chores.due(now_ms):
            chore(now_ms)

    def _forget_silent_producers(self, log: Log, now_ms: int, _: HighWatermark) -> None:
        log.producers.remove_expired(now_ms, self.config.producer_id_expiration_ms)

    def _directory_failed(self, directory: LogDirectory) -> None:
        """Remove the logs of a failed folder; call `on_fatal` for a single node's metadata, or the last folder."""
        gone = []
        for log in self.placed.in_directory(directory):
            gone.append(log.topic_partition)
            self._forget(log)
        if not self._is_started:
            return
        if self.on_offline is not None:
            self.on_offline(gone)
        if self.on_failed_directory is not None:
            self.on_failed_directory(directory, gone)
        reason = directory.health.failure
        if self._on_fatal is not None:
            if directory is self.directories[0] and self.config.zookeeper_connect is None:
                self._on_fatal(f"log folder {directory.path}, which holds the metadata, is offline: {reason}")
            elif not any(each.is_online for each in self.directories):
                self._on_fatal(f"all folders of log.dirs are offline; the last one, {directory.path}: {reason}")

    # -- stopping

    def close(self) -> None:
        """Sync every log, write checkpoints and the clean-stop marker, and unlock the folders.

        A folder with a log that cannot be synced gets no marker: the next start checks it.
        """
        self.flusher.close()
        self._folder_work.close()
        broker_epoch = self.previous_broker_epoch if self.broker_epoch is None else self.broker_epoch()
        try:
            for directory in self.directories:
                if directory.is_online:
                    stop_cleanly(self.disk, directory, self.placed.in_directory(directory), broker_epoch)
        finally:
            for directory in self.directories:
                directory.release()
            self.directories.clear()
            self.placed = PlacedLogs()

    # -- folders

    def _remove_deleted(self, now_ms: int) -> None:
        """Remove the folders of deleted logs whose delay has passed, once all renames are done."""
        self._folder_work.poll()
        if self._folder_work.has_renamed_all:
            self._removals.remove_due(now_ms)

    def _path_of_deleted(self, log: Log) -> str:
        """Return the new name of a deleted log's folder, and schedule its removal."""
        path = self._removals.path_beside(log.directory, log.topic_partition)
        self._removals.schedule(path, log.config.file_delete_delay_ms)
        return path

    def _place(self, wanted: NewLog) -> Place:
        topic_partition, _, config = wanted
        directory = self._directory_for(topic_partition)
        path = f"{directory.path}/{topic_partition}"
        return Place(
            directory,
            path,
            self._removals.path_beside(path, topic_partition),
            self._draw_jitter_ms(config),
            self._clock.now_ms(),
        )

    def _note_left_over(self, wanted: NewLog, place: Place) -> None:
        self._removals.schedule(place.path_of_left_over, wanted.config.file_delete_delay_ms)

    def _draw_jitter_ms(self, config: TopicConfig) -> int:
        return self.prng.randrange(config.segment_jitter_ms) if config.segment_jitter_ms else 0

    def _move_away(self, topic_partition: TopicPartition, path: str) -> None:
        """Rename a log's folder as deleted, to be removed at once."""
        new_path = self._removals.path_beside(path, topic_partition)
        self.disk.rename(path, new_path)
        self._removals.schedule(new_path, 0)

    def _directory_for(self, topic_partition: TopicPartition) -> LogDirectory:
        online = [directory for directory in self.directories if directory.is_online]
        if not online:
            raise LogDirError(f"cannot create the log of {topic_partition}: all folders of log.dirs are offline")
        preferred = self.preferred_paths.get(topic_partition)
        for directory in online:
            if directory.path == preferred:
                return directory
        placed = self._folder_work.placed
        return min(online, key=lambda directory: self.placed.count_in(directory) + placed[directory.path])

    def _open(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        *,
        clean: bool,
        recovery_point: int,
        start_offset: int,
    ) -> Log:
        log = open_log(
            self.disk,
            f"{directory.path}/{topic_partition}",
            topic_partition,
            topic_id,
            config,
            was_stopped_cleanly=clean,
            recovery_point=recovery_point,
            log_start_offset=start_offset,
            now_ms=self._clock.now_ms(),
            roll_jitter_ms=self._draw_jitter_ms(config),
            health=directory.health,
            post=self.post,
        )
        self.placed.put(log, directory)
        return log

    def _read_checkpoint(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        try:
            return read_checkpoint(self.disk, directory.path, name)
        except ValueError as error:
            # Without the checkpoint recovery checks more, and records deleted by DeleteRecords may reappear.
            _logger.warning("%s; the file is written again", error)
            return {}


def _settle(disk: Disk, old_directory: str, path: str) -> None:
    """Remove the marker of a finished move when both names are on the device."""
    try:
        disk.fsync_directory(old_directory)
        disk.fsync_directory(os.path.dirname(path))
        remove_marker(disk, path)
    except OSError as error:
        _logger.warning("%s: the marker of the finished move cannot be removed: %s", path, error)
