"""The topic `__transaction_state`: its name, its settings, its creation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from logtier.config import BrokerConfig
from logtier.protocol.errors import ErrorCode, KafkaError

TRANSACTION_TOPIC: Final = "__transaction_state"


@dataclass(frozen=True, slots=True)
class TransactionTopic:
    """The topic as the controller is asked to create it (it reads these attributes of any topic)."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicCreator(Protocol):
    """What the transaction coordinator needs of the controller (a sibling layer, hence no import)."""

    async def create_topics(self, topics: Sequence[Any], /) -> Sequence[Any]:
        """Create topics; each result has `error`, a KafkaError or None."""


def transaction_topic(config: BrokerConfig) -> TransactionTopic:
    """The topic's settings: compacted, so that the last state of each id stays."""
    return TransactionTopic(
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


async def create_transaction_topic(creator: TopicCreator, topic: TransactionTopic) -> None:
    """Create the topic; that another request has just done so is as good.

    Raises:
        KafkaError: coordinator_not_available, which clients retry.
    """
    (result,) = await creator.create_topics([topic])
    if result.error is not None and result.error.code is not ErrorCode.topic_already_exists:
        raise KafkaError(
            ErrorCode.coordinator_not_available, f"{TRANSACTION_TOPIC} cannot be created: {result.error.message}"
        )
