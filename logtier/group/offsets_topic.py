"""The topic `__consumer_offsets`: its name, its settings, and which of its partitions holds a group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from logtier.config import BrokerConfig
from logtier.metadata.coordinator_partition import partition_for
from logtier.protocol.errors import ErrorCode, KafkaError

__all__ = ["OFFSETS_TOPIC", "OffsetsTopic", "TopicCreator", "create_offsets_topic", "offsets_topic", "partition_for"]

OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class OffsetsTopic:
    """The topic as the controller is asked to create it (it reads these attributes of any topic)."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicCreator(Protocol):
    """What the group coordinator needs of the controller (a sibling layer, hence no import)."""

    async def create_topics(self, topics: Sequence[Any], /) -> Sequence[Any]:
        """Create topics; each result has `error`, a KafkaError or None."""


def offsets_topic(config: BrokerConfig) -> OffsetsTopic:
    """The topic's settings: compacted, so that retention never touches what a group may still need."""
    return OffsetsTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


async def create_offsets_topic(creator: TopicCreator, topic: OffsetsTopic) -> None:
    """Create the topic; that another request has just done so is as good.

    Raises:
        KafkaError: coordinator_not_available, which clients retry.
    """
    (result,) = await creator.create_topics([topic])
    if result.error is not None and result.error.code is not ErrorCode.topic_already_exists:
        raise KafkaError(
            ErrorCode.coordinator_not_available, f"{OFFSETS_TOPIC} cannot be created: {result.error.message}"
        )
