"""What a controller is asked for, and what it answers: plain values."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from headwater.logtier.metadata.image import TopicImage
from headwater.logtier.protocol.errors import KafkaError


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created.

    -1 partitions or replicas means the broker's default. `assignments` (partition to brokers) takes the place of both
    numbers. A config's value may be None only because the protocol can say so: it is refused.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic to be grown to `count` partitions in all; `assignments` holds the brokers of each new one."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic: `error`, or the topic as it is now (as it was, for a deletion)."""

    name: str
    error: KafkaError | None = None
    topic: TopicImage | None = None


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """What became of one deletion. Name and id are both known where the topic was."""

    name: str | None
    topic_id: UUID | None
    error: KafkaError | None = None


class ConfigResourceType(enum.IntEnum):
    """What a config belongs to, as the protocol numbers it."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperationType(enum.IntEnum):
    """What to do with a config, as IncrementalAlterConfigs numbers it (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigOperation:
    """One change of one config. `type` stays a number, because clients may send any."""

    name: str
    type: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Changes of one resource. `replace_all`: what is not set here goes back to its default (AlterConfigs)."""

    resource_type: int
    resource_name: str
    operations: Sequence[ConfigOperation]
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """What became of one resource's changes."""

    resource_type: int
    resource_name: str
    error: KafkaError | None = None
