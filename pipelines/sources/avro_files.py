"""Avro files as frames: Spark reads the files as bytes, and the topics' decoder decodes them in Spark's tasks.

An unreadable file yields one row without values, with `columns.ERROR`; the records before its fault are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines import columns
from headwater.pipelines.formats.avro.columns import columns as columns_of
from headwater.pipelines.formats.avro.columns import columns_ddl, parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.schemas.avro.types import AvroType

BATCH_ROWS: Final = 10_000  # of one Arrow batch from a task
DIFFERING_MAX: Final = 2  # of the columns of files, enough to name a difference
_BINARY_FILE: Final = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_FORMAT: Final = "binaryFile"


def declared(text: str) -> StructType:
    """Columns of an .avsc file. Raises ValueError."""
    return _columns_of(parsed(text))


def first_schema(spark: SparkSession, paths: Sequence[str]) -> StructType | None:
    """Columns of the first existing file; None without any file. Raises ValueError."""
    from headwater.pipelines.formats.avro.container import header

    row = spark.read.format(_FORMAT).load(list(paths)).orderBy("path").select("content").first()
    return None if row is None else _columns_of(header(bytes(row[0])).schema)


def header_columns(spark: SparkSession, paths: Sequence[str]) -> dict[str, str]:
    """The columns that the files' headers name, and the first file with each; unreadable files name none."""
    from pyspark.sql import functions as f

    files = spark.read.format(_FORMAT).load(list(paths)).select("path", "content")
    found = files.mapInArrow(_headers, "path STRING, columns STRING").where("columns IS NOT NULL")
    rows = found.groupBy("columns").agg(f.min("path")).orderBy(f.min("path")).limit(DIFFERING_MAX).collect()
    return {str(row[0]): str(row[1]) for row in rows}


def _headers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each file's path, and its columns as DDL, null for an unreadable file. Runs in a task."""
    import pyarrow as pa

    from headwater.pipelines.formats.avro.container import header

    for batch_ in batches:
        for path, content in zip(batch_.column(0).to_pylist(), batch_.column(1).to_pylist(), strict=True):
            assert isinstance(content, bytes)
            try:
                found = columns_ddl(columns_of(header(content).schema))
            except (ValueError, EOFError):
                found = None
            yield pa.RecordBatch.from_arrays(
                [pa.array([path], pa.string()), pa.array([found], pa.string())], names=["path", "columns"]
            )


def _columns_of(schema: AvroType) -> StructType:
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(columns_ddl(columns_of(schema)))
    assert isinstance(found, StructType)
    return found


def stream(spark: SparkSession, path: str, schema: StructType, max_files_per_trigger: int | None) -> DataFrame:
    """The rows of new files as a streaming frame."""
    reader = spark.readStream.format(_FORMAT).schema(_BINARY_FILE)
    if max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", max_files_per_trigger)
    return decoded(reader.load(path), schema)


def batch(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of existing files."""
    return decoded(spark.read.format(_FORMAT).load(list(paths)), schema)


def decoded(files: DataFrame, schema: StructType) -> DataFrame:
    """Decode files to rows: the schema's columns, `columns.FILE`, `columns.VALUE` (null), `columns.ERROR`."""
    from pyspark.sql.types import BinaryType, StringType, StructType

    whole = StructType(list(schema.fields))
    for name, kind in ((columns.FILE, StringType()), (columns.VALUE, BinaryType()), (columns.ERROR, StringType())):
        whole = whole.add(name, kind)
    return files.select("path", "content").mapInArrow(_decoding(schema.fieldNames(), whole), whole)


def _decoding(
    names: Sequence[str], whole: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that a task runs. It is pickled, and so holds only plain values."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(whole, timezone="UTC")
    count = len(names)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headwater.pipelines.sources.avro_files import rows_of

        for batch_ in batches:
            for path, content in zip(batch_.column(0).to_pylist(), batch_.column(1).to_pylist(), strict=True):
                assert isinstance(path, str)
                assert isinstance(content, bytes)
                yield from rows_of(path, content, arrow, count)

    return decode


def rows_of(path: str, content: bytes, whole: pa.Schema, count: int) -> Iterator[pa.RecordBatch]:
    """The rows of one file, with values in the first `count` columns; the last row holds the file's error, if any."""
    import pyarrow as pa

    from headwater.pipelines.formats.avro.arrays import TooManyEntriesError
    from headwater.pipelines.formats.avro.container import DamagedError, blocks, header
    from headwater.pipelines.formats.avro.encoder import schema_for
    from headwater.pipelines.formats.avro.reading import Reading, UnreadableError

    def made(values: list[Any], rows: int, error: str | None) -> pa.RecordBatch:
        rest: list[Any] = [pa.array([path] * rows), pa.nulls(rows, pa.binary()), pa.array([error] * rows, pa.string())]
        return pa.RecordBatch.from_arrays([*values, *rest], names=whole.names)

    try:
        reader = schema_for(pa.struct(list(whole)[:count]), "row")
        reading = Reading(parsed(reader), is_lenient=True)
        for block in blocks(content, header(content), reading):
            values = [block.decoded.array(child)[: block.rows] for child in reading.root.children]
            for begin in range(0, block.rows, BATCH_ROWS):
                part = [value[begin : begin + BATCH_ROWS] for value in values]
                yield made(part, len(part[0]), None)
            if block.fault is not None:
                raise DamagedError(block.fault)
    except (DamagedError, UnreadableError, TooManyEntriesError, ValueError) as error:
        nothing = [pa.nulls(1, field.type) for field in list(whole)[:count]]
        yield made(nothing, 1, f"the file cannot be read: {error}")
