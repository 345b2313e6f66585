"""All logs of a broker, in the folders of `log.dirs`."""

import logging
import os
import random
import re
import uuid
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from logtier.config import BrokerConfig, TopicConfig
from logtier.log.checkpoints import LOG_START_OFFSETS, RECOVERY_POINTS, read_checkpoint, write_checkpoint
from logtier.log.log import Log
from logtier.log.log_directory import LogDirectory, LogDirError
from logtier.log.recovery import open_log
from logtier.protocol.errors import KafkaError
from logtier.protocol.topic_partition import TopicPartition
from logtier.protocol.uuids import from_text, to_text
from logtier.runtime.clock import Clock
from logtier.runtime.disk import Disk

__all__ = ["LogDirError", "LogManager"]

_logger = logging.getLogger(__name__)

PARTITION_METADATA: Final = "partition.metadata"
NO_TOPIC_ID: Final = UUID(int=0)
_PARTITION_DIRECTORY: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,10})")
_DELETED_DIRECTORY: Final = re.compile(r".+\.[0-9a-f]{32}-delete")
_DELETED_SUFFIX: Final = "-delete"
_FILE_NAME_BYTES_MAX: Final = 255

# How often checkpoints are written while the broker runs (Kafka's log.flush.offset.checkpoint.interval.ms), and how
# often silent producers are forgotten (Kafka's producer.id.expiration.check.interval.ms).
_CHECKPOINT_INTERVAL_MS: Final = 60_000
_PRODUCER_CHECK_INTERVAL_MS: Final = 600_000


class LogManager:
    """Owns the log folders and every log in them.

    Invariants: a folder is locked for as long as this object has it open; `logs` holds one log for each partition
    folder; the clean-stop marker exists only while no broker runs and every log is on the device. Files in each
    folder: see `log_directory` and `checkpoints`; a deleted partition's folder is named
    `<topic>-<partition>.<hex>-delete` until it is removed. The broker starts, maintains and closes it; the replica
    manager creates and deletes logs.
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
    ) -> None:
        """`cluster_id`: the cluster the folders must belong to; None takes theirs, or a new one.

        `topic_configs`: the configs of topics that have their own, if they are known before the start; otherwise
        whoever knows them sets `Log.config` after it, before the first `maintain`.
        """
        self.config = config
        self.logs: dict[TopicPartition, Log] = {}
        self.cluster_id = cluster_id or ""
        self._expected_cluster_id = cluster_id
        self._disk = disk
        self._clock = clock
        self._prng = prng
        self._topic_configs = dict(topic_configs or {})
        self._directories: list[LogDirectory] = []
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self._deleted: list[tuple[int, str]] = []
        self._checkpointed_ms = 0
        self._producers_checked_ms = 0
        self._retention_checked_ms = 0
        self._checkpoints: dict[tuple[str, str], dict[TopicPartition, int]] = {}

    def start(self) -> None:
        """Lock the folders and open all logs; those that were not stopped cleanly are recovered. Raises LogDirError."""
        try:
            for path in self.config.log_dirs:
                directory = LogDirectory(self._disk, path)
                directory.open(node_id=self.config.node_id, cluster_id=self._expected_cluster_id, prng=self._prng)
                self._directories.append(directory)
                self._expected_cluster_id = self.cluster_id = directory.cluster_id
            for directory in self._directories:
                self._open_logs(directory)
        except BaseException:
            for directory in self._directories:
                directory.release()
            raise
        now_ms = self._clock.now_ms()
        self._checkpointed_ms = self._producers_checked_ms = self._retention_checked_ms = now_ms

    def create(self, topic_partition: TopicPartition, topic_id: UUID, config: TopicConfig) -> Log:
        """Begin the log of a new partition, in the folder with the fewest logs; return the one that exists, if it does.

        Raises LogDirError when the folder cannot be written.
        """
        existing = self.logs.get(topic_partition)
        if existing is not None:
            assert existing.topic_id in (topic_id, NO_TOPIC_ID), f"{topic_partition} exists with another topic id"
            if existing.topic_id == NO_TOPIC_ID:
                self._write_partition_metadata(existing.directory, topic_id)
                existing.topic_id = topic_id
            existing.config = config
            return existing
        directory = self._emptiest()
        path = f"{directory.path}/{topic_partition}"
        try:
            if self._disk.exists(path):
                # Left behind by a deletion or a creation that the disk failed: none of it may show in the new log.
                self._move_away(topic_partition, path, config.file_delete_delay_ms)
            self._disk.makedirs(path)
            self._write_partition_metadata(path, topic_id)
            log = self._open(directory, topic_partition, topic_id, config, clean=True, recovery_point=0, start_offset=0)
        except OSError as error:
            raise LogDirError(f"cannot create the log of {topic_partition} in {path}: {error.strerror}") from None
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take a log away; its files go after file.delete.delay.ms. One that does not exist is fine."""
        log = self.logs.pop(topic_partition, None)
        if log is None:
            return
        del self._directory_of[topic_partition]
        log.release()
        self._move_away(topic_partition, log.directory, log.config.file_delete_delay_ms)

    def maintain(self, now_ms: int) -> None:
        """Roll by time, delete by retention, remove deleted files, forget silent producers, write checkpoints.

        Each at its own interval, however often this is called; retention at `log.retention.check.interval.ms`. A log
        that fails is reported and does not keep the others from their turn.
        """
        check_producers = now_ms - self._producers_checked_ms >= _PRODUCER_CHECK_INTERVAL_MS
        if check_producers:
            self._producers_checked_ms = now_ms
        check_retention = now_ms - self._retention_checked_ms >= self.config.log_retention_check_interval_ms
        if check_retention:
            self._retention_checked_ms = now_ms
        for log in list(self.logs.values()):
            try:
                self._maintain_log(log, now_ms, check_producers=check_producers, check_retention=check_retention)
            except (OSError, ValueError, KafkaError) as error:
                _logger.error("%s: maintenance failed: %s", log.topic_partition, error)
        due = [path for deadline_ms, path in self._deleted if deadline_ms <= now_ms]
        self._deleted = [(deadline_ms, path) for deadline_ms, path in self._deleted if deadline_ms > now_ms]
        for path in due:
            try:
                self._disk.rmtree(path)
            except OSError as error:
                _logger.error("%s is not removed before the next start: %s", path, error)
        if now_ms - self._checkpointed_ms >= _CHECKPOINT_INTERVAL_MS:
            self._checkpointed_ms = now_ms
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write the recovery points and log start offsets where they changed."""
        for directory in self._directories:
            logs = {tp: log for tp, log in self.logs.items() if self._directory_of[tp] is directory}
            self._write_checkpoint(directory, RECOVERY_POINTS, {tp: log.recovery_point for tp, log in logs.items()})
            self._write_checkpoint(
                directory,
                LOG_START_OFFSETS,
                {tp: log.log_start_offset for tp, log in logs.items() if log.log_start_offset > 0},
            )

    def close(self) -> None:
        """Bring every log to the device, write checkpoints and the clean-stop marker, and give the folders up.

        A folder of which a log cannot be brought to the device gets no marker: the next start then checks it.
        """
        failed: set[str] = set()
        for topic_partition, log in self.logs.items():
            try:
                log.close()
            except (OSError, ValueError, KafkaError) as error:
                _logger.error("%s: cannot be closed: %s", topic_partition, error)
                failed.add(self._directory_of[topic_partition].path)
        for _, path in self._deleted:
            self._disk.rmtree(path)
        self._deleted = []
        try:
            self.checkpoint()
            for directory in self._directories:
                if directory.path not in failed:
                    directory.mark_stopped_cleanly()
        finally:
            for directory in self._directories:
                directory.release()
            self._directories = []
            self.logs = {}

    def _move_away(self, topic_partition: TopicPartition, path: str, delay_ms: int) -> None:
        suffix = f".{uuid.UUID(int=self._prng.getrandbits(128), version=4).hex}{_DELETED_SUFFIX}"
        name = f"{str(topic_partition)[: _FILE_NAME_BYTES_MAX - len(suffix)]}{suffix}"
        new_path = f"{os.path.dirname(path)}/{name}"
        self._disk.rename(path, new_path)
        self._deleted.append((self._clock.now_ms() + delay_ms, new_path))

    def _maintain_log(self, log: Log, now_ms: int, *, check_producers: bool, check_retention: bool) -> None:
        log.poll_syncs()
        log.maybe_roll(now_ms)
        if check_retention:
            log.delete_old_segments(now_ms)
        log.remove_deleted_files(now_ms)
        log.flush_if_due(now_ms)
        if check_producers:
            log.producers.remove_expired(now_ms, self.config.producer_id_expiration_ms)

    def _open_logs(self, directory: LogDirectory) -> None:
        recovery_points = self._read_checkpoint(directory, RECOVERY_POINTS)
        start_offsets = self._read_checkpoint(directory, LOG_START_OFFSETS)
        default = TopicConfig.resolve({}, self.config)
        for entry in self._disk.listdir(directory.path):
            if not entry.is_directory:
                continue
            path = f"{directory.path}/{entry.name}"
            if _DELETED_DIRECTORY.fullmatch(entry.name):
                self._disk.rmtree(path)
                continue
            match = _PARTITION_DIRECTORY.fullmatch(entry.name)
            if match is None:
                continue
            topic_partition = TopicPartition(match[1], int(match[2]))
            if topic_partition in self.logs:
                raise LogDirError(
                    f"log folder {directory.path}: {topic_partition} is also in "
                    f"{self._directory_of[topic_partition].path}; move one of them away"
                )
            try:
                self._open(
                    directory,
                    topic_partition,
                    self._read_partition_metadata(path),
                    self._topic_configs.get(topic_partition.topic, default),
                    clean=directory.was_stopped_cleanly,
                    recovery_point=recovery_points.get(topic_partition, 0),
                    start_offset=start_offsets.get(topic_partition, 0),
                )
            except (OSError, ValueError) as error:
                raise LogDirError(f"log folder {directory.path}: cannot open {entry.name}: {error}") from error

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
            self._disk,
            f"{directory.path}/{topic_partition}",
            topic_partition,
            topic_id,
            config,
            was_stopped_cleanly=clean,
            recovery_point=recovery_point,
            log_start_offset=start_offset,
            now_ms=self._clock.now_ms(),
            roll_jitter_ms=self._prng.randrange(config.segment_jitter_ms) if config.segment_jitter_ms else 0,
        )
        self.logs[topic_partition] = log
        self._directory_of[topic_partition] = directory
        return log

    def _emptiest(self) -> LogDirectory:
        counts = {directory.path: 0 for directory in self._directories}
        for directory in self._directory_of.values():
            counts[directory.path] += 1
        return min(self._directories, key=lambda directory: counts[directory.path])

    def _read_checkpoint(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        try:
            return read_checkpoint(self._disk, directory.path, name)
        except ValueError as error:
            # Without it more is checked than need be, and records that DeleteRecords hid may show again.
            _logger.warning("%s; it is written anew", error)
            return {}

    def _write_checkpoint(self, directory: LogDirectory, name: str, offsets: dict[TopicPartition, int]) -> None:
        if self._checkpoints.get((directory.path, name)) != offsets:
            write_checkpoint(self._disk, directory.path, name, offsets)
            self._checkpoints[directory.path, name] = offsets

    def _write_partition_metadata(self, path: str, topic_id: UUID) -> None:
        content = f"version: 0\ntopic_id: {to_text(topic_id)}"
        self._disk.write_atomic(f"{path}/{PARTITION_METADATA}", content.encode(), sync=False)

    def _read_partition_metadata(self, path: str) -> UUID:
        """Return the topic's id; NO_TOPIC_ID if the file was lost, in which case `create` supplies it."""
        try:
            lines = self._disk.read(f"{path}/{PARTITION_METADATA}").decode().splitlines()
            version, topic_id = (line.partition(": ")[2].strip() for line in lines)
            if version != "0":
                raise ValueError(f"version {version}")
            return from_text(topic_id)
        except FileNotFoundError:
            return NO_TOPIC_ID
        except ValueError as error:
            _logger.warning("%s/%s is damaged: %s", path, PARTITION_METADATA, error)
            return NO_TOPIC_ID
