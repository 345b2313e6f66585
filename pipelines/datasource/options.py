"""The options of the source, named as in Spark's `format("kafka")`; unknown options are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.logtier.client.cluster import ClientConfig
from headwater.logtier.client.fetcher import FetchConfig
from headwater.logtier.client.producer import ProducerConfig
from headwater.logtier.records.compression import CODECS
from headwater.pipelines.datasource import (
    COMMAND_CONFIG_OPTION,
    DISORDER_OPTION,
    HEADERS_SEEN_OPTION,
    JSON_FIELDS_OPTION,
    PUSHDOWN_OPTION,
    TASK_RECORDS_OPTION,
    TOPIC_ID_OPTION,
)
from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.json_fields import JsonFields
from headwater.pipelines.datasource.kafka_properties import (
    CONSUMER_PROPERTIES,
    CONSUMER_REFUSED,
    CONSUMER_WITHOUT_EFFECT,
    PRODUCER_PROPERTIES,
    PRODUCER_REFUSED,
    PRODUCER_WITHOUT_EFFECT,
    client_config,
    is_security,
    kafka_options,
    refuse,
)
from headwater.pipelines.datasource.option_values import LONG_MAX, OptionValues, duration_ms
from headwater.pipelines.datasource.positions import (
    OffsetSpec,
    Subscription,
    check_start_before_end,
    position,
    subscription,
)

__all__ = ["READ_OPTIONS", "WRITE_OPTIONS", "ReadOptions", "WriteOptions"]

READ_OPTIONS: Final = (
    *kafka_options(CONSUMER_PROPERTIES),
    "archiveTable",
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    COMMAND_CONFIG_OPTION,
    HEADERS_SEEN_OPTION,
    JSON_FIELDS_OPTION,
    PUSHDOWN_OPTION,
    TASK_RECORDS_OPTION,
    TOPIC_ID_OPTION,
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
    DISORDER_OPTION,
)
WRITE_OPTIONS: Final = (*kafka_options(PRODUCER_PROPERTIES), COMMAND_CONFIG_OPTION, "includeHeaders", "topic")

FETCH_BYTES_MAX: Final = 64 << 20
BATCH_BYTES_MAX: Final = 64 << 20
# Batches that broker-side deduplication remembers per producer and partition.
REQUESTS_IN_FLIGHT_MAX: Final = 5
# Values from Spark's code (its documentation names another interval).
OFFSET_ATTEMPTS: Final = 3
OFFSET_RETRY_MS: Final = 1_000
TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader; picklable.

    Attributes:
        offset_attempts: Number of requests for partitions and offsets before the query fails.
        trigger_delay_ms_max: Maximum time that fewer than `offsets_per_trigger_min` offsets wait for more.
        partitions_min: Approximate number of tasks of a read; None means one task a partition.
        records_per_partition_max: Maximum of offsets of one partition in a task.
        records_per_task_min: Ranges with fewer offsets share a task.
        pushdown: Whether the session's Spark offers filters to the batch reader.
        tell_headers: Whether a column shows if any record has headers.
        json_fields: Fields of JSON values that become columns.
        timestamp_disorder_ms: How far timestamps of a partition fall back; None if it is not stated.
        topic_id: The id that the topic of a batch read has; '' for any.
        archive_table: Path or URL of the table with the history of the one subscribed topic.
    """

    client: ClientConfig
    fetch: FetchConfig
    subscription: Subscription
    starting: OffsetSpec | None
    ending: OffsetSpec | None
    fail_without_timestamp_match: bool
    fail_on_data_loss: bool
    include_headers: bool
    offset_attempts: int
    offset_retry_ms: int
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    records_per_partition_max: int | None
    records_per_task_min: int
    pushdown: bool
    tell_headers: bool
    json_fields: JsonFields | None
    timestamp_disorder_ms: int | None
    topic_id: str
    archive_table: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Parse and check every option. Raises OptionError with the name of the first invalid option."""
        values = OptionValues(given)
        refuse(values, CONSUMER_REFUSED)
        values.check_known(
            (*READ_OPTIONS, *kafka_options(CONSUMER_WITHOUT_EFFECT), *_security_given(values)), "reading"
        )
        committed = values.choice("kafka.isolation.level", {"read_committed": True, "read_uncommitted": False}, False)
        client = client_config(values, read_committed=committed)
        offsets_max = values.integer("maxOffsetsPerTrigger", 0, high=LONG_MAX) or None
        offsets_min = values.integer("minOffsetsPerTrigger", 0, low=0, high=LONG_MAX) or None
        if offsets_max is not None and offsets_min is not None and offsets_min > offsets_max:
            raise OptionError(
                f"option minOffsetsPerTrigger = {offsets_min} is more than maxOffsetsPerTrigger = {offsets_max}"
            )
        starting, ending = position(values, "starting"), position(values, "ending")
        archive_table = _archive_table(values, starting)
        check_start_before_end(starting, ending)
        return cls(
            client=client,
            fetch=_fetch_config(values, client),
            subscription=subscription(values),
            starting=starting,
            ending=ending,
            fail_without_timestamp_match=values.choice(
                "startingOffsetsByTimestampStrategy", {"error": True, "latest": False}, True
            ),
            fail_on_data_loss=values.flag("failOnDataLoss", True),
            include_headers=values.flag("includeHeaders", False),
            offset_attempts=values.integer("fetchOffset.numRetries", OFFSET_ATTEMPTS),
            offset_retry_ms=values.integer("fetchOffset.retryIntervalMs", OFFSET_RETRY_MS, low=0),
            offsets_per_trigger_max=offsets_max,
            offsets_per_trigger_min=offsets_min,
            trigger_delay_ms_max=values.parse("maxTriggerDelay", duration_ms, TRIGGER_DELAY_MS),
            partitions_min=values.integer("minPartitions", 0) or None,
            records_per_partition_max=values.integer("maxRecordsPerPartition", 0, high=LONG_MAX) or None,
            records_per_task_min=values.integer(TASK_RECORDS_OPTION, 1),
            pushdown=values.flag(PUSHDOWN_OPTION, False),
            tell_headers=values.flag(HEADERS_SEEN_OPTION, False),
            json_fields=values.parse(JSON_FIELDS_OPTION, JsonFields.parse, None),
            timestamp_disorder_ms=values.integer_or_none(DISORDER_OPTION, low=0, high=LONG_MAX),
            topic_id=values.text(TOPIC_ID_OPTION) or "",
            archive_table=archive_table,
        )


def _archive_table(values: OptionValues, starting: OffsetSpec | None) -> str | None:
    path = values.text("archiveTable")
    if path is None:
        return None
    if not path:
        raise OptionError("option archiveTable is empty: give the path or URL of the archive's table")
    if len(subscription(values).topics) != 1:
        raise OptionError("option archiveTable: the table is of one topic; name it, and no other, in subscribe")
    if starting is not None and (starting.timestamp is not None or starting.timestamps):
        raise OptionError("option archiveTable: a start by time is not looked up in the table; give startingOffsets")
    for name in (JSON_FIELDS_OPTION, HEADERS_SEEN_OPTION):
        if values.text(name) is not None:
            raise OptionError(f"option archiveTable cannot be combined with {name}")
    return path


def _security_given(values: OptionValues) -> list[str]:
    """The security options that are set. They are checked when read, by the rules of the selected protocol."""
    return [name for name in values.names() if is_security(name)]


def _fetch_config(values: OptionValues, client: ClientConfig) -> FetchConfig:
    default = FetchConfig()
    bytes_max = min(
        values.integer("kafka.fetch.max.bytes", default.bytes_max),
        values.integer("kafka.max.partition.fetch.bytes", default.bytes_max),
    )
    wait_ms = values.integer("kafka.fetch.max.wait.ms", default.wait_ms, low=0)
    return FetchConfig(
        bytes_max=min(bytes_max, FETCH_BYTES_MAX),
        bytes_min=values.integer("kafka.fetch.min.bytes", default.bytes_min, low=0),
        wait_ms=min(wait_ms, client.request_timeout_ms // 2),
        stall_timeout_ms=values.integer("kafkaConsumer.pollTimeoutMs", default.stall_timeout_ms),
    )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a writer; picklable."""

    client: ClientConfig
    producer: ProducerConfig
    topic: str | None
    codec: int
    batch_bytes: int
    linger_ms: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Parse and check every option. Raises OptionError with the name of the first invalid option."""
        values = OptionValues(given)
        refuse(values, PRODUCER_REFUSED)
        values.check_known(
            (*WRITE_OPTIONS, *kafka_options(PRODUCER_WITHOUT_EFFECT), *_security_given(values)), "writing"
        )
        client = client_config(values)
        # All in-sync replicas acknowledge every row, and a task writes it once: never less than the options request.
        values.choice("kafka.acks", {"all": None, "-1": None, "1": None, "0": None}, None)
        values.flag("kafka.enable.idempotence", True)
        values.flag("includeHeaders", True)  # a headers column is always written, as in Spark's own sink
        default = ProducerConfig()
        request_bytes_max = values.integer("kafka.max.request.size", default.request_bytes_max)
        batch_bytes = values.integer("kafka.batch.size", 256 << 10, high=BATCH_BYTES_MAX)
        in_flight = values.integer("kafka.max.in.flight.requests.per.connection", default.requests_in_flight_max)
        topic = values.text("topic")
        if topic == "":
            raise OptionError("option topic is empty: name a topic, or leave it out and give a topic column")
        return cls(
            client=client,
            producer=ProducerConfig(
                request_bytes_max=request_bytes_max,
                requests_in_flight_max=min(in_flight, REQUESTS_IN_FLIGHT_MAX),
                request_timeout_ms=client.request_timeout_ms,
                delivery_timeout_ms=values.integer("kafka.delivery.timeout.ms", default.delivery_timeout_ms),
                buffer_bytes=values.integer("kafka.buffer.memory", default.buffer_bytes),
            ),
            topic=topic,
            codec=values.choice("kafka.compression.type", CODECS, CODECS["none"]),
            batch_bytes=min(batch_bytes, request_bytes_max),
            linger_ms=values.integer("kafka.linger.ms", 1_000, low=0),
        )
