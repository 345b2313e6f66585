"""The writers: encode rows from Arrow to topics. At-least-once: a repeated task writes its rows again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from headwater.logtier.client.cluster import ClusterClient
from headwater.logtier.client.producer import IdempotentProducer
from headwater.pipelines.datasource.errors import SourceError, client_errors
from headwater.pipelines.datasource.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.logtier.records.columns_encode import BatchEncoder

__all__ = ["TIMESTAMP_COLUMN", "BatchWriter", "StreamWriter", "WriteResult", "check_write_schema"]

# The records' timestamps (bigint, ms), which pipelines write; `format("kafka")` has no such column.
TIMESTAMP_COLUMN = "_headwater_timestamp_ms"
_ENCODED = {TIMESTAMP_COLUMN: "timestamp_ms"}
# Rows buffered for fuller batches, per topic.
BUFFER_BYTES_MAX = 16 << 20


@dataclass
class WriteResult(WriterCommitMessage):
    """The result of one task's writes."""

    record_count: int
    batch_count: int


def check_write_schema(schema: StructType, options: WriteOptions) -> None:
    """Check for the columns of `format("kafka")`; other columns are ignored, as there. Raises SourceError."""
    accepted: dict[str, tuple[type[DataType], ...]] = {
        "key": (StringType, BinaryType, NullType),
        "value": (StringType, BinaryType),
        "topic": (StringType,),
        "partition": (IntegerType, ShortType, ByteType),
        "headers": (ArrayType,),
    }
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise SourceError("a column named value is needed (string or binary); serialise the row into it first")
    if "topic" not in types and options.topic is None:
        raise SourceError("no topic is given: set the option topic, or have a column named topic")
    for name, wanted in accepted.items():
        if name in types and not isinstance(types[name], wanted):
            names = " or ".join(one.__name__.removesuffix("Type").lower() for one in wanted if one is not NullType)
            raise SourceError(f"column {name} is of type {types[name].simpleString()}; it must be {names}")
    headers = types.get("headers")
    if isinstance(headers, ArrayType):
        element = headers.elementType
        fields = [(field.name, type(field.dataType)) for field in getattr(element, "fields", [])]
        if fields != [("key", StringType), ("value", BinaryType)]:
            raise SourceError(
                f"column headers is of type {headers.simpleString()}; it must be array<struct<key:string,value:binary>>"
            )


class _TopicWriter:
    """Buffers rows for one topic until they fill batches, then encodes and sends them."""

    def __init__(self, topic: str, partition_count: int, producer: IdempotentProducer, options: WriteOptions) -> None:
        from headwater.logtier.records.columns_encode import BatchEncoder

        self._topic = topic
        self._producer = producer
        self._encoder: BatchEncoder = BatchEncoder(
            partition_count, codec=options.codec, batch_bytes=options.batch_bytes
        )
        self._bytes_max = min(options.batch_bytes * partition_count, BUFFER_BYTES_MAX)
        self._linger_s = options.linger_ms / 1000
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._first_s = 0.0
        self.batch_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows; sends the buffered rows if they fill a batch or have waited for linger.ms."""
        if not self._rows:
            self._first_s = time.monotonic()
        self._rows.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._bytes_max or time.monotonic() - self._first_s >= self._linger_s:
            self.send()

    def send(self) -> None:
        """Encode and send the buffered rows."""
        import pyarrow as pa

        rows, self._rows, self._bytes = self._rows, [], 0
        now_ms = int(time.time() * 1000)
        for batch in pa.Table.from_batches(rows).combine_chunks().to_batches() if rows else ():
            for encoded in self._encoder.encode(batch, now_ms=now_ms):
                self._producer.send(self._topic, encoded.partition, encoded.data, encoded.record_count)
                self.batch_count += 1


def write_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> WriteResult:
    """Write all rows; returns after all in-sync replicas have acknowledged every row."""
    writers: dict[str, _TopicWriter] = {}
    record_count = 0
    with client_errors(), ClusterClient(options.client) as cluster:
        producer: IdempotentProducer | None = None
        try:
            for batch in batches:
                record_count += batch.num_rows
                for topic, rows in _by_topic(batch, options.topic):
                    if producer is None:
                        producer = IdempotentProducer(cluster, options.producer)
                    if topic not in writers:
                        partition_count = len(cluster.partitions(topic, allow_auto_create=True))
                        writers[topic] = _TopicWriter(topic, partition_count, producer, options)
                    _encode_rows(writers[topic], rows)
            for writer in writers.values():
                writer.send()
            if producer is not None:
                producer.flush()
        except ValueError as error:
            raise SourceError(str(error)) from error
        finally:
            if producer is not None:
                producer.close()
    return WriteResult(record_count, sum(writer.batch_count for writer in writers.values()))


def _encode_rows(writer: _TopicWriter, rows: pa.RecordBatch) -> None:
    wanted = [name for name in ("key", "value", "partition", "headers", TIMESTAMP_COLUMN) if name in rows.schema.names]
    writer.add(rows.select(wanted).rename_columns([_ENCODED.get(name, name) for name in wanted]))


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by topic; the option overrides the column, as in Spark's own sink."""
    import pyarrow.compute as pc

    if batch.num_rows == 0:
        return
    if topic is not None:
        yield topic, batch
        return
    column: Any = batch.column("topic")
    if column.null_count:
        raise SourceError("a row has null in its topic column; set the option topic, or drop such rows")
    names = pc.unique(column).to_pylist()
    for name in names:
        yield str(name), batch if len(names) == 1 else batch.filter(pc.equal(column, name))


class BatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame to topics."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:  # type: ignore[override]
        """Write one task's rows."""
        return write_rows(iterator, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch to topics."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:  # type: ignore[override]
        """Write one task's rows."""
        return write_rows(iterator, self._options)
