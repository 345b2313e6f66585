"""The topic of a coordinator's state: its creation, and the partition of each name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headwater.logtier.protocol.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class StateTopic:
    """The topic as passed to the controller for creation (which reads these attributes of any topic)."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicCreator(Protocol):
    """The function of the controller used by a coordinator (a sibling layer, hence no import)."""

    async def create_topics(self, topics: Sequence[Any], /) -> Sequence[Any]:
        """Create topics; each result has `error`, a KafkaError or None."""


async def create_state_topic(creator: TopicCreator, topic: StateTopic) -> None:
    """Create the topic; an existing topic is accepted.

    Raises:
        KafkaError: coordinator_not_available, which clients retry.
    """
    (result,) = await creator.create_topics([topic])
    if result.error is not None and result.error.code is not ErrorCode.topic_already_exists:
        raise KafkaError(ErrorCode.coordinator_not_available, f"{topic.name} cannot be created: {result.error.message}")


def partition_for(name: str, partition_count: int) -> int:
    """Return the partition of a group or transactional id, whose leader is the coordinator.

    The absolute value of Java's String.hashCode, modulo the number of partitions; Kafka's tools compute it too.

    >>> partition_for("grouphelper-g", 50)
    23
    """
    code = 0
    if name.isascii():
        for unit in name.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:  # Java counts UTF-16 units
        data = name.encode("utf-16-be", "surrogatepass")
        for high, low in zip(data[::2], data[1::2], strict=True):
            code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code >= 0x80000000:
        code = 0x1_0000_0000 - code
    # The smallest int has no absolute value; Kafka uses 0.
    return 0 if code == 0x80000000 else code % partition_count
