"""Commands of the controller and their results: plain values."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

from headwater.logtier.metadata.image import TopicImage
from headwater.logtier.protocol.errors import KafkaError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created.

    -1 partitions or replicas select the broker's default. `assignments` (partition to brokers) replaces both numbers. A
    config value of None, possible in the protocol, is rejected.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic to be grown to `count` partitions in total; `assignments` has the brokers of each new partition."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result for one topic: `error`, or the topic after the command (before it, for a deletion)."""

    name: str
    error: KafkaError | None = None
    topic: TopicImage | None = None


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result of one deletion. Name and id are both set if the topic existed."""

    name: str | None
    topic_id: UUID | None
    error: KafkaError | None = None


class ConfigResourceType(enum.IntEnum):
    """The type of resource of a config, with the protocol's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperationType(enum.IntEnum):
    """The operation on a config, with the numbers of IncrementalAlterConfigs (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigOperation:
    """One change of one config. `type` is a number, because clients may send any."""

    name: str
    type: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Changes of one resource. `replace_all`: configs not set here revert to their defaults (AlterConfigs)."""

    resource_type: int
    resource_name: str
    operations: Sequence[ConfigOperation]
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """The result of one resource's changes."""

    resource_type: int
    resource_name: str
    error: KafkaError | None = None


def refused_result(result: Result, error: KafkaError) -> Result:
    """Return a planned result that was not done; one that the plan refused keeps its own error."""
    if isinstance(result, TopicResult | DeleteResult | ConfigResult) and result.error is None:
        changes: dict[str, Any] = {"topic": None} if isinstance(result, TopicResult) else {}
        return replace(result, error=error, **changes)
    return result
