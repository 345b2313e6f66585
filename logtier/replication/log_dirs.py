"""Administration of the log folders: their content, and moves of replicas between them (KIP-113)."""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.log.folders.log_folders import FILE_NAME_BYTES_MAX, future_folder_name
from headwater.logtier.log.log import Log
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.protocol.errors import ErrorCode, KafkaError
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.copy_throttle import CopyThrottle
from headwater.logtier.replication.replica_move import MoveInterruptedError, ReplicaMove
from headwater.logtier.runtime.clock import Clock

logger = logging.getLogger(__name__)

_UNKNOWN_BYTES: Final = -1
_INVALID_LAG: Final = -1
# Attempts of a move interrupted by retention or compaction, which are more likely for large logs.
_ATTEMPTS_MAX: Final = 5


class ReplicaOnDisk(NamedTuple):
    """A log, or its future copy, in a folder."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """A log folder; sizes are those of its file system, -1 if it is offline."""

    path: str
    error_code: ErrorCode
    replicas: Sequence[ReplicaOnDisk]
    total_bytes: int
    usable_bytes: int


class LogDirReplicas(Protocol):
    """The functions of the replica manager used here."""

    def log(self, topic_partition: TopicPartition) -> Log:
        """Return the local log of a partition. Raises KafkaError."""

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the log of a partition is in an offline folder."""

    def replace_log(self, topic_partition: TopicPartition, log: Log) -> None:
        """Set the log of a partition."""


class LogDirs:
    """Describes the log folders and moves replicas between them, one task per move. Called from the event loop only."""

    def __init__(self, log_manager: LogManager, replicas: LogDirReplicas, clock: Clock) -> None:
        self._log_manager = log_manager
        self._replicas = replicas
        self._clock = clock
        self._moves: dict[TopicPartition, tuple[ReplicaMove, asyncio.Task[None]]] = {}
        self._throttle = CopyThrottle()

    def limit_moves(self, bytes_per_second: int) -> None:
        """Set the rate limit of all moves together (`replica.alter.log.dirs.io.max.bytes.per.second`)."""
        self._throttle.change_rate(bytes_per_second, self._clock.monotonic_ms())

    @property
    def metadata_directory_id(self) -> str:
        """Directory id of the folder with the cluster's metadata, the first one."""
        return self._log_manager.directories[0].directory_id

    def describe(self, wanted: Collection[TopicPartition] | None) -> list[LogDirDescription]:
        """Return every folder of `log.dirs` with its replicas, restricted to `wanted` if given."""
        manager = self._log_manager
        found: dict[str, list[ReplicaOnDisk]] = {directory.path: [] for directory in manager.directories}
        for topic_partition, log in manager.logs.items():
            if wanted is None or topic_partition in wanted:
                path = manager.directory_of(topic_partition).path
                # With one replica, the whole log is below the high watermark.
                found[path].append(ReplicaOnDisk(topic_partition, log.size_bytes, 0, False))
        for topic_partition, (move, _) in self._moves.items():
            if wanted is None or topic_partition in wanted:
                found[move.directory.path].append(
                    ReplicaOnDisk(topic_partition, move.copied_bytes, move.offset_lag, True)
                )
        return [_describe(directory, found[directory.path]) for directory in manager.directories]

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Move a replica to the folder at `path`; a replica that does not exist yet will be created there.

        Returns when the move has begun; `describe` reports its progress. A move to another folder cancels a running
        one.

        Raises:
            KafkaError: invalid_topic_exception (a name too long for the folder of a copy), log_dir_not_found,
                kafka_storage_error, unknown_topic_or_partition.
        """
        manager = self._log_manager
        if len(future_folder_name(topic_partition, manager.prng)) > FILE_NAME_BYTES_MAX:
            raise KafkaError(ErrorCode.invalid_topic_exception, "The topic name is too long.")
        directory = manager.directory_at(path)
        if directory is None:
            raise KafkaError(ErrorCode.log_dir_not_found, f"{path} is not a folder of log.dirs")
        if not directory.is_online:
            raise KafkaError(ErrorCode.kafka_storage_error, f"log folder {path} is offline")
        if self._replicas.is_offline(topic_partition):
            raise KafkaError(ErrorCode.kafka_storage_error, f"the log of {topic_partition} is offline")
        under_way = self._moves.get(topic_partition)
        if under_way is not None and under_way[0].directory is not directory:
            self.cancel(topic_partition)
        if topic_partition not in manager.logs:
            manager.preferred_paths[topic_partition] = directory.path
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"{topic_partition} does not exist on this broker; it will be created in {path}",
            )
        if manager.directory_of(topic_partition) is not directory and topic_partition not in self._moves:
            self._begin(topic_partition, directory)

    def resume(self) -> None:
        """Restart the moves interrupted by the last stop."""
        for topic_partition, path in self._log_manager.interrupted_moves.items():
            directory = self._log_manager.directory_at(path)
            if directory is not None and topic_partition in self._log_manager.logs:
                self._begin(topic_partition, directory)
        self._log_manager.interrupted_moves.clear()

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Cancel a move because its replica is removed or moves elsewhere; no running move is fine."""
        under_way = self._moves.pop(topic_partition, None)
        if under_way is not None:
            under_way[1].cancel()

    async def stop(self) -> None:
        """Cancel all moves; the next start restarts them."""
        tasks = []
        for move, task in self._moves.values():
            move.keep_folder = True
            task.cancel()
            tasks.append(task)
        self._moves.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        move = self._move(topic_partition, directory)
        logger.info("%s moves to %s", topic_partition, directory.path)
        self._moves[topic_partition] = (move, asyncio.create_task(self._run(move)))

    def _move(self, topic_partition: TopicPartition, directory: LogDirectory) -> ReplicaMove:
        return ReplicaMove(topic_partition, self._log_manager, directory, self._clock, self._throttle)

    async def _run(self, move: ReplicaMove) -> None:
        topic_partition, directory = move.topic_partition, move.directory
        try:
            for _ in range(_ATTEMPTS_MAX):
                try:
                    log = await move.run()
                except MoveInterruptedError:
                    if topic_partition not in self._log_manager.logs:
                        raise
                    move = self._move(topic_partition, directory)
                    self._moves[topic_partition] = (move, self._moves[topic_partition][1])
                else:
                    self._replicas.replace_log(topic_partition, log)
                    logger.info("%s has moved to %s", topic_partition, directory.path)
                    return
            logger.error(
                "%s is not moved to %s: the log changed too often during the copy", topic_partition, directory.path
            )
        except MoveInterruptedError:
            logger.error("%s is not moved to %s: the log was removed", topic_partition, directory.path)
        except (OSError, KafkaError) as error:
            logger.error("%s is not moved to %s: %s", topic_partition, directory.path, error)
            if isinstance(error, OSError):
                directory.health.observe(f"move {topic_partition}", error)
        except Exception:
            logger.exception("%s is not moved to %s", topic_partition, directory.path)
        finally:
            mine = self._moves.get(topic_partition)
            if mine is not None and mine[0] is move:
                del self._moves[topic_partition]


def _describe(directory: LogDirectory, replicas: Sequence[ReplicaOnDisk]) -> LogDirDescription:
    volume = directory.volume
    if not directory.is_online or volume is None:
        return LogDirDescription(directory.path, ErrorCode.kafka_storage_error, (), _UNKNOWN_BYTES, _UNKNOWN_BYTES)
    try:
        total_bytes, usable_bytes = volume.total_bytes, volume.usable_bytes
    except OSError as error:
        directory.health.observe("read the size of the file system", error)
        total_bytes = usable_bytes = _UNKNOWN_BYTES
    return LogDirDescription(directory.path, ErrorCode.none, replicas, total_bytes, usable_bytes)
