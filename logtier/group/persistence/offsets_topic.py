"""The topic `__consumer_offsets`: its name and its settings."""

from headwater.logtier.config import BrokerConfig
from headwater.logtier.state_topic.topic import StateTopic

OFFSETS_TOPIC = "__consumer_offsets"


def offsets_topic(config: BrokerConfig) -> StateTopic:
    """The topic's settings: compacted, so that retention never touches what a group may still need."""
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
