"""The `kafka.*` options: a Kafka client's properties, each supported, ignored or refused.

`format("kafka")` passes all of them to Kafka's Java client. Migrated jobs still set them, so every property of that
client is known: properties without effect are accepted, and unsupported properties are refused with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headwater.logtier.client.cluster import ClientConfig, parse_bootstrap_servers
from headwater.logtier.client.key_stores import without_java_stores
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.config import ConfigError
from headwater.logtier.config.client_properties import ClientConfigError, librdkafka_properties, read_client_config
from headwater.pipelines.datasource import COMMAND_CONFIG_OPTION
from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.option_values import OptionValues

__all__ = [
    "CONSUMER_PROPERTIES",
    "CONSUMER_REFUSED",
    "CONSUMER_WITHOUT_EFFECT",
    "PRODUCER_PROPERTIES",
    "PRODUCER_REFUSED",
    "PRODUCER_WITHOUT_EFFECT",
    "client_config",
    "kafka_options",
    "refuse",
]

PREFIX: Final = "kafka."

_CLIENT_PROPERTIES: Final = (
    "bootstrap.servers",
    "client.id",
    "default.api.timeout.ms",
    "receive.buffer.bytes",
    "request.timeout.ms",
    "socket.connection.setup.timeout.ms",
)
CONSUMER_PROPERTIES: Final = (
    *_CLIENT_PROPERTIES,
    "client.rack",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "isolation.level",
    "max.partition.fetch.bytes",
)
PRODUCER_PROPERTIES: Final = (
    *_CLIENT_PROPERTIES,
    "acks",
    "batch.size",
    "buffer.memory",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
)

_CONNECTIONS: Final = "connections are opened when they are needed, tried again, and closed after the task"
_LEVEL: Final = "the codec compresses at its usual level"
_METRICS: Final = "this client has no metrics of its own"
_GROUP: Final = "partitions are planned by Spark: no consumer group is joined, and nothing is committed"
_CLIENT_WITHOUT_EFFECT: Final = {
    "auto.include.jmx.reporter": _METRICS,
    "client.dns.lookup": _CONNECTIONS,
    "connections.max.idle.ms": _CONNECTIONS,
    "enable.metrics.push": _METRICS,
    "metadata.max.age.ms": "metadata is asked for when it is needed",
    "metadata.recovery.rebootstrap.trigger.ms": _CONNECTIONS,
    "metadata.recovery.strategy": _CONNECTIONS,
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "reconnect.backoff.max.ms": _CONNECTIONS,
    "reconnect.backoff.ms": _CONNECTIONS,
    "retry.backoff.max.ms": _CONNECTIONS,
    "retry.backoff.ms": _CONNECTIONS,
    "send.buffer.bytes": _CONNECTIONS,
    "socket.connection.setup.timeout.max.ms": _CONNECTIONS,
}
CONSUMER_WITHOUT_EFFECT: Final = {
    **_CLIENT_WITHOUT_EFFECT,
    "allow.auto.create.topics": "reading never creates a topic",
    "auto.commit.interval.ms": _GROUP,
    "check.crcs": "checksums are always checked",
    "exclude.internal.topics": "a pattern never means internal topics",
    "group.id": _GROUP,
    "group.instance.id": _GROUP,
    "group.protocol": _GROUP,
    "group.remote.assignor": _GROUP,
    "heartbeat.interval.ms": _GROUP,
    "max.poll.interval.ms": _GROUP,
    "max.poll.records": "records come in Arrow batches",
    "partition.assignment.strategy": _GROUP,
    "session.timeout.ms": _GROUP,
}
PRODUCER_WITHOUT_EFFECT: Final = {
    **_CLIENT_WITHOUT_EFFECT,
    "compression.gzip.level": _LEVEL,
    "compression.lz4.level": _LEVEL,
    "compression.zstd.level": _LEVEL,
    "max.block.ms": "default.api.timeout.ms bounds the wait for metadata",
    "metadata.max.idle.ms": "metadata is asked for when it is needed",
    "partitioner.adaptive.partitioning.enable": "rows without a key are spread evenly",
    "partitioner.availability.timeout.ms": "rows without a key are spread evenly",
    "retries": "delivery.timeout.ms bounds the retries",
    "transaction.timeout.ms": "there is no transaction",
}

_DESERIALIZER: Final = "keys and values come as they are; deserialize them by functions of the DataFrame"
_SERIALIZER: Final = "keys and values are written as they are; serialize them by functions of the DataFrame"
_JAVA: Final = "it names a Java class, and no Java is in the way here"
CONSUMER_REFUSED: Final = {
    "auto.offset.reset": "set startingOffsets: Spark keeps the offsets, and starts there only when a query is new",
    "enable.auto.commit": "Spark keeps the offsets; nothing is committed to a consumer group",
    "interceptor.classes": _JAVA,
    "key.deserializer": _DESERIALIZER,
    "value.deserializer": _DESERIALIZER,
}
PRODUCER_REFUSED: Final = {
    "interceptor.classes": _JAVA,
    "key.serializer": _SERIALIZER,
    "partitioner.class": f"{_JAVA}; a column named partition places rows",
    "partitioner.ignore.keys": "rows with a key go where their key says; leave the key out, or give a column partition",
    "transactional.id": "this writer is at-least-once; topics as sinks of a pipeline are exactly-once",
    "value.serializer": _SERIALIZER,
}

_SECURITY_PREFIXES: Final = ("security.", "sasl.", "ssl.")
# The versions of Headwater's TLS: naming both changes nothing, naming one would.
_TLS_VERSIONS: Final = {"TLSv1.2", "TLSv1.3"}
CLIENT_ID_BYTES_MAX: Final = 32767


def kafka_options(properties: Iterable[str]) -> list[str]:
    """Option names of properties."""
    return [PREFIX + name for name in properties]


def is_security(option: str) -> bool:
    """Whether an option is one of `kafka.security.*`, `kafka.sasl.*`, `kafka.ssl.*`."""
    return option.startswith(tuple(PREFIX + prefix for prefix in _SECURITY_PREFIXES))


def refuse(values: OptionValues, refused: dict[str, str]) -> None:
    """Raise OptionError with the reason for the first unsupported option."""
    for name, reason in refused.items():
        if values.text(PREFIX + name) is not None:
            raise OptionError(f"option {PREFIX}{name} is not supported: {reason}")


def client_config(values: OptionValues, *, read_committed: bool = False) -> ClientConfig:
    """The client configuration of readers and writers."""
    none: tuple[tuple[str, int], ...] = ()
    servers = values.parse("kafka.bootstrap.servers", parse_bootstrap_servers, none)
    if not servers:
        raise OptionError("option kafka.bootstrap.servers is missing: give the brokers as host:port,host:port")
    default = ClientConfig(servers)
    client_id = values.text("kafka.client.id") or "headwater-spark"
    if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
        raise OptionError(f"option kafka.client.id is longer than the protocol's {CLIENT_ID_BYTES_MAX} bytes")
    properties = _properties_of_file(values)
    return ClientConfig(
        bootstrap_servers=servers,
        client_id=client_id,
        connect_timeout_ms=values.integer("kafka.socket.connection.setup.timeout.ms", default.connect_timeout_ms),
        request_timeout_ms=values.integer("kafka.request.timeout.ms", default.request_timeout_ms),
        api_timeout_ms=values.integer("kafka.default.api.timeout.ms", default.api_timeout_ms),
        receive_buffer_bytes=values.integer("kafka.receive.buffer.bytes", default.receive_buffer_bytes, low=-1),
        security=_security(values) if properties is None else _security_of_file(values, properties),
        read_committed=read_committed,
        rack=values.text("kafka.client.rack") or (properties or {}).get("client.rack", ""),
    )


def _security(values: OptionValues) -> ClientSecurity:
    """Security from Java's property names and files.

    Like Java's client, ignores properties that the protocol does not use.
    """
    given = {name.removeprefix(PREFIX): values.text(name) or "" for name in values.names() if is_security(name)}
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if not protocol.endswith("SSL"):
        given = {name: value for name, value in given.items() if not name.startswith("ssl.")}
    if not protocol.startswith("SASL_"):
        given = {name: value for name, value in given.items() if not name.startswith("sasl.")}
    if {version.strip() for version in given.get("ssl.enabled.protocols", "").split(",")} == _TLS_VERSIONS:
        del given["ssl.enabled.protocols"]
    try:
        return ClientSecurity.from_properties(librdkafka_properties(without_java_stores(given)))
    except ConfigError as error:
        raise OptionError(f"option {PREFIX}{error}") from None


def _properties_of_file(values: OptionValues) -> dict[str, str] | None:
    """The properties file, which replaces the security options; None without one."""
    path = values.text(COMMAND_CONFIG_OPTION)
    if path is None:
        return None
    options = [name for name in values.names() if is_security(name)]
    if options:
        raise OptionError(f"option {COMMAND_CONFIG_OPTION}: the file says how to connect; leave out {options[0]}")
    try:
        return read_client_config(path)
    except ClientConfigError as error:
        raise OptionError(f"option {COMMAND_CONFIG_OPTION}: {error}") from None


def _security_of_file(values: OptionValues, properties: dict[str, str]) -> ClientSecurity:
    """Security from a properties file, without its addresses; errors name properties, never values."""
    try:
        return ClientSecurity.from_properties(properties)
    except ConfigError as error:
        raise OptionError(f"option {COMMAND_CONFIG_OPTION}: {values.text(COMMAND_CONFIG_OPTION)}: {error}") from None
