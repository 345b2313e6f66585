"""The offset checkpoints of a log folder: small text files of one number for each partition."""

from collections.abc import Mapping
from typing import Final

from logtier.protocol.topic_partition import TopicPartition
from logtier.runtime.disk import Disk

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
_VERSION: Final = 0


def read_checkpoint(disk: Disk, directory: str, name: str) -> dict[TopicPartition, int]:
    """Read a checkpoint; {} if there is none. Raises ValueError if it is damaged.

    The format is Kafka's: version, count, then `topic partition offset` a line.
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


def write_checkpoint(
    disk: Disk, directory: str, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True
) -> None:
    """Replace a checkpoint."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    disk.write_atomic(f"{directory}/{name}", ("\n".join(lines) + "\n").encode(), sync=sync)
