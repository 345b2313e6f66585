"""The log folders as administrators see them: what is in them, and replicas that move between them (KIP-113)."""

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
# A move that retention or compaction interrupts is begun anew so often; the bigger the log, the likelier they are.
_ATTEMPTS_MAX: Final = 5


class ReplicaOnDisk(NamedTuple):
    """A log, or its copy that is under way, in a folder."""

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
    """What is needed of the replica manager."""

    def log(self, topic_partition: TopicPartition) -> Log:
        """The local log of a partition; raises KafkaError."""

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the log of a partition is in a folder that is offline."""

    def replace_log(self, topic_partition: TopicPartition, log: Log) -> None:
        """From now on another log is the partition's."""


class LogDirs:
    """Describes the log folders and moves replicas between them, one task a move. Called from the event loop only."""

    def __init__(self, log_manager: LogManager, replicas: LogDirReplicas, clock: Clock) -> None:
        self._log_manager = log_manager
        self._replicas = replicas
        self._clock = clock
        self._moves: dict[TopicPartition, tuple[ReplicaMove, asyncio.Task[None]]] = {}
        self._throttle = CopyThrottle()

    def limit_moves(self, bytes_per_second: int) -> None:
        """Have all moves together copy no faster from now on (`replica.alter.log.dirs.io.max.bytes.per.second`)."""
        self._throttle.change_rate(bytes_per_second, self._clock.monotonic_ms())

    @property
    def metadata_directory_id(self) -> str:
        """The id of the folder that has the cluster's metadata: the first one."""
        return self._log_manager.directories[0].directory_id

    def describe(self, wanted: Collection[TopicPartition] | None) -> list[LogDirDescription]:
        """Every folder of `log.dirs` with the replicas in it, or those of them that are wanted."""
        manager = self._log_manager
        found: dict[str, list[ReplicaOnDisk]] = {directory.path: [] for directory in manager.directories}
        for topic_partition, log in manager.logs.items():
            if wanted is None or topic_partition in wanted:
                path = manager.directory_of(topic_partition).path
                # One replica: all that is in the log is below the high watermark.
                found[path].append(ReplicaOnDisk(topic_partition, log.size_bytes, 0, False))
        for topic_partition, (move, _) in self._moves.items():
            if wanted is None or topic_partition in wanted:
                found[move.directory.path].append(
                    ReplicaOnDisk(topic_partition, move.copied_bytes, move.offset_lag, True)
                )
        return [_describe(directory, found[directory.path]) for directory in manager.directories]

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Have a replica moved to the folder at `path`; one that does not exist yet is made there.

        Returns when the move has begun: `describe` tells how far it is. A move to another folder ends one under way.

        Raises:
            KafkaError: invalid_topic_exception (a name too long for the folder of a copy), log_dir_not_found,
                kafka_storage_error, unknown_topic_or_partition.
        """
        manager = self._log_manager
        if len(future_folder_name(topic_partition, manager.prng)) > FILE_NAME_BYTES_MAX:
            raise KafkaError(ErrorCode.invalid_topic_exception, "The topic name is too long.")
        directory = manager.directory_at(path)
        if directory is None:
            raise KafkaError(ErrorCode.log_dir_not_found, f"{path} is none of log.dirs")
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
                f"{topic_partition} is not here; if it comes, it will be in {path}",
            )
        if manager.directory_of(topic_partition) is not directory and topic_partition not in self._moves:
            self._begin(topic_partition, directory)

    def resume(self) -> None:
        """Begin the moves anew that the last stop interrupted."""
        for topic_partition, path in self._log_manager.interrupted_moves.items():
            directory = self._log_manager.directory_at(path)
            if directory is not None and topic_partition in self._log_manager.logs:
                self._begin(topic_partition, directory)
        self._log_manager.interrupted_moves.clear()

    def cancel(self, topic_partition: TopicPartition) -> None:
        """End a move: its replica goes away, or elsewhere. None under way is fine."""
        under_way = self._moves.pop(topic_partition, None)
        if under_way is not None:
            under_way[1].cancel()

    async def stop(self) -> None:
        """End all moves; the next start begins them anew."""
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
            logger.error("%s does not move to %s: it changed too often below the copy", topic_partition, directory.path)
        except MoveInterruptedError:
            logger.error("%s does not move to %s: its log went away", topic_partition, directory.path)
        except (OSError, KafkaError) as error:
            logger.error("%s does not move to %s: %s", topic_partition, directory.path, error)
            if isinstance(error, OSError):
                directory.health.observe(f"move {topic_partition}", error)
        except Exception:
            logger.exception("%s does not move to %s", topic_partition, directory.path)
        finally:
            mine = self._moves.get(topic_partition)
            if mine is not None and mine[0] is move:
                del self._moves[topic_partition]


def _describe(directory: LogDirectory, replicas: Sequence[ReplicaOnDisk]) -> LogDirDescription:
    file_system = directory.file_system
    if not directory.is_online or file_system is None:
        return LogDirDescription(directory.path, ErrorCode.kafka_storage_error, (), _UNKNOWN_BYTES, _UNKNOWN_BYTES)
    try:
        total_bytes, usable_bytes = file_system.total_bytes, file_system.usable_bytes
    except OSError as error:
        directory.health.observe("ask for the size of the file system", error)
        total_bytes = usable_bytes = _UNKNOWN_BYTES
    return LogDirDescription(directory.path, ErrorCode.none, replicas, total_bytes, usable_bytes)
