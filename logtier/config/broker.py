"""The configs of a broker: Kafka's names, types, defaults and limits, in one table with typed access."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
from headwater.logtier.config.principals import are_principals
from headwater.logtier.config.security import check_connections_per_ip
from headwater.logtier.config.transactions import TransactionConfig
from headwater.logtier.config.unused import UNUSED

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's name of the authorizer by access control lists, and ours."""


@dataclass(frozen=True, slots=True, eq=False)
class BrokerConfig(TransactionConfig):
    """All configs of one broker, typed; made by `from_properties`, immutable, compared by identity.

    Invariant: every value passed its validator, and rules over several configs hold.
    """

    # The node and where it is reached
    node_id: int = config(ConfigType.INT, 1, "This broker's id, unique in its cluster.", at_least(0))
    broker_rack: str | None = config(
        ConfigType.STRING, None, "The rack (or zone, or host) of this broker: replicas are spread over racks."
    )
    listeners: tuple[str, ...] = config(
        ConfigType.LIST,
        ("PLAINTEXT://:9092",),
        "Addresses to listen on, as NAME://host:port; an empty host is every interface, port 0 any free port. A name "
        "is a security protocol, or stands in listener.security.protocol.map.",
        non_empty(),
    )
    advertised_listeners: tuple[str, ...] | None = config(
        ConfigType.LIST,
        None,
        "Addresses that clients are told to connect to; by default the listeners' own.",
        non_empty(),
    )

    # Connections and requests
    connections_max_idle_ms: int = config(
        ConfigType.LONG,
        600_000,
        "A connection that neither sends nor takes anything for so long is closed; a negative number is no limit.",
        Validator("1 or more, or negative", lambda value: value != 0),
    )
    max_connections: int = config(
        ConfigType.INT,
        10_000,  # Kafka's default is no limit; a broker with a file limit is better off with one
        "Most connections at a time; more are closed when they arrive.",
        at_least(1),
        dynamic=True,
    )
    max_connections_per_ip: int = config(
        ConfigType.INT,
        10_000,
        "Most connections at a time from one address; 0 where only those of max.connections.per.ip.overrides may.",
        at_least(0),
        dynamic=True,
    )
    queued_max_request_bytes: int = config(
        ConfigType.LONG,
        268_435_456,  # Kafka's default (-1) is no limit
        "Bytes of requests that are being received, in all; more wait for their turn. One principal has half of them "
        "at most, one request a quarter, or the next turn. -1 is no limit.",
        at_least(-1),
    )
    socket_listen_backlog_size: int = config(
        ConfigType.INT, 512, "Connections that may wait to be accepted.", at_least(1)
    )
    socket_receive_buffer_bytes: int = config(
        ConfigType.INT, 102_400, "SO_RCVBUF of a connection; -1 leaves it to the operating system.", at_least(-1)
    )
    socket_request_max_bytes: int = config(ConfigType.INT, 104_857_600, "Largest request that is read.", at_least(1))
    socket_send_buffer_bytes: int = config(
        ConfigType.INT,
        1_048_576,
        "SO_SNDBUF of a connection; -1 leaves it to the operating system. Kafka's default is a tenth of it, with which "
        "a consumer that reads much waits for the broker to wake up.",
        at_least(-1),
    )
    fetch_max_bytes: int = config(
        ConfigType.INT, 57_671_680, "Most bytes of records in one answer to a fetch.", at_least(1024)
    )
    max_request_partition_size_limit: int = config(
        ConfigType.INT, 2000, "Most partitions in one answer to DescribeTopicPartitions.", at_least(1)
    )
    max_incremental_fetch_session_cache_slots: int = config(
        ConfigType.INT,
        1000,
        "Most incremental fetch sessions; a client that gets none is answered in full every time.",
        at_least(0),
    )

    # Topics
    auto_create_topics_enable: bool = config(
        ConfigType.BOOLEAN, True, "Whether a topic is created when a client first asks for its metadata."
    )
    default_replication_factor: int = config(
        ConfigType.INT, 1, "Replicas of a topic that is created without a number.", at_least(1)
    )
    delete_topic_enable: bool = config(ConfigType.BOOLEAN, True, "Whether topics may be deleted.")
    min_insync_replicas: int = config(
        ConfigType.INT,
        1,
        "Replicas that must be in sync for a produce with acks=all to be taken.",
        at_least(1),
        dynamic=True,
    )
    num_partitions: int = config(
        ConfigType.INT, 1, "Partitions of a topic that is created without a number.", at_least(1)
    )

    # Logs
    log_dirs: tuple[str, ...] = config(
        ConfigType.LIST, ("headwater-data",), "Folders that hold the logs; metadata is kept in the first.", non_empty()
    )
    compression_type: str = config(
        ConfigType.STRING,
        "producer",
        "Codec of the batches on disk; producer keeps the bytes as they were sent.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        dynamic=True,
    )
    compression_gzip_level: int = config(
        ConfigType.INT,
        -1,
        "Compression level of gzip; used only where compression.type is gzip.",
        Validator("-1 or between 1 and 9", lambda value: value == -1 or 1 <= value <= 9),
        dynamic=True,
    )
    compression_lz4_level: int = config(
        ConfigType.INT,
        9,
        "Compression level of lz4; used only where compression.type is lz4.",
        between(1, 17),
        dynamic=True,
    )
    compression_zstd_level: int = config(
        ConfigType.INT,
        3,
        "Compression level of zstd; used only where compression.type is zstd.",
        between(-131072, 22),
        dynamic=True,
    )
    log_cleanup_policy: tuple[str, ...] = config(
        ConfigType.LIST,
        ("delete",),
        "How old segments go: delete discards them by retention, compact keeps the last record of each key.",
        list_of("delete", "compact"),
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = config(
        ConfigType.LONG, 15_000, "How long the cleaner sleeps when no log needs it.", at_least(0), dynamic=True
    )
    log_cleaner_dedupe_buffer_size: int = config(
        ConfigType.LONG,
        134_217_728,
        "Memory for the map of keys to offsets, shared by all cleaner processes: 24 bytes a key.",
        at_least(1_048_576),
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = config(
        ConfigType.LONG,
        86_400_000,
        "How long compacted topics keep tombstones, from the first cleaning that finds nothing older of their key.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_enable: bool = config(
        ConfigType.BOOLEAN, True, "Whether logs are compacted; without it compacted topics grow without end."
    )
    log_cleaner_io_buffer_load_factor: float = config(
        ConfigType.DOUBLE, 0.9, "How full the map of keys to offsets may become.", between(0.01, 0.99), dynamic=True
    )
    log_cleaner_io_buffer_size: int = config(
        ConfigType.INT,
        524_288,
        "Bytes that the cleaner reads at a time, shared by all cleaner processes.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_io_max_bytes_per_second: float = config(
        ConfigType.DOUBLE,
        1.7976931348623157e308,
        "Most bytes a second that the cleaner reads and writes, on average; the default is no limit.",
        Validator("more than 0", lambda value: value > 0),
        dynamic=True,
    )
    log_cleaner_max_compaction_lag_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Longest time a record of a compacted topic stays uncompacted.",
        at_least(1),
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio: float = config(
        ConfigType.DOUBLE,
        0.5,
        "Share of a compacted log that must be dirty before it is cleaned.",
        between(0, 1),
        dynamic=True,
    )
    log_cleaner_min_compaction_lag_ms: int = config(
        ConfigType.LONG,
        0,
        "Shortest time a record of a compacted topic stays uncompacted.",
        at_least(0),
        dynamic=True,
    )
    log_cleaner_threads: int = config(
        ConfigType.INT,
        1,
        "Logs that are compacted at the same time, each by a process of its own; with 0, none is.",
        at_least(0),
        dynamic=True,
    )
    log_flush_interval_messages: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Records after which a log is forced to disk; the default leaves it to the operating system.",
        at_least(1),
        dynamic=True,
    )
    log_flush_interval_ms: int | None = config(
        ConfigType.LONG,
        None,
        "Time after which a log is forced to disk; by default log.flush.scheduler.interval.ms.",
        at_least(0),
        dynamic=True,
    )
    log_flush_offset_checkpoint_interval_ms: int = config(
        ConfigType.INT,
        60_000,
        "How often the logs are brought to disk beside other work, so that a start after a crash has little to check.",
        at_least(0),
    )
    log_flush_start_offset_checkpoint_interval_ms: int = config(
        ConfigType.INT, 60_000, "How often it is written down where the logs begin.", at_least(0)
    )
    log_flush_scheduler_interval_ms: int = config(
        ConfigType.LONG, LONG_MAX, "How often it is checked whether a log must be forced to disk.", at_least(1)
    )
    log_index_interval_bytes: int = config(
        ConfigType.INT, 4096, "Bytes of log between two entries of the offset index.", at_least(0), dynamic=True
    )
    log_index_size_max_bytes: int = config(
        ConfigType.INT, 10_485_760, "Largest size of a segment's offset index.", at_least(4), dynamic=True
    )
    log_message_timestamp_after_max_ms: int = config(
        ConfigType.LONG,
        3_600_000,
        "How far a record's timestamp may lie in the future of the broker's clock (CreateTime).",
        at_least(0),
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "How far a record's timestamp may lie in the past of the broker's clock (CreateTime).",
        at_least(0),
        dynamic=True,
    )
    log_message_timestamp_type: str = config(
        ConfigType.STRING,
        "CreateTime",
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
        one_of("CreateTime", "LogAppendTime"),
        dynamic=True,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = config(
        ConfigType.LONG,
        LONG_MAX,
        "Bytes a second that are copied by moves between the folders of log.dirs, all of them together; 0 halts them.",
        at_least(0),
        dynamic=True,
    )
    log_retention_bytes: int = config(
        ConfigType.LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; a negative number is no limit.",
        dynamic=True,
    )
    log_retention_check_interval_ms: int = config(
        ConfigType.LONG, 300_000, "How often it is checked whether segments must be deleted.", at_least(1)
    )
    log_retention_hours: int = config(
        ConfigType.INT,
        168,
        "Age in hours above which segments are deleted; log.retention.minutes is stronger.",
        at_least(-1),
    )
    log_retention_minutes: int | None = config(
        ConfigType.INT,
        None,
        "Age in minutes above which segments are deleted; log.retention.ms is stronger.",
        at_least(-1),
    )
    log_retention_ms: int | None = config(
        ConfigType.LONG,
        None,
        "Age above which a partition's oldest segments are deleted; -1 is no limit, and 0 is refused, in hours, too.",
        at_least(-1),
        dynamic=True,
    )
    log_roll_hours: int = config(
        ConfigType.INT,
        168,
        "Age in hours at which a log rolls to its next segment; log.roll.ms is stronger.",
        at_least(1),
    )
    log_roll_jitter_hours: int = config(
        ConfigType.INT,
        0,
        "Random hours that are taken off log.roll.hours; log.roll.jitter.ms is stronger.",
        at_least(0),
    )
    log_roll_jitter_ms: int | None = config(
        ConfigType.LONG, None, "Random time that is taken off log.roll.ms.", at_least(0), dynamic=True
    )
    log_roll_ms: int | None = config(
        ConfigType.LONG,
        None,
        "Age at which a log rolls to its next segment though not full.",
        at_least(1),
        dynamic=True,
    )
    log_segment_bytes: int = config(
        ConfigType.INT, 1_073_741_824, "Size at which a log rolls to its next segment.", at_least(14), dynamic=True
    )
    log_segment_delete_delay_ms: int = config(
        ConfigType.LONG,
        60_000,
        "How long the files of a deleted segment stay on disk, so that a read under way can end.",
        at_least(0),
        dynamic=True,
    )
    message_max_bytes: int = config(
        ConfigType.INT,
        1_048_588,
        "Largest record batch that is taken, as sent (compressed).",
        at_least(0),
        dynamic=True,
    )
    producer_id_expiration_ms: int = config(
        ConfigType.INT,
        86_400_000,
        "How long a partition remembers an idempotent producer that is silent.",
        at_least(1),
        dynamic=True,
    )

    # Groups and their offsets
    group_initial_rebalance_delay_ms: int = config(
        ConfigType.INT, 3000, "How long the first rebalance of an empty group waits for more members.", at_least(0)
    )
    group_max_session_timeout_ms: int = config(
        ConfigType.INT, 1_800_000, "Longest session timeout a member may ask for.", at_least(1)
    )
    group_max_size: int = config(ConfigType.INT, INT_MAX, "Most members of one group.", at_least(1))
    group_min_session_timeout_ms: int = config(
        ConfigType.INT, 6000, "Shortest session timeout a member may ask for.", at_least(1)
    )
    offset_metadata_max_bytes: int = config(
        ConfigType.INT, 4096, "Longest metadata of one committed offset.", at_least(0)
    )
    offsets_commit_timeout_ms: int = config(
        ConfigType.INT, 5000, "How long an offset commit waits for the replicas of __consumer_offsets.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = config(
        ConfigType.LONG, 600_000, "How often it is checked whether committed offsets have expired.", at_least(1)
    )
    offsets_retention_minutes: int = config(
        ConfigType.INT, 10_080, "How long the offsets of a group without members are kept.", at_least(1)
    )
    offsets_topic_num_partitions: int = config(
        ConfigType.INT, 50, "Partitions of __consumer_offsets; fixed once it exists.", at_least(1)
    )
    offsets_topic_replication_factor: int = config(
        ConfigType.SHORT,
        1,  # Kafka's default is 3, which a cluster of one cannot give
        "Replicas of __consumer_offsets.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = config(
        ConfigType.INT, 104_857_600, "Segment size of __consumer_offsets.", at_least(14)
    )

    # Readers of old data
    cold_read_max_bytes_per_second_per_core: int = config(
        ConfigType.LONG,
        200_000_000,
        "Bytes a second of records that are not in the page cache, sent to all consumers together while producers "
        "write, for each core of the machine; at other times, over TLS, and to more than 16 connections at once there "
        "is no limit.",
        at_least(1 << 20),
        dynamic=True,
    )

    # Metrics
    prometheus_host: str = config(ConfigType.STRING, "127.0.0.1", "Address on which Prometheus' endpoint listens.")
    prometheus_port: int = config(
        ConfigType.INT,
        -1,
        "Port of Prometheus' endpoint, GET /metrics; 0 takes any free port, -1 has none.",
        between(-1, 65_535),
    )

    # Who may do what
    authorizer_class_name: str = config(
        ConfigType.STRING,
        "",
        f"{STANDARD_AUTHORIZER}: access control lists decide who may do what. Empty: everybody may do everything.",
        Validator(f"{STANDARD_AUTHORIZER} or empty", lambda value: value in ("", STANDARD_AUTHORIZER)),
    )
    super_users: str = config(
        ConfigType.STRING,
        "",
        "Principals that may do everything, separated by semicolons: User:admin;User:CN=broker.",
        Validator("principals such as User:admin, separated by semicolons", are_principals),
    )
    allow_everyone_if_no_acl_found: bool = config(
        ConfigType.BOOLEAN, False, "Whether everybody may do everything to what no access control list is about."
    )

    # How much clients may use
    quota_window_num: int = config(
        ConfigType.INT, 11, "Windows of time over which a client's use is measured.", at_least(1)
    )
    quota_window_size_seconds: int = config(ConfigType.INT, 1, "Length of each of these windows.", at_least(1))
    controller_quota_window_num: int = config(
        ConfigType.INT, 11, "Windows of time whose creations and deletions of partitions may come at once.", at_least(1)
    )
    controller_quota_window_size_seconds: int = config(
        ConfigType.INT, 1, "Length of each of these windows.", at_least(1)
    )

    explicit: frozenset[str] = frozenset()
    """Names that were set, whatever to."""
    listener_overrides: Mapping[str, Value] = dataclasses.field(default_factory=dict, repr=False)
    """What was set for one listener, by its whole name (`listener.name.<name>....`)."""

    @staticmethod
    def from_properties(properties: Mapping[str, object] | None = None) -> "BrokerConfig":
        """A broker's configs from Kafka's names to texts or typed values; ConfigError with one line for a mistake."""
        return _build({}, frozenset(), {}, properties or {})

    def with_properties(self, properties: Mapping[str, object]) -> "BrokerConfig":
        """These configs with some replaced (such as a broker's dynamic configs), under the same rules."""
        if not properties:
            return self
        values = {definition.attribute: self.value(name) for name, definition in BROKER_CONFIGS.items()}
        return _build(values, self.explicit, self.listener_overrides, properties)

    def with_fitting(self, properties: Mapping[str, object]) -> tuple["BrokerConfig", dict[str, str]]:
        """These configs with those of `properties` that fit, and by name why the others do not."""
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
            # One may fit only after another: a lower maximum after its lower minimum.
            if len(reasons) == len(left):
                return config, reasons

    def value(self, name: str) -> Any:
        """The value of a config by Kafka's name."""
        if name.startswith(LISTENER_PREFIX):
            return self.listener_overrides[name]
        return getattr(self, BROKER_CONFIGS[name].attribute)

    @property
    def listener_definitions(self) -> dict[str, ConfigDef]:
        """The configs that were set for one listener, by their whole names."""
        return {name: listener_config_def(name) for name in self.listener_overrides}

    def listener_config(self, listener: Endpoint) -> ListenerConfig:
        """The configs that hold for one of the listeners."""
        return ListenerConfig(self, listener)

    @property
    def bind_endpoints(self) -> tuple[Endpoint, ...]:
        """`listeners`, parsed."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return tuple(parse_listener("listeners", text, protocols) for text in self.listeners)

    @property
    def advertised_endpoints(self) -> tuple[Endpoint, ...]:
        """`advertised.listeners`, parsed; empty when they are to be inferred from the listeners."""
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
    """Rules over several configs."""
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
    _check_retention(broker)
    check_connections_per_ip(broker.max_connections_per_ip, broker.max_connections_per_ip_overrides)
    if broker.message_max_bytes > broker.socket_request_max_bytes:
        raise ConfigError(
            f"message.max.bytes ({broker.message_max_bytes}) is above socket.request.max.bytes "
            f"({broker.socket_request_max_bytes}): such a batch could never arrive"
        )


def _check_retention(broker: BrokerConfig) -> None:
    # Only the strongest that is set counts, as in Kafka.
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
