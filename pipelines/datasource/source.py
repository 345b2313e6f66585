"""`format("headwater")`: selects the reader or writer that Spark requests."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.pipelines.columns import HEADERS_SEEN
from headwater.pipelines.datasource.batch_reader import BatchReader, PushdownBatchReader
from headwater.pipelines.datasource.errors import OptionError, SourceError
from headwater.pipelines.datasource.history import ARCHIVED, archived_columns
from headwater.pipelines.datasource.json_fields import JsonFields
from headwater.pipelines.datasource.options import ReadOptions, WriteOptions
from headwater.pipelines.datasource.stream_reader import StreamReader
from headwater.pipelines.datasource.writing import BatchWriter, StreamWriter, check_write_schema

__all__ = ["HeadwaterDataSource", "read_schema"]


def read_schema(
    *, include_headers: bool, tell_headers: bool = False, json_fields: JsonFields | None = None
) -> StructType:
    """The columns of `format("kafka")`, in its order, followed by the columns that options add."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    if tell_headers:
        fields.append(StructField(HEADERS_SEEN, BooleanType()))
    if json_fields is not None:
        fields += json_fields.columns()
    return StructType(fields)


def _columns(options: ReadOptions) -> StructType:
    return read_schema(
        include_headers=options.include_headers, tell_headers=options.tell_headers, json_fields=options.json_fields
    )


class HeadwaterDataSource(DataSource):
    """Topics of a Headwater or Kafka cluster, with the options and columns of `format("kafka")`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "headwater"

    def schema(self) -> StructType:
        """The columns. Checks the options, so that `load()` refuses invalid ones."""
        options = self._read_options()
        found = _columns(options)
        if options.archive_table is not None:
            found.add(ARCHIVED, archived_columns(options.archive_table))
        return found

    def _read_options(self) -> ReadOptions:
        return ReadOptions.parse(self.options)

    def _checked_read_options(self, schema: StructType) -> ReadOptions:
        options = self._read_options()
        expected = _columns(options)
        fields = schema.fields
        if options.archive_table is not None and fields and fields[-1].name == ARCHIVED:
            fields = fields[:-1]  # the table's columns as `schema` read them: they may have grown since
        if [(f.name, f.dataType) for f in fields] != [(f.name, f.dataType) for f in expected.fields]:
            raise OptionError("a schema cannot be given: the columns of a topic are fixed; parse its value instead")
        return options

    def reader(self, schema: StructType) -> BatchReader:
        """A batch reader; with filter pushdown if the session enables it."""
        options = self._checked_read_options(schema)
        if options.archive_table is not None:
            raise OptionError("option archiveTable is for streams; a batch reads the table itself, by format delta")
        return PushdownBatchReader(options) if options.pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """A stream reader."""
        return StreamReader(self._checked_read_options(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch writer."""
        return BatchWriter(self._write_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """A stream writer, at-least-once."""
        return StreamWriter(self._write_options(schema, overwrite))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise SourceError("a topic cannot be overwritten, only appended to: use mode append")
        options = WriteOptions.parse(self.options)
        check_write_schema(schema, options)
        return options
