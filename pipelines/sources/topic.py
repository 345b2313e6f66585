"""Topics as streaming and batch frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers, connection_options
from headwater.pipelines.definition import interval_ms
from headwater.pipelines.sources import debezium, decoding
from headwater.pipelines.sources.kind import InputMistake, Running, Sample, StageInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.datasource.json_fields import JsonFields
    from headwater.pipelines.definition import Loaded, TopicSource
    from headwater.pipelines.sources.known_columns import KnownColumns

SPARK_FORMAT = (
    "headwater"  # the name of headwater.pipelines.datasource; its options and columns are those of format("kafka")
)
READ_COMMITTED = "read_committed"


def stream(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    source: TopicSource,
    max_offsets_per_trigger: int | None,
    *,
    headers: bool = False,
    json_fields: JsonFields | None = None,
    archive_table: str = "",
) -> DataFrame:
    """The records of a topic as a streaming frame: the columns of `columns.RECORD_DDL`, timestampType, HEADERS_SEEN.

    `json_fields` become columns, too, for records that the reading tasks can parse exactly. With the table of the
    topic's archive, the last column is its row (`datasource.history`), and there are neither HEADERS_SEEN nor
    `json_fields`.
    """
    from headwater.pipelines.datasource import (
        HEADERS_SEEN_OPTION,
        JSON_FIELDS_OPTION,
        TASK_RECORDS,
        TASK_RECORDS_OPTION,
    )

    name, start = source.starting_option()
    reader = (
        spark.readStream.format(SPARK_FORMAT)
        .options(**connection_options(bootstrap_servers))
        .option("kafka.isolation.level", source.isolation)
        .option("subscribe", source.topic)
        .option(name, start)
        .option("failOnDataLoss", str(source.fail_on_data_loss).lower())
        .option(TASK_RECORDS_OPTION, TASK_RECORDS)
    )
    if archive_table:
        reader = reader.option("archiveTable", archive_table)
    else:
        reader = reader.option(HEADERS_SEEN_OPTION, "true")
    if json_fields is not None:
        reader = reader.option(JSON_FIELDS_OPTION, json_fields.text())
    if name == "startingTimestamp":
        # A partition without a record since the moment is read from its end: later records come after the moment.
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets_per_trigger)
    if source.min_offsets_per_trigger is not None:
        reader = reader.option("minOffsetsPerTrigger", source.min_offsets_per_trigger)
    if source.max_trigger_delay is not None:
        reader = reader.option("maxTriggerDelay", f"{interval_ms(source.max_trigger_delay)}ms")
    return reader.option("includeHeaders", str(headers).lower()).load()


def batch_between(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topic: str,
    start: str,
    end: str,
    *,
    isolation: str = READ_COMMITTED,
    headers: bool = False,
    json_fields: JsonFields | None = None,
    pushdown: bool = True,
    disorder_ms: int | None = None,
) -> DataFrame:
    """The records of a topic from `start` to `end` (excluded), in the form of `startingOffsets` and `endingOffsets`.

    A frame with `pushdown` must not be scanned with different filters: in Spark 4.2.0 the scans of one relation share
    the ranges of whichever was planned last (`PythonDataSourceV2.setReadInfo`). `disorder_ms` is that of the
    timestamps, for filters on them; by default the session's, if it has one.
    """
    reader = _batch_reader(spark, bootstrap_servers, start, end, isolation, headers, json_fields, pushdown, disorder_ms)
    return reader.option("subscribe", topic).load()


def _batch_reader(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    start: str,
    end: str,
    isolation: str,
    headers: bool,
    json_fields: JsonFields | None,
    pushdown: bool,
    disorder_ms: int | None,
) -> DataFrameReader:
    from headwater.pipelines.datasource import DISORDER_CONF, DISORDER_OPTION, JSON_FIELDS_OPTION, PUSHDOWN_OPTION

    reader = (
        spark.read.format(SPARK_FORMAT)
        .option(PUSHDOWN_OPTION, str(pushdown).lower())  # true needs a setting from headwater.pipelines.spark.session
        .options(**connection_options(bootstrap_servers))
        .option("kafka.isolation.level", isolation)
        .option("startingOffsets", start)
        .option("endingOffsets", end)
        .option("includeHeaders", str(headers).lower())
    )
    if json_fields is not None:
        reader = reader.option(JSON_FIELDS_OPTION, json_fields.text())
    disorder = spark.conf.get(DISORDER_CONF, None) if disorder_ms is None else disorder_ms
    if disorder is not None:
        reader = reader.option(DISORDER_OPTION, disorder)
    return reader


def batch(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topic: str,
    *,
    headers: bool = False,
    isolation: str = READ_COMMITTED,
    json_fields: JsonFields | None = None,
    pushdown: bool = True,
    disorder_ms: int | None = None,
) -> DataFrame:
    """The records of a topic from its first to its current last offset. `headers` adds the column `headers`."""
    return batch_between(
        spark,
        bootstrap_servers,
        topic,
        "earliest",
        "latest",
        isolation=isolation,
        headers=headers,
        json_fields=json_fields,
        pushdown=pushdown,
        disorder_ms=disorder_ms,
    )


def batch_of_ranges(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topic: str,
    topic_id: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    headers: bool = False,
    json_fields: JsonFields | None = None,
    pushdown: bool = True,
    disorder_ms: int | None = None,
) -> DataFrame:
    """The committed records of some partitions of a topic, from the first offset to the second (excluded).

    A topic of another id is refused. The other arguments are those of `batch_between`.
    """
    start, end = (_offsets(topic, {p: part[side] for p, part in ranges.items()}) for side in (0, 1))
    reader = _batch_reader(
        spark, bootstrap_servers, start, end, READ_COMMITTED, headers, json_fields, pushdown, disorder_ms
    )
    return _of_partitions(reader, topic, topic_id, ranges)


def batch_from(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topic: str,
    topic_id: str,
    starts: Mapping[int, int],
    *,
    headers: bool = False,
    json_fields: JsonFields | None = None,
) -> DataFrame:
    """The committed records of some partitions of a topic from an offset on, for a view: see `asked_again`.

    A topic of another id is refused.
    """
    reader = _batch_reader(
        spark, bootstrap_servers, _offsets(topic, starts), "latest", READ_COMMITTED, headers, json_fields, False, None
    )
    return asked_again(_of_partitions(reader, topic, topic_id, starts))


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets by partition in the form of `startingOffsets`."""
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def _of_partitions(reader: DataFrameReader, topic: str, topic_id: str, partitions: Iterable[int]) -> DataFrame:
    """The records of some partitions of a topic with this id."""
    from headwater.pipelines.datasource import TASK_RECORDS, TASK_RECORDS_OPTION, TOPIC_ID_OPTION

    reader = reader.option("assign", json.dumps({topic: sorted(partitions)}))
    return reader.option(TASK_RECORDS_OPTION, TASK_RECORDS).option(TOPIC_ID_OPTION, topic_id).load()


def asked_again(records: DataFrame) -> DataFrame:
    """Records whose ranges are planned for each statement, for a frame that becomes a view and is read for long.

    Spark 4.2.0 plans the ranges of a relation of a Python source once, and again only for filters that it offers to the
    source (`PythonDataSourceV2.setReadInfo`), as the one here, which all records pass. The ranges of a frame with
    `pushdown` would then be narrowed for other scans.
    """
    return records.where("offset >= 0")


def topic_ranges(plan: Any) -> list[tuple[str, str]]:
    """Start and end offsets (JSON) of every topic that a micro-batch's plan reads."""
    if plan.nodeName() == "StreamingDataSourceV2ScanRelation":
        return [(plan.startOffset().get().json(), plan.endOffset().get().json())]
    children = plan.children()
    return [found for i in range(children.size()) for found in topic_ranges(children.apply(i))]


class TopicSourceKind:
    """See `SourceKind`."""

    def columns(self, _session: SparkSession, _loaded: Loaded, source: TopicSource, known: KnownColumns) -> None:
        """None; checks that the columns are known, and that an Avro envelope's columns are an envelope's."""
        topic = source.topic
        if not known.has_columns(topic):
            raise InputMistake("topic", f"the columns of '{topic}' are unknown", f"add a schema to topics.{topic}")
        if source.envelope is not None and known.value_format(topic) == "avro":
            declared = known.values[topic].schema
            if declared is None or not debezium.is_envelope(declared):
                what = f"the schema of '{topic}' is not that of change events: it has no op and after"
                raise InputMistake("envelope", what, "name the schema that Debezium has registered, or registry")

    def empty(
        self,
        session: SparkSession,
        source: TopicSource,
        known: KnownColumns,
        _schema: StructType | None,
    ) -> DataFrame:
        """The decoded empty frame."""
        return decoding.decode_input(known, decoding.empty_records(session), source).drop(columns.ERROR)

    def stream(self, at: StageInput, source: TopicSource, _running: Running) -> DataFrame:
        """The decoded records."""
        headers = decoding.needs_headers(at.known, source)
        limit = source.offsets_per_trigger(has_watermark=at.stage.has_watermark)
        fields = decoding.json_fields(at.known, source)
        records = stream(at.session, at.servers, source, limit, headers=headers, json_fields=fields)
        return decoding.decode_input(at.known, records, source)

    def read_again(self, at: StageInput, source: TopicSource, plan: Any) -> DataFrame | None:
        """The records between the batch's offsets; for a topic that is read twice, the offsets of this input."""
        found = [offsets for offsets in topic_ranges(plan) if source.topic in json.loads(offsets[1])]
        same = [i for i, other in enumerate(at.stage.inputs) if other.place == source.place]
        place = same.index(at.position)
        if place >= len(found):
            return None
        headers = decoding.needs_headers(at.known, source)
        start, end = found[place]
        records = batch_between(
            at.session,
            at.servers,
            source.topic,
            start,
            end,
            isolation=source.isolation,
            headers=headers,
            json_fields=decoding.json_fields(at.known, source),
        )
        return decoding.decode_input(at.known, records, source)

    def sample(self, at: StageInput, source: TopicSource, wanted: Sample) -> tuple[DataFrame, int]:
        """The decoded records of a range."""
        found = wanted.range_of(source)
        records = batch_between(
            at.session,
            at.servers,
            source.topic,
            found.start,
            found.end,
            isolation=source.isolation,
            headers=decoding.needs_headers(at.known, source),
        )
        return decoding.decode_input(at.known, records, source), found.there
