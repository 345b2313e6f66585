"""The offset checkpoints of a log folder: small text files with one offset per partition."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from headwater.logtier.log.folders.log_directory import LogDirectory
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.disk import Completion, Disk

logger = logging.getLogger(__name__)

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
_VERSION: Final = 0


def read_checkpoint(disk: Disk, directory: str, name: str) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint by partition; {} if there is none.

    The format is Kafka's: version, count, then `topic partition offset` a line.

    Raises:
        ValueError: The file is damaged.
    """
    path = f"{directory}/{name}"
    try:
        text = disk.read(path).decode()
    except FileNotFoundError:
        return {}
    try:
        version, count, *lines = text.splitlines()
        offsets: dict[TopicPartition, int] = {}
        for line in lines:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        if int(version) != _VERSION or int(count) != len(offsets):
            raise ValueError(f"version {version}, {count} entries against {len(offsets)}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return offsets


def read_checkpoint_or_warn(
    disk: Disk, directory: LogDirectory, name: str, consequence: str
) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint; {} also if it cannot be read, which is logged with the consequence."""
    try:
        return read_checkpoint(disk, directory.path, name)
    except (OSError, ValueError) as error:
        logger.warning("%s: %s", error, consequence)
        if isinstance(error, OSError):
            directory.health.observe(f"read {name}", error)
        return {}


def write_checkpoint(
    disk: Disk, directory: str, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True
) -> None:
    """Replace a checkpoint."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    disk.write_atomic(f"{directory}/{name}", ("\n".join(lines) + "\n").encode(), sync=sync)


class CheckpointWriter:
    """Writes changed checkpoints outside the event loop; a failure is logged, and the next write repairs it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._written: dict[tuple[str, str], Mapping[TopicPartition, int]] = {}
        self._under_way: list[tuple[Completion, LogDirectory, str, Mapping[TopicPartition, int]]] = []

    def write(self, directory: LogDirectory, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint; `offsets` must not change afterwards."""
        self.poll()
        latest = self._written.get((directory.path, name))
        for _, of_directory, of_name, under_way in self._under_way:
            if of_directory is directory and of_name == name:
                latest = under_way
        if latest != offsets:
            task = partial(write_checkpoint, self._disk, directory.path, name, offsets)
            self._under_way.append((self._disk.in_background(task), directory, name, offsets))

    def poll(self) -> None:
        """Process finished writes."""
        under_way, self._under_way = self._under_way, []
        for each in under_way:
            completion, directory, name, offsets = each
            if not completion.done():
                self._under_way.append(each)
                continue
            try:
                completion.result()
            except OSError as error:
                logger.error("log folder %s: %s could not be written: %s", directory.path, name, error)
                directory.health.observe(f"write {name}", error)
            else:
                self._written[directory.path, name] = offsets

    @property
    def running(self) -> list[Completion]:
        """The writes under way."""
        return [completion for completion, *_ in self._under_way]

    def wait(self) -> None:
        """Wait for all running writes."""
        for completion, *_ in self._under_way:
            try:
                completion.result()
            except OSError:
                continue  # logged by `poll`
        self.poll()
