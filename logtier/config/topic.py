"""Topic configs: the table of Kafka 4.1's topic configs, resolved from overrides and the broker's defaults.

Overrides are the configs set on the topic itself. They are texts, as in requests and in the metadata store.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.logtier.config.broker import BROKER_CONFIGS, BrokerConfig
from headwater.logtier.config.definition import (
    LONG_MAX,
    ConfigDef,
    ConfigError,
    ConfigType,
    Unsupported,
    Validator,
    at_least,
    between,
    config,
    config_defs,
    distinct,
    list_of,
    one_of,
    replica_list,
    unknown_name,
)

_NO_TIERED_STORAGE: Final = "this broker has no tiered storage"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Effective configs of one topic. Order of precedence: override, broker's value, Kafka's default.

    `TopicConfig.resolve` creates it; immutable and shared by all topics with the same overrides.
    """

    cleanup_policy: tuple[str, ...] = config(
        ConfigType.LIST,
        ("delete",),
        "Policy for old segments: delete applies the retention limits, compact keeps the latest record of each key.",
        list_of("delete", "compact"),
        broker_configs=("log.cleanup.policy",),
    )
    compression_gzip_level: int = config(
        ConfigType.INT,
        -1,
        "Compression level of gzip, if compression.type is gzip.",
        Validator("-1 or between 1 and 9", lambda value: value == -1 or 1 <= value <= 9),
        broker_configs=("compression.gzip.level",),
    )
    compression_lz4_level: int = config(
        ConfigType.INT,
        9,
        "Compression level of lz4, if compression.type is lz4.",
        between(1, 17),
        broker_configs=("compression.lz4.level",),
    )
    compression_type: str = config(
        ConfigType.STRING,
        "producer",
        "Codec of the stored batches; producer keeps each batch as the producer compressed it.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_configs=("compression.type",),
    )
    compression_zstd_level: int = config(
        ConfigType.INT,
        3,
        "Compression level of zstd, if compression.type is zstd.",
        between(-131072, 22),
        broker_configs=("compression.zstd.level",),
    )
    delete_retention_ms: int = config(
        ConfigType.LONG,
        86_400_000,
        "Retention time of tombstones, from the first cleaning that leaves no older record of the key.",
        at_least(0),
        broker_configs=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = config(
        ConfigType.LONG,
        60_000,
        "Delay before the files of a deleted segment are removed from disk, so that reads in progress can finish.",
        at_least(0),
        broker_configs=("log.segment.delete.delay.ms",),
    )
    flush_messages: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Number of appended records before a flush to disk; the default leaves flushing to the operating system.",
        at_least(1),
        broker_configs=("log.flush.interval.messages",),
    )
    flush_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum time before appended records are flushed to disk; the default leaves flushing to the operating "
        "system.",
        at_least(0),
        broker_configs=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = config(
        ConfigType.LIST,
        (),
        "Replicas (partition:broker, or *) with throttled replication on the follower side.",
        replica_list(),
    )
    headwater_archive_enable: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether headwater archive keeps the topic in a Delta table. Archivers act on it, the broker only stores it.",
    )
    headwater_archive_table: str = config(
        ConfigType.STRING,
        "",
        "Absolute path or URL of the topic's archive table; empty for the topic's name below the archiver's root. The "
        "broker only stores it.",
    )
    headwater_archive_value: str = config(
        ConfigType.STRING,
        "raw",
        "Format of the values in the archive: bytes (raw), text (string), or as the schema registry describes them "
        "(registry). The broker only stores it.",
        one_of("raw", "string", "registry"),
    )
    index_interval_bytes: int = config(
        ConfigType.INT,
        4096,
        "Bytes of the log between two entries of the offset index.",
        at_least(0),
        broker_configs=("log.index.interval.bytes",),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = config(
        ConfigType.LIST,
        (),
        "Replicas (partition:broker, or *) with throttled replication on the leader side.",
        replica_list(),
    )
    local_retention_bytes: int = config(
        ConfigType.LONG,
        -2,
        "Maximum size of the local part of a tiered log; -2 follows retention.bytes.",
        at_least(-2),
        unsupported=Unsupported(lambda value: value == -2, _NO_TIERED_STORAGE),
    )
    local_retention_ms: int = config(
        ConfigType.LONG,
        -2,
        "Retention time of the local part of a tiered log; -2 follows retention.ms.",
        at_least(-2),
        unsupported=Unsupported(lambda value: value == -2, _NO_TIERED_STORAGE),
    )
    max_compaction_lag_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum time for which a record of a compacted topic may remain uncompacted.",
        at_least(1),
        broker_configs=("log.cleaner.max.compaction.lag.ms",),
    )
    max_message_bytes: int = config(
        ConfigType.INT,
        1_048_588,
        "Maximum size of a record batch, after compression.",
        at_least(0),
        broker_configs=("message.max.bytes",),
    )
    message_timestamp_after_max_ms: int = config(
        ConfigType.LONG,
        3_600_000,
        "Maximum time by which the timestamp of a record may be ahead of the broker's clock; applies to CreateTime.",
        at_least(0),
        broker_configs=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum time by which the timestamp of a record may be behind the broker's clock; applies to CreateTime.",
        at_least(0),
        broker_configs=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = config(
        ConfigType.STRING,
        "CreateTime",
        "Source of record timestamps: the producer (CreateTime) or the broker at the append (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        broker_configs=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = config(
        ConfigType.DOUBLE,
        0.5,
        "Minimum share of uncompacted bytes in a log before the log is eligible for cleaning.",
        between(0, 1),
        broker_configs=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = config(
        ConfigType.LONG,
        0,
        "Minimum time for which a record of a compacted topic remains uncompacted.",
        at_least(0),
        broker_configs=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = config(
        ConfigType.INT,
        1,
        "Minimum number of in-sync replicas for a produce request with acks=all to succeed.",
        at_least(1),
        broker_configs=("min.insync.replicas",),
    )
    preallocate: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether the file of a new segment is allocated at full size.",
        unsupported=Unsupported(lambda value: not value, "segments grow as they are written"),
    )
    remote_log_copy_disable: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether a tiered topic stops copying segments to remote storage.",
        unsupported=Unsupported(lambda value: not value, _NO_TIERED_STORAGE),
    )
    remote_log_delete_on_disable: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether disabling tiered storage on the topic deletes its remote segments.",
        unsupported=Unsupported(lambda value: not value, _NO_TIERED_STORAGE),
    )
    remote_storage_enable: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether old segments are stored in remote storage.",
        unsupported=Unsupported(lambda value: not value, _NO_TIERED_STORAGE),
    )
    retention_bytes: int = config(
        ConfigType.LONG,
        -1,
        "Maximum size of a partition before the oldest segments are deleted; a negative number sets no limit.",
        broker_configs=("log.retention.bytes",),
    )
    retention_hold_groups: tuple[str, ...] = config(
        ConfigType.LIST,
        (),
        "Consumer groups whose committed offsets hold back retention and compaction: records that a group has not "
        "passed stay. Without a valid offset of a group all records stay. DeleteRecords is not held back.",
        distinct(),
    )
    retention_hold_max_bytes: int = config(
        ConfigType.LONG,
        -1,
        "Maximum size of the records in a partition that stay only because of retention.hold.groups; the oldest beyond "
        "it are deleted or compacted. -1 sets no limit.",
        at_least(-1),
    )
    retention_ms: int = config(
        ConfigType.LONG,
        604_800_000,
        "Retention time of segments; -1 sets no limit.",
        at_least(-1),
        broker_configs=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = config(
        ConfigType.INT,
        1_073_741_824,
        "Maximum size of a segment before the log rolls.",
        at_least(14),
        broker_configs=("log.segment.bytes",),
    )
    segment_index_bytes: int = config(
        ConfigType.INT,
        10_485_760,
        "Maximum size of the offset index of a segment; a full index rolls the log.",
        at_least(4),
        broker_configs=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = config(
        ConfigType.LONG,
        0,
        "Maximum random reduction of segment.ms, so that logs do not all roll at once.",
        at_least(0),
        broker_configs=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: int = config(
        ConfigType.LONG,
        604_800_000,
        "Maximum age of the active segment before the log rolls, regardless of its size.",
        at_least(1),
        broker_configs=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable: bool = config(
        ConfigType.BOOLEAN,
        False,
        "Whether a replica outside the in-sync set can become leader, at the risk of data loss.",
        broker_configs=("unclean.leader.election.enable",),
    )

    @staticmethod
    def resolve(overrides: Mapping[str, str], broker: BrokerConfig) -> "TopicConfig":
        """Return the effective configs of a topic; ConfigError for an unknown name or an invalid value. Cached."""
        return _resolve(tuple(sorted(overrides.items())), broker)


TOPIC_CONFIGS: Final[Mapping[str, ConfigDef]] = config_defs(TopicConfig)

HEADWATER_TOPIC_CONFIGS: Final = frozenset(
    {
        "headwater.archive.enable",
        "headwater.archive.table",
        "headwater.archive.value",
        "retention.hold.groups",
        "retention.hold.max.bytes",
    }
)
"""Topic configs that Kafka does not have."""

_UNIT_MS: Final = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


def broker_default(definition: ConfigDef, broker: BrokerConfig) -> tuple[str, Any] | None:
    """Return the broker config that gives the default of a topic config, and its value in the topic's unit; or None.

    >>> broker_default(TOPIC_CONFIGS["retention.ms"], BrokerConfig.from_properties({"log.retention.hours": "1"}))
    ('log.retention.hours', 3600000)
    """
    for name in definition.broker_configs:
        value = getattr(broker, BROKER_CONFIGS[name].attribute)
        if value is not None:
            scale = _UNIT_MS.get(name.rsplit(".", 1)[-1], 1) if definition.name.endswith(".ms") else 1
            return name, (value * scale if scale != 1 and value >= 0 else value)
    return None


def parse_topic_config(name: str, raw: object) -> Any:
    """Parse one override; ConfigError for an unknown name or an invalid value."""
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise unknown_name("topic config", name, TOPIC_CONFIGS)
    return definition.parse(raw)


def check_topic_overrides(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    """Check the overrides of a topic and return its configs.

    Raises:
        ConfigError: A name is unknown, a value is invalid or unsupported, or configs contradict each other.
    """
    resolved = TopicConfig.resolve(overrides, broker)
    for name in overrides:
        definition = TOPIC_CONFIGS[name]
        definition.check_supported(getattr(resolved, definition.attribute))
    if resolved.min_compaction_lag_ms > resolved.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms ({resolved.min_compaction_lag_ms}) is above max.compaction.lag.ms "
            f"({resolved.max_compaction_lag_ms})"
        )
    return resolved


@functools.lru_cache(maxsize=4096)
def _resolve(overrides: tuple[tuple[str, str], ...], broker: BrokerConfig) -> TopicConfig:
    values: dict[str, Any] = {}
    for definition in TOPIC_CONFIGS.values():
        inherited = broker_default(definition, broker)
        if inherited is not None:
            values[definition.attribute] = inherited[1]
    for name, text in overrides:
        value = parse_topic_config(name, text)
        values[TOPIC_CONFIGS[name].attribute] = value
    return TopicConfig(**values)


assert all(name in BROKER_CONFIGS for definition in TOPIC_CONFIGS.values() for name in definition.broker_configs)
