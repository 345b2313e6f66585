"""Name and configs of the topic `__consumer_offsets`, and which broker coordinates a group."""

from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata.image import MetadataImage
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.state_topic.topic import StateTopic, partition_for

OFFSETS_TOPIC = "__consumer_offsets"


def coordinator_of(group_id: str, image: MetadataImage) -> int:
    """Return the id of the broker that coordinates a group, NO_BROKER if there is none."""
    topic = image.topic(OFFSETS_TOPIC)
    return NO_BROKER if topic is None else topic.partitions[partition_for(group_id, len(topic.partitions))].leader


def offsets_topic(config: BrokerConfig) -> StateTopic:
    """Return the topic to create: compacted, so that retention never deletes present offsets."""
    return StateTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )
