"""`partition.metadata`, the file in a log's folder that holds the topic id."""

import logging
from typing import Final
from uuid import UUID

from headwater.logtier.protocol.uuids import from_text, to_text
from headwater.logtier.runtime.disk import Disk

logger = logging.getLogger(__name__)

PARTITION_METADATA: Final = "partition.metadata"
NO_TOPIC_ID: Final = UUID(int=0)


def write_partition_metadata(disk: Disk, directory: str, topic_id: UUID) -> None:
    """Write the file in Kafka's format, without a sync: a lost file is written again."""
    content = f"version: 0\ntopic_id: {to_text(topic_id)}"
    disk.write_atomic(f"{directory}/{PARTITION_METADATA}", content.encode(), sync=False)


def read_partition_metadata(disk: Disk, directory: str) -> UUID:
    """Return the topic id; NO_TOPIC_ID if the file is missing or damaged, and the caller then supplies the id."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        lines = disk.read(path).decode().splitlines()
        version, topic_id = (line.partition(": ")[2].strip() for line in lines)
        if version != "0":
            raise ValueError(f"version {version}")
        return from_text(topic_id)
    except FileNotFoundError:
        return NO_TOPIC_ID
    except ValueError as error:
        logger.warning("%s is damaged: %s", path, error)
        return NO_TOPIC_ID
