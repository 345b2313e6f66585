"""The latest value of each key of a topic, as a table (Kafka Streams' KTable)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.sources import decoding
from headwater.pipelines.sources import topic as topic_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Loaded, TopicTable
    from headwater.pipelines.sources.known_columns import KnownColumns


def latest_records(records: DataFrame) -> DataFrame:
    """A topic's record (`columns.RECORD_DDL`) with the highest offset for each key, without deleted keys.

    A tombstone, which is a record without a value, deletes its key. Keys are compared within a partition, as in
    compaction. Records without a key are omitted.
    """
    from pyspark.sql import functions as f

    names = [name for name in records.columns if name not in ("key", "partition")]
    newest = f.max_by(f.struct(*names), "offset").alias("newest")
    grouped = records.where(f.col("key").isNotNull()).groupBy("key", "partition").agg(newest)
    return grouped.where(f.col("newest.value").isNotNull()).select(
        *(f.col(name) if name in ("key", "partition") else f.col(f"newest.{name}") for name in records.columns)
    )


def topic_rows(known: KnownColumns, records: DataFrame, table: TopicTable) -> DataFrame:
    """The latest values among records as rows, without the columns of a record's origin."""
    from pyspark.sql import functions as f

    decoded = latest_decoded(known, records, table)
    return decoded.where(f.col(columns.ERROR).isNull()).drop(columns.ERROR, *columns.ORIGIN)


def latest_decoded(known: KnownColumns, records: DataFrame, table: TopicTable) -> DataFrame:
    """The latest values among records, including undecodable ones, with the columns of their origin."""
    return decoding.decode_topic(known, latest_records(records), table.topic)


class TopicTableKind:
    """See `TableKind`."""

    def written_columns(
        self,
        session: SparkSession,
        _loaded: Loaded,
        table: TopicTable,
        known: KnownColumns,
    ) -> StructType | None:
        """The columns of the topic's values."""
        if not known.has_columns(table.topic):
            return None
        return topic_rows(known, decoding.empty_records(session), table).schema

    def read(
        self,
        session: SparkSession,
        _loaded: Loaded,
        table: TopicTable,
        _schema: StructType | None,
        known: KnownColumns,
        servers: Brokers,
    ) -> DataFrame:
        """The current latest values."""
        return topic_rows(known, topic_source.batch(session, servers, table.topic), table)

    def look_again(self, frame: DataFrame) -> None:
        """Does nothing: each computation of the frame requests the offsets."""

    def hint(self, _loaded: Loaded, _table: TopicTable) -> str:
        """No hint: the broker's error is complete."""
        return ""
