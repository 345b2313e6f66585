"""The model of topic administration: topics, configs, errors, limits, and the checks that need no broker.

Pure: nothing here opens a connection. Users of the REST API and of the command line see these messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

TOPIC_NAME_LENGTH_MAX = 249
"""Kafka's limit: the name and `-<partition>` make a folder name."""

PARTITIONS_MAX = 10_000
"""Partitions of one topic; a larger number is a typing error on a platform of this size."""

REPLICATION_FACTOR_MAX = 32_767
"""The protocol's int16."""

CONFIGS_MAX = 200
"""Configs in one request; Kafka has about thirty topic configs."""

CONFIG_VALUE_LENGTH_MAX = 10_000
"""The protocol's strings end at 32,767 bytes; no config is near this."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


class ErrorCode(Enum):
    """Kind of a failure, independent of the protocol's and of HTTP's numbers."""

    INVALID_TOPIC = "INVALID_TOPIC"
    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    INVALID_CONFIG = "INVALID_CONFIG"
    INVALID_REQUEST = "INVALID_REQUEST"
    TOPIC_ALREADY_EXISTS = "TOPIC_ALREADY_EXISTS"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    UNKNOWN_CONFIG = "UNKNOWN_CONFIG"
    UNKNOWN_BROKER = "UNKNOWN_BROKER"
    UNKNOWN_CLUSTER = "UNKNOWN_CLUSTER"
    UNKNOWN_PIPELINE = "UNKNOWN_PIPELINE"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    NOT_SUPPORTED = "NOT_SUPPORTED"
    TIMED_OUT = "TIMED_OUT"
    UNAVAILABLE = "UNAVAILABLE"
    BROKER_ERROR = "BROKER_ERROR"

    @property
    def is_users(self) -> bool:
        """Whether a different request would succeed."""
        return self not in {
            ErrorCode.TIMED_OUT,
            ErrorCode.UNAVAILABLE,
            ErrorCode.BROKER_ERROR,
            ErrorCode.NOT_SUPPORTED,
            ErrorCode.NOT_AUTHORIZED,
        }


class TopicAdminError(Exception):
    """A failed administration call: `code` for programs, `message` (one line) for people."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker, as Metadata describes it."""

    broker_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster behind the bootstrap servers."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition; `leader` is None while no leader is known."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions in order."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]

    @property
    def partitions_count(self) -> int:
        """Number of partitions."""
        return len(self.partitions)

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition, as Kafka's own tools report the factor."""
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A possible source of a config's value, in the broker's order of precedence."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A config of a topic; `value` is None for a sensitive config."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Set a config to `value`, or to its default if `value` is None."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """First available offset and next offset of a partition."""

    partition: int
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A topic to create; None selects the broker's `num.partitions` and `default.replication.factor`."""

    name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] | None = None
    replica_assignment: Sequence[Sequence[int]] | None = None


def validate_topic_name(name: str) -> None:
    """Apply Kafka's rule for topic names.

    >>> validate_topic_name("flights.dead_letters")
    >>> validate_topic_name("a/b")
    Traceback (most recent call last):
        ...
    headwater.api.topic_model.TopicAdminError: topic name 'a/b' is not legal: use 1 to 249 of a-z A-Z 0-9 . _ -
    """
    if not _TOPIC_NAME.match(name) or len(name) > TOPIC_NAME_LENGTH_MAX or name in {".", ".."}:
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise TopicAdminError(
            ErrorCode.INVALID_TOPIC,
            f"topic name {shown!r} is not legal: use 1 to {TOPIC_NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ -",
        )


def validate_partitions_count(count: int) -> None:
    """Refuse a count of partitions outside 1 to PARTITIONS_MAX."""
    if not 1 <= count <= PARTITIONS_MAX:
        raise TopicAdminError(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions are not possible: use 1 to {PARTITIONS_MAX}"
        )


def validate_changes(changes: Sequence[ConfigChange]) -> None:
    """Refuse invalid config changes: none, too many, a duplicate name, an oversized value."""
    if not changes:
        raise TopicAdminError(ErrorCode.INVALID_CONFIG, "no config to change was given")
    if len(changes) > CONFIGS_MAX:
        raise TopicAdminError(ErrorCode.INVALID_CONFIG, f"{len(changes)} configs are more than {CONFIGS_MAX}")
    seen: set[str] = set()
    for change in changes:
        if not change.name:
            raise TopicAdminError(ErrorCode.INVALID_CONFIG, "a config's name is empty")
        if change.name in seen:
            raise TopicAdminError(ErrorCode.INVALID_CONFIG, f"config {change.name!r} is given twice")
        seen.add(change.name)
        for text in (change.name, change.value or ""):
            _require_text(text)
        if change.value is not None and len(change.value) > CONFIG_VALUE_LENGTH_MAX:
            raise TopicAdminError(
                ErrorCode.INVALID_CONFIG,
                f"the value of config {change.name!r} has {len(change.value)} characters; "
                f"at most {CONFIG_VALUE_LENGTH_MAX} are allowed",
            )


def _require_text(text: str) -> None:
    """Refuse texts that the protocol's strings cannot hold: librdkafka's binding ends the process, or cuts at a NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TopicAdminError(ErrorCode.INVALID_CONFIG, f"{text[:60]!a} is not Unicode text") from None
    if "\0" in text:
        raise TopicAdminError(ErrorCode.INVALID_CONFIG, f"{text[:60]!a} has a NUL character")


def validate_request(request: TopicRequest) -> None:
    """Check everything about a topic to create that can be checked without a broker."""
    validate_topic_name(request.name)
    if request.replica_assignment is not None:
        if request.partitions_count is not None or request.replication_factor is not None:
            raise TopicAdminError(
                ErrorCode.INVALID_REQUEST, "give either a replica assignment or counts of partitions and replicas"
            )
        validate_partitions_count(len(request.replica_assignment))
        if len({len(replicas) for replicas in request.replica_assignment}) != 1 or not request.replica_assignment[0]:
            raise TopicAdminError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "each partition of an assignment needs the same number of replicas",
            )
    if request.partitions_count is not None:
        validate_partitions_count(request.partitions_count)
    factor = request.replication_factor
    if factor is not None and not 1 <= factor <= REPLICATION_FACTOR_MAX:
        raise TopicAdminError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor} is not possible: use 1 to the number of brokers",
        )
    if request.configs:
        validate_changes([ConfigChange(name, value) for name, value in request.configs.items()])
