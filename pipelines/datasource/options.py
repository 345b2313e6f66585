"""The options of the source, named as those of Spark's `format("kafka")`; what is not supported is refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from logtier.client.cluster import EARLIEST, LATEST, ClientConfig, parse_bootstrap_servers
from logtier.client.fetcher import FetchConfig
from logtier.client.producer import ProducerConfig
from logtier.records.compression import CODECS
from pipelines.datasource import PUSHDOWN_OPTION
from pipelines.datasource.errors import OptionError
from pipelines.datasource.offsets import Offsets, parse_offsets

__all__ = ["READ_OPTIONS", "WRITE_OPTIONS", "OffsetSpec", "ReadOptions", "Subscription", "WriteOptions"]

_T = TypeVar("_T")

_CLIENT_OPTIONS = (
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.default.api.timeout.ms",
    "kafka.receive.buffer.bytes",
    "kafka.request.timeout.ms",
    "kafka.security.protocol",
    "kafka.socket.connection.setup.timeout.ms",
)
READ_OPTIONS = (
    *_CLIENT_OPTIONS,
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    PUSHDOWN_OPTION,
    "includeHeaders",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
WRITE_OPTIONS = (
    *_CLIENT_OPTIONS,
    "includeHeaders",
    "kafka.acks",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.compression.type",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.linger.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.request.size",
    "topic",
)
# What Spark itself adds to the options of a reader or writer; no concern of ours.
_SPARK_OWN = frozenset({"path", "checkpointlocation", "querytype", "streamname"})


class _Values:
    """The options given, looked up without regard to case; names what is wrong with a value."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], doing: str) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        names = {name.lower() for name in known}
        for name in given:
            if name.lower() not in names and name.lower() not in _SPARK_OWN:
                raise OptionError(
                    f"option {name!r} is not supported by headwater when {doing}; supported are: {', '.join(known)}"
                )

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return None if value is None else value.strip()

    def parse(self, name: str, parser: Callable[[str], _T], default: _T) -> _T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return parser(text)
        except ValueError as error:
            raise OptionError(f"option {name} = {text!r}: {error}") from None

    def integer(self, name: str, default: int, *, low: int = 1, high: int = 2**31 - 1) -> int:
        def parse(text: str) -> int:
            if not re.fullmatch(r"-?\d{1,19}", text):
                raise ValueError("not a whole number")
            if not low <= int(text) <= high:
                raise ValueError(f"not between {low} and {high}")
            return int(text)

        return self.parse(name, parse, default)

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, {"true": True, "false": False}, default)

    def choice(self, name: str, choices: Mapping[str, _T], default: _T) -> _T:
        def parse(text: str) -> _T:
            if text.lower() not in choices:
                raise ValueError(f"only {' or '.join(choices)} is supported")
            return choices[text.lower()]

        return self.parse(name, parse, default)


def _client_config(values: _Values) -> ClientConfig:
    none: tuple[tuple[str, int], ...] = ()
    servers = values.parse("kafka.bootstrap.servers", parse_bootstrap_servers, none)
    if not servers:
        raise OptionError("option kafka.bootstrap.servers is missing: give the brokers as host:port,host:port")
    values.choice("kafka.security.protocol", {"plaintext": "PLAINTEXT"}, "PLAINTEXT")
    default = ClientConfig(servers)
    client_id = values.text("kafka.client.id") or "headwater-spark"
    if len(client_id.encode()) > 32767:
        raise OptionError("option kafka.client.id is longer than the protocol's 32767 bytes")
    return ClientConfig(
        bootstrap_servers=servers,
        client_id=client_id,
        connect_timeout_ms=values.integer("kafka.socket.connection.setup.timeout.ms", default.connect_timeout_ms),
        request_timeout_ms=values.integer("kafka.request.timeout.ms", default.request_timeout_ms),
        api_timeout_ms=values.integer("kafka.default.api.timeout.ms", default.api_timeout_ms),
        receive_buffer_bytes=values.integer("kafka.receive.buffer.bytes", default.receive_buffer_bytes, low=-1),
    )


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: of topics by name, of topics by pattern, or listed ones. Exactly one is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where a read starts or ends: one of EARLIEST, LATEST for all, offsets by partition, or timestamps (ms)."""

    everywhere: int | None = None
    offsets: Offsets = field(default_factory=dict)
    timestamps: Offsets = field(default_factory=dict)
    timestamp: int | None = None


def _parse_assign(text: str) -> tuple[tuple[str, int], ...]:
    try:
        parsed: Any = json.loads(text)
        assigned = tuple(sorted((str(topic), int(part)) for topic, parts in parsed.items() for part in parts))
    except (AttributeError, TypeError, ValueError):
        raise ValueError('not of the form {"topic": [0, 1]}') from None
    if not assigned:
        raise ValueError("no partition is named")
    return assigned


def _parse_topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ValueError("no topic is named")
    return topics


def _parse_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _parse_position(text: str) -> OffsetSpec:
    if text.lower() in ("earliest", "latest"):
        return OffsetSpec(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise ValueError('neither earliest, latest, nor of the form {"topic": {"0": 23, "1": -2}}')
    return OffsetSpec(offsets=parse_offsets(text))


def _parse_timestamps(text: str) -> Offsets:
    timestamps = parse_offsets(text)
    for value in timestamps.values():
        if value < 0:
            raise ValueError(f"{value} is not a timestamp in milliseconds")
    return timestamps


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a reader needs; picklable."""

    client: ClientConfig
    fetch: FetchConfig
    subscription: Subscription
    starting: OffsetSpec | None
    ending: OffsetSpec | None
    fail_without_timestamp_match: bool
    fail_on_data_loss: bool
    include_headers: bool
    offsets_per_trigger_max: int | None
    partitions_min: int | None
    pushdown: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Checks every option; raises OptionError with the name of the first that is wrong."""
        values = _Values(given, READ_OPTIONS, "reading")
        client = _client_config(values)
        values.choice("kafka.isolation.level", {"read_uncommitted": None}, None)
        fetch = FetchConfig()
        bytes_max = min(
            values.integer("kafka.fetch.max.bytes", fetch.bytes_max),
            values.integer("kafka.max.partition.fetch.bytes", fetch.bytes_max),
        )
        fetch = FetchConfig(
            bytes_max=min(bytes_max, 64 << 20),
            bytes_min=values.integer("kafka.fetch.min.bytes", fetch.bytes_min, low=0),
            wait_ms=min(
                values.integer("kafka.fetch.max.wait.ms", fetch.wait_ms, low=0), client.request_timeout_ms // 2
            ),
            stall_timeout_ms=values.integer("kafkaConsumer.pollTimeoutMs", fetch.stall_timeout_ms),
        )
        limit = values.integer("maxOffsetsPerTrigger", 0, high=2**63 - 1)
        return cls(
            client=client,
            fetch=fetch,
            subscription=_subscription(values),
            starting=_position(values, "starting"),
            ending=_position(values, "ending"),
            fail_without_timestamp_match=values.choice(
                "startingOffsetsByTimestampStrategy", {"error": True, "latest": False}, True
            ),
            fail_on_data_loss=values.flag("failOnDataLoss", True),
            include_headers=values.flag("includeHeaders", False),
            offsets_per_trigger_max=limit or None,
            partitions_min=values.integer("minPartitions", 0) or None,
            pushdown=values.flag(PUSHDOWN_OPTION, False),
        )


def _subscription(values: _Values) -> Subscription:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if values.text(name) is not None]
    if len(ways) != 1:
        said = " and ".join(ways) if ways else "none of them"
        raise OptionError(f"exactly one of the options subscribe, subscribePattern, assign is needed; given: {said}")
    return Subscription(
        topics=values.parse("subscribe", _parse_topics, ()),
        pattern=values.parse("subscribePattern", _parse_pattern, None),
        assigned=values.parse("assign", _parse_assign, ()),
    )


def _position(values: _Values, end: str) -> OffsetSpec | None:
    """The most specific of the three options for an end, as Spark ranks them."""
    if values.text(f"{end}Timestamp") is not None:
        return OffsetSpec(timestamp=values.integer(f"{end}Timestamp", 0, low=0, high=2**63 - 1))
    none: Offsets = {}
    by_timestamp = values.parse(f"{end}OffsetsByTimestamp", _parse_timestamps, none)
    if by_timestamp:
        return OffsetSpec(timestamps=by_timestamp)
    return values.parse(f"{end}Offsets", _parse_position, None)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything a writer needs; picklable."""

    client: ClientConfig
    producer: ProducerConfig
    topic: str | None
    codec: int
    batch_bytes: int
    linger_ms: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Checks every option; raises OptionError with the name of the first that is wrong."""
        values = _Values(given, WRITE_OPTIONS, "writing")
        client = _client_config(values)
        values.choice("kafka.acks", {"all": None, "-1": None}, None)
        values.choice("kafka.enable.idempotence", {"true": None}, None)
        values.flag("includeHeaders", True)  # a headers column is always written, as by Spark's own sink
        default = ProducerConfig()
        request_bytes_max = values.integer("kafka.max.request.size", default.request_bytes_max)
        batch_bytes = values.integer("kafka.batch.size", 256 << 10, high=64 << 20)
        topic = values.text("topic")
        if topic == "":
            raise OptionError("option topic is empty: name a topic, or leave it out and give a topic column")
        return cls(
            client=client,
            producer=ProducerConfig(
                request_bytes_max=request_bytes_max,
                requests_in_flight_max=values.integer(
                    "kafka.max.in.flight.requests.per.connection", default.requests_in_flight_max, high=5
                ),
                request_timeout_ms=client.request_timeout_ms,
                delivery_timeout_ms=values.integer("kafka.delivery.timeout.ms", default.delivery_timeout_ms),
                buffer_bytes=values.integer("kafka.buffer.memory", default.buffer_bytes),
            ),
            topic=topic,
            codec=values.choice("kafka.compression.type", CODECS, CODECS["none"]),
            batch_bytes=min(batch_bytes, request_bytes_max),
            linger_ms=values.integer("kafka.linger.ms", 1_000, low=0),
        )
