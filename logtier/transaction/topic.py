"""Name and configs of the topic `__transaction_state`."""

from typing import Final

from headwater.logtier.config import BrokerConfig
from headwater.logtier.state_topic.topic import StateTopic

TRANSACTION_TOPIC: Final = "__transaction_state"


def transaction_topic(config: BrokerConfig) -> StateTopic:
    """Return the topic to create: compacted, so that the last state of each id remains."""
    return StateTopic(
        TRANSACTION_TOPIC,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        },
    )
