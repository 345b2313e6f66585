"""Name and configs of the topic `__consumer_offsets`."""

from headwater.logtier.config import BrokerConfig
from headwater.logtier.state_topic.topic import StateTopic

OFFSETS_TOPIC = "__consumer_offsets"


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
