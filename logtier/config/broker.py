"""Broker configs: Kafka's names, types, defaults and limits in one table, with typed access."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.logtier.config.cluster import ClusterConfig, check_cluster_configs
from headwater.logtier.config.definition import (
    INT_MAX,
    LONG_MAX,
    ConfigDef,
    ConfigError,
    ConfigType,
    Validator,
    Value,
    at_least,
    between,
    config,
    config_defs,
    list_of,
    non_empty,
    one_of,
    unknown_name,
)
from headwater.logtier.config.group_protocol import check_group_protocol
from headwater.logtier.config.listener_config import (
    LISTENER_PREFIX,
    ListenerConfig,
    check_listener_configs,
    listener_config_def,
)
from headwater.logtier.config.listeners import Endpoint, check_listeners, parse_listener, parse_protocol_map
from headwater.logtier.config.security import check_connections_per_ip
from headwater.logtier.config.unused import UNUSED


@dataclass(frozen=True, slots=True, eq=False)
class BrokerConfig(ClusterConfig):
    """All configs of one broker, typed. Immutable, compared by identity; `from_properties` creates it.

    Invariant: every value satisfies its validator, and the configs are consistent with each other.
    """

    # Node and listeners
    node_id: int = config(ConfigType.INT, 1, "Id of the broker, unique in the cluster.", at_least(0))
    broker_rack: str | None = config(
        ConfigType.STRING, None, "Rack, zone or host of the broker; replicas of a partition are spread over racks."
    )
    listeners: tuple[str, ...] = config(
        ConfigType.LIST,
        ("PLAINTEXT://:9092",),
        "Listen addresses, as NAME://host:port. An empty host binds all interfaces, and port 0 any free port. Each "
        "name is a security protocol or an entry of listener.security.protocol.map.",
        non_empty(),
    )
    advertised_listeners: tuple[str, ...] | None = config(
        ConfigType.LIST,
        None,
        "Addresses that the broker advertises to clients; by default the addresses of the listeners.",
        non_empty(),
    )

    # Connections and requests
    connections_max_idle_ms: int = config(
        ConfigType.LONG,
        600_000,
        "Idle time after which the broker closes a connection; a negative number sets no limit.",
        Validator("1 or more, or negative", lambda value: value != 0),
    )
    max_connections: int = config(
        ConfigType.INT,
        10_000,  # Kafka's default is no limit; the process has a limit of open files
        "Maximum number of open connections; the broker closes further connections on arrival. It admits those to "
        "inter.broker.listener.name in any case, if clients have other listeners.",
        at_least(1),
        dynamic=True,
    )
    max_connections_per_ip: int = config(
        ConfigType.INT,
        10_000,
        "Maximum number of open connections per address; 0 admits only the overridden addresses.",
        at_least(0),
        dynamic=True,
    )
    queued_max_request_bytes: int = config(
        ConfigType.LONG,
        268_435_456,  # Kafka's default (-1) is no limit
        "Maximum total size of requests being received; further requests wait. One principal is limited to a half, "
        "one connection to a quarter; waiting requests beyond these shares complete one at a time. -1 sets no limit.",
        at_least(-1),
    )
    socket_listen_backlog_size: int = config(
        ConfigType.INT, 512, "Maximum number of connections that wait to be accepted.", at_least(1)
    )
    socket_receive_buffer_bytes: int = config(
        ConfigType.INT, 102_400, "SO_RCVBUF of a connection; -1 selects the system's default.", at_least(-1)
    )
    socket_request_max_bytes: int = config(ConfigType.INT, 104_857_600, "Maximum size of a request.", at_least(1))
    socket_send_buffer_bytes: int = config(
        ConfigType.INT,
        1_048_576,
        "SO_SNDBUF of a connection; -1 selects the system's default. Kafka's default is a tenth of this size, which "
        "makes a fast consumer wait for the broker.",
        at_least(-1),
    )
    fetch_max_bytes: int = config(
        ConfigType.INT, 57_671_680, "Maximum size of the records in one fetch response.", at_least(1024)
    )
    max_request_partition_size_limit: int = config(
        ConfigType.INT, 2000, "Maximum number of partitions in one DescribeTopicPartitions response.", at_least(1)
    )
    max_incremental_fetch_session_cache_slots: int = config(
        ConfigType.INT,
        1000,
        "Maximum number of incremental fetch sessions; a client without a session receives full responses.",
        at_least(0),
    )

    # Topics
    auto_create_topics_enable: bool = config(
        ConfigType.BOOLEAN, True, "Whether the broker creates a missing topic on a client's metadata request."
    )
    default_replication_factor: int = config(
        ConfigType.INT, 1, "Replication factor of topics created without an explicit one.", at_least(1)
    )
    delete_topic_enable: bool = config(ConfigType.BOOLEAN, True, "Whether topics can be deleted.")
    min_insync_replicas: int = config(
        ConfigType.INT,
        1,
        "Minimum number of in-sync replicas for a produce request with acks=all to succeed.",
        at_least(1),
        dynamic=True,
    )
    num_partitions: int = config(
        ConfigType.INT, 1, "Number of partitions of topics created without an explicit number.", at_least(1)
    )

    # Logs
    log_dirs: tuple[str, ...] = config(
        ConfigType.LIST, ("headwater-data",), "Folders of the logs; the first one also holds the metadata.", non_empty()
    )
    compression_type: str = config(
        ConfigType.STRING,
        "producer",
        "Codec of the stored batches; producer keeps each batch as the producer compressed it.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        dynamic=True,
    )
    compression_gzip_level: int = config(
        ConfigType.INT,
        -1,
        "Compression level of gzip, for topics whose compression.type is gzip.",
        Validator("-1 or between 1 and 9", lambda value: value == -1 or 1 <= value <= 9),
        dynamic=True,
    )
    compression_lz4_level: int = config(
        ConfigType.INT,
        9,
        "Compression level of lz4, for topics whose compression.type is lz4.",
        between(1, 17),
        dynamic=True,
    )
    compression_zstd_level: int = config(
        ConfigType.INT,
        3,
        "Compression level of zstd, for topics whose compression.type is zstd.",
        between(-131072, 22),
        dynamic=True,
    )
    log_cleanup_policy: tuple[str, ...] = config(
        ConfigType.LIST,
        ("delete",),
        "Policy for old segments: delete applies the retention limits, compact keeps the latest record of each key.",
        list_of("delete", "compact"),
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = config(
        ConfigType.LONG, 15_000, "Pause of the cleaner without an eligible log.", at_least(0), dynamic=True
    )
    log_cleaner_dedupe_buffer_size: int = config(
        ConfigType.LONG,
        134_217_728,
        "Total memory of the offset maps of all cleaner processes; each key takes 24 bytes.",
        at_least(1_048_576),
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = config(
        ConfigType.LONG,
        86_400_000,
        "Retention time of tombstones, from the first cleaning that leaves no older record of the key.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_enable: bool = config(
        ConfigType.BOOLEAN, True, "Whether logs are compacted; otherwise compacted topics grow without limit."
    )
    log_cleaner_io_buffer_load_factor: float = config(
        ConfigType.DOUBLE, 0.9, "Maximum fill ratio of the offset map.", between(0.01, 0.99), dynamic=True
    )
    log_cleaner_io_buffer_size: int = config(
        ConfigType.INT,
        524_288,
        "Total size of the read buffers of all cleaner processes.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = config(
        ConfigType.DOUBLE,
        1.7976931348623157e308,
        "Maximum average rate of the cleaner's reads and writes, in bytes per second; the default sets no limit.",
        Validator("more than 0", lambda value: value > 0),
        dynamic=True,
    )
    log_cleaner_max_compaction_lag_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum time for which a record of a compacted topic may remain uncompacted.",
        at_least(1),
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio: float = config(
        ConfigType.DOUBLE,
        0.5,
        "Minimum share of uncompacted bytes in a log before the log is eligible for cleaning.",
        between(0, 1),
        dynamic=True,
    )
    log_cleaner_min_compaction_lag_ms: int = config(
        ConfigType.LONG,
        0,
        "Minimum time for which a record of a compacted topic remains uncompacted.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_threads: int = config(
        ConfigType.INT,
        1,
        "Number of cleaner processes, each of which compacts one log at a time; 0 disables compaction.",
        at_least(0),
        dynamic=True,
    )
    log_flush_interval_messages: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Number of appended records before a flush to disk; the default leaves flushing to the operating system.",
        at_least(1),
        dynamic=True,
    )
    log_flush_interval_ms: int | None = config(
        ConfigType.LONG,
        None,
        "Maximum time before appended records are flushed to disk; by default log.flush.scheduler.interval.ms.",
        at_least(0),
        dynamic=True,
    )
    log_flush_offset_checkpoint_interval_ms: int = config(
        ConfigType.INT,
        60_000,
        "Interval between background flushes of all logs; frequent flushes shorten recovery after a crash.",
        at_least(0),
    )
    log_flush_start_offset_checkpoint_interval_ms: int = config(
        ConfigType.INT, 60_000, "Interval between checkpoints of the log start offsets.", at_least(0)
    )
    log_flush_scheduler_interval_ms: int = config(
        ConfigType.LONG, LONG_MAX, "Interval between checks for logs that are due for a flush.", at_least(1)
    )
    log_index_interval_bytes: int = config(
        ConfigType.INT, 4096, "Bytes of the log between two entries of the offset index.", at_least(0), dynamic=True
    )
    log_index_size_max_bytes: int = config(
        ConfigType.INT, 10_485_760, "Maximum size of the offset index of a segment.", at_least(4), dynamic=True
    )
    log_message_timestamp_after_max_ms: int = config(
        ConfigType.LONG,
        3_600_000,
        "Maximum time by which the timestamp of a record may be ahead of the broker's clock; applies to CreateTime.",
        at_least(0),
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum time by which the timestamp of a record may be behind the broker's clock; applies to CreateTime.",
        at_least(0),
        dynamic=True,
    )
    log_message_timestamp_type: str = config(
        ConfigType.STRING,
        "CreateTime",
        "Source of record timestamps: the producer (CreateTime) or the broker at the append (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=True,
    )
    replica_high_watermark_checkpoint_interval_ms: int = config(
        ConfigType.LONG,
        5000,
        "Interval between checkpoints of the high watermarks of partitions with several replicas.",
        at_least(1),
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum total rate of replica moves between log.dirs, in bytes per second; 0 halts all moves.",
        at_least(0),
        dynamic=True,
    )
    leader_replication_throttled_rate: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum total rate at which this broker sends leader.replication.throttled.replicas that are not in sync, in "
        "bytes per second.",
        at_least(0),
        dynamic=True,
    )
    follower_replication_throttled_rate: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Maximum total rate at which this broker fetches follower.replication.throttled.replicas that are not in sync, "
        "in bytes per second.",
        at_least(0),
        dynamic=True,
    )
    log_retention_bytes: int = config(
        ConfigType.LONG,
        -1,
        "Maximum size of a partition before the oldest segments are deleted; a negative number sets no limit.",
        dynamic=True,
    )
    log_retention_check_interval_ms: int = config(
        ConfigType.LONG, 300_000, "Interval between checks for segments to delete.", at_least(1)
    )
    log_retention_hours: int = config(
        ConfigType.INT,
        168,
        "Retention time of segments in hours; log.retention.minutes takes precedence.",
        at_least(-1),
    )
    log_retention_minutes: int | None = config(
        ConfigType.INT,
        None,
        "Retention time of segments in minutes; log.retention.ms takes precedence.",
        at_least(-1),
    )
    log_retention_ms: int | None = config(
        ConfigType.LONG,
        None,
        "Retention time of segments; -1 sets no limit. 0 is rejected, as it is in minutes and hours.",
        at_least(-1),
        dynamic=True,
    )
    log_roll_hours: int = config(
        ConfigType.INT,
        168,
        "Maximum age of the active segment in hours before the log rolls; log.roll.ms takes precedence.",
        at_least(1),
    )
    log_roll_jitter_hours: int = config(
        ConfigType.INT,
        0,
        "Maximum random reduction of log.roll.hours; log.roll.jitter.ms takes precedence.",
        at_least(0),
    )
    log_roll_jitter_ms: int | None = config(
        ConfigType.LONG, None, "Maximum random reduction of log.roll.ms.", at_least(0), dynamic=True
    )
    log_roll_ms: int | None = config(
        ConfigType.LONG,
        None,
        "Maximum age of the active segment before the log rolls, regardless of its size.",
        at_least(1),
        dynamic=True,
    )
    log_segment_bytes: int = config(
        ConfigType.INT, 1_073_741_824, "Maximum size of a segment before the log rolls.", at_least(14), dynamic=True
    )
    log_segment_delete_delay_ms: int = config(
        ConfigType.LONG,
        60_000,
        "Delay before the files of a deleted segment are removed from disk, so that reads in progress can finish.",
        at_least(0),
        dynamic=True,
    )
    message_max_bytes: int = config(
        ConfigType.INT,
        1_048_588,
        "Maximum size of a record batch, after compression.",
        at_least(0),
        dynamic=True,
    )
    producer_id_expiration_ms: int = config(
        ConfigType.INT,
        86_400_000,
        "Time after the last batch of an idempotent producer until a partition drops the producer's state.",
        at_least(1),
        dynamic=True,
    )

    # Groups and their offsets
    group_initial_rebalance_delay_ms: int = config(
        ConfigType.INT, 3000, "Time for which the first rebalance of an empty group waits for members.", at_least(0)
    )
    group_max_session_timeout_ms: int = config(
        ConfigType.INT, 1_800_000, "Maximum session timeout that a member can request.", at_least(1)
    )
    group_max_size: int = config(ConfigType.INT, INT_MAX, "Maximum number of members of a classic group.", at_least(1))
    group_min_session_timeout_ms: int = config(
        ConfigType.INT, 6000, "Minimum session timeout that a member can request.", at_least(1)
    )
    offset_metadata_max_bytes: int = config(
        ConfigType.INT, 4096, "Maximum size of the metadata of a committed offset.", at_least(0)
    )
    offsets_commit_timeout_ms: int = config(
        ConfigType.INT, 5000, "Timeout of the replication of an offset commit.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = config(
        ConfigType.LONG, 600_000, "Interval between checks for expired offsets.", at_least(1)
    )
    offsets_retention_minutes: int = config(
        ConfigType.INT, 10_080, "Retention time of committed offsets once the group has no members.", at_least(1)
    )
    offsets_topic_num_partitions: int = config(
        ConfigType.INT, 50, "Number of partitions of __consumer_offsets; fixed at its creation.", at_least(1)
    )
    offsets_topic_replication_factor: int = config(
        ConfigType.SHORT,
        1,  # Kafka's default is 3, which a cluster of one cannot give
        "Replication factor of __consumer_offsets.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = config(
        ConfigType.INT, 104_857_600, "Segment size of __consumer_offsets.", at_least(14)
    )

    # Cold reads
    cold_read_max_bytes_per_second_per_core: int = config(
        ConfigType.LONG,
        200_000_000,
        "Maximum rate of records sent from outside the page cache, in bytes per second and core. The limit holds "
        "while producers write; TLS connections and readers beyond the first 16 are exempt.",
        at_least(1 << 20),
        dynamic=True,
    )

    # Metrics
    prometheus_host: str = config(ConfigType.STRING, "127.0.0.1", "Listen address of the Prometheus endpoint.")
    prometheus_port: int = config(
        ConfigType.INT,
        -1,
        "Port of the Prometheus endpoint, GET /metrics; 0 selects a free port, -1 disables the endpoint.",
        between(-1, 65_535),
    )

    # Quotas
    quota_window_num: int = config(
        ConfigType.INT, 11, "Number of windows over which the usage of a client is measured.", at_least(1)
    )
    quota_window_size_seconds: int = config(ConfigType.INT, 1, "Length of each window of client quotas.", at_least(1))
    controller_quota_window_num: int = config(
        ConfigType.INT, 11, "Number of windows whose partition mutation quota can be used in one burst.", at_least(1)
    )
    controller_quota_window_size_seconds: int = config(
        ConfigType.INT, 1, "Length of each window of the partition mutation quota.", at_least(1)
    )

    explicit: frozenset[str] = frozenset()
    """Names of the configs that were set explicitly, even to their defaults."""
    listener_overrides: Mapping[str, Value] = dataclasses.field(default_factory=dict, repr=False)
    """Values set for a single listener, by full name (`listener.name.<name>....`)."""

    @staticmethod
    def from_properties(properties: Mapping[str, object] | None = None) -> "BrokerConfig":
        """Build the configs from texts or typed values by Kafka's names; ConfigError, one line, for a mistake."""
        return _build({}, frozenset(), {}, properties or {})

    def with_properties(self, properties: Mapping[str, object]) -> "BrokerConfig":
        """Return these configs with `properties`, such as dynamic configs, replaced; ConfigError as above."""
        if not properties:
            return self
        values = {definition.attribute: self.value(name) for name, definition in BROKER_CONFIGS.items()}
        return _build(values, self.explicit, self.listener_overrides, properties)

    def with_fitting(self, properties: Mapping[str, object]) -> tuple["BrokerConfig", dict[str, str]]:
        """Return these configs with the valid part of `properties`, and the reason for each rejected name."""
        try:
            return self.with_properties(properties), {}
        except ConfigError:
            pass
        config, reasons = self, dict.fromkeys(properties, "")
        while True:
            left, reasons = reasons, {}
            for name in sorted(left):
                try:
                    config = config.with_properties({name: properties[name]})
                except ConfigError as error:
                    reasons[name] = str(error)
            # A config may become valid after another: a lower maximum after the lower minimum.
            if len(reasons) == len(left):
                return config, reasons

    def value(self, name: str) -> Any:
        """Return the value of a config, by Kafka's name."""
        if name.startswith(LISTENER_PREFIX):
            return self.listener_overrides[name]
        return getattr(self, BROKER_CONFIGS[name].attribute)

    @property
    def listener_definitions(self) -> dict[str, ConfigDef]:
        """Definitions of the configs set for a single listener, by full name."""
        return {name: listener_config_def(name) for name in self.listener_overrides}

    def listener_config(self, listener: Endpoint) -> ListenerConfig:
        """Return the effective configs of a listener."""
        return ListenerConfig(self, listener)

    @property
    def bind_endpoints(self) -> tuple[Endpoint, ...]:
        """`listeners`, parsed."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return tuple(parse_listener("listeners", text, protocols) for text in self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """`advertised.listeners`, parsed; empty if derived from the listeners."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return tuple(
            parse_listener("advertised.listeners", text, protocols) for text in self.advertised_listeners or ()
        )


BROKER_CONFIGS: Final[Mapping[str, ConfigDef]] = config_defs(BrokerConfig)


def _build(
    values: dict[str, Any],
    explicit: frozenset[str],
    listener_overrides: Mapping[str, Value],
    properties: Mapping[str, object],
) -> BrokerConfig:
    overrides = dict(listener_overrides)
    for name, raw in properties.items():
        if name.startswith(LISTENER_PREFIX):
            of_listener = listener_config_def(name)
            overrides[name] = of_listener.parse(raw)
            of_listener.check_supported(overrides[name])
            continue
        definition = BROKER_CONFIGS.get(name)
        if name in UNUSED:
            raise ConfigError(f"broker property {name!r} has no use here: {UNUSED[name]}; leave it out")
        if definition is None:
            raise unknown_name("broker property", name, BROKER_CONFIGS)
        value = definition.parse(raw)
        definition.check_supported(value)
        values[definition.attribute] = value
    built = BrokerConfig(**values, explicit=explicit | frozenset(properties), listener_overrides=overrides)
    _check_together(built)
    return built


def _check_together(broker: BrokerConfig) -> None:
    """Check that the configs are consistent with each other."""
    check_listeners(broker.bind_endpoints, broker.advertised_endpoints)
    check_listener_configs(broker)
    if len(set(broker.log_dirs)) != len(broker.log_dirs):
        raise ConfigError(f"log.dirs: a folder stands there twice: {','.join(broker.log_dirs)}")
    if broker.group_min_session_timeout_ms > broker.group_max_session_timeout_ms:
        raise ConfigError(
            f"group.min.session.timeout.ms ({broker.group_min_session_timeout_ms}) is above "
            f"group.max.session.timeout.ms ({broker.group_max_session_timeout_ms})"
        )
    check_group_protocol(broker)
    check_cluster_configs(broker)
    _check_retention(broker)
    check_connections_per_ip(broker.max_connections_per_ip, broker.max_connections_per_ip_overrides)
    if broker.message_max_bytes > broker.socket_request_max_bytes:
        raise ConfigError(
            f"message.max.bytes ({broker.message_max_bytes}) is above socket.request.max.bytes "
            f"({broker.socket_request_max_bytes}): such a batch could never arrive"
        )


def _check_retention(broker: BrokerConfig) -> None:
    # As in Kafka, only the config with the highest precedence counts.
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        value = broker.value(name)
        if value is not None:
            if value == 0:
                raise ConfigError(f"{name}: must be -1 (no limit), or 1 or more, not '0'")
            return


assert {field.name for field in dataclasses.fields(BrokerConfig)} == {
    *(definition.attribute for definition in BROKER_CONFIGS.values()),
    "explicit",
    "listener_overrides",
}
