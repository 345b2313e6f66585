"""Avro files as frames: Spark brings them as bytes, fastavro reads them in Spark's tasks.

A file that cannot be read gives one row without values, with `columns.ERROR`; the records before its fault stand.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pipelines import columns
from pipelines.sources.avro_columns import arrow_value, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 10_000  # of one Arrow batch that a task gives
_BINARY_FILE: Final = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_FORMAT: Final = "binaryFile"


def declared(text: str) -> StructType:
    """Columns of an .avsc file. Raises ValueError."""
    from pyspark.sql.types import StructType

    found = StructType.fromDDL(ddl(json.loads(text)))
    assert isinstance(found, StructType)
    return found


def first_schema(spark: SparkSession, path: str) -> StructType | None:
    """Columns of the first file that is there; None if there is none. Raises ValueError."""
    import fastavro
    from pyspark.sql.types import StructType

    row = spark.read.format(_FORMAT).load(path).orderBy("path").select("content").first()
    if row is None:
        return None
    found = StructType.fromDDL(ddl(fastavro.reader(io.BytesIO(bytes(row[0]))).writer_schema))
    assert isinstance(found, StructType)
    return found


def stream(spark: SparkSession, path: str, schema: StructType, max_files_per_trigger: int | None) -> DataFrame:
    """The rows of files as they appear."""
    reader = spark.readStream.format(_FORMAT).schema(_BINARY_FILE)
    if max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", max_files_per_trigger)
    return decoded(reader.load(path), schema)


def batch(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of files that are there."""
    return decoded(spark.read.format(_FORMAT).load(list(paths)), schema)


def decoded(files: DataFrame, schema: StructType) -> DataFrame:
    """Files as bytes become rows: the schema's columns, `columns.FILE`, `columns.VALUE` (null), `columns.ERROR`."""
    from pyspark.sql.types import BinaryType, StringType, StructType

    whole = StructType(list(schema.fields))
    for name, kind in ((columns.FILE, StringType()), (columns.VALUE, BinaryType()), (columns.ERROR, StringType())):
        whole = whole.add(name, kind)
    return files.select("path", "content").mapInArrow(_decoding(schema.fieldNames(), whole), whole)


def _decoding(
    names: Sequence[str], whole: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task runs: it is pickled, hence holds plain values only."""
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(whole, timezone="UTC")
    wanted = list(names)

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from pipelines.sources.avro_files import rows_of

        for batch_ in batches:
            for file in batch_.to_pylist():
                rows: list[dict[str, Any]] = []
                for row in rows_of(file["path"], file["content"], wanted):
                    rows.append(row)
                    if len(rows) == BATCH_ROWS:
                        yield pa.RecordBatch.from_pylist(rows, schema=arrow)
                        rows = []
                if rows:
                    yield pa.RecordBatch.from_pylist(rows, schema=arrow)

    return decode


def rows_of(path: str, content: bytes, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of one file, by column; the last one says what is wrong with it, if something is."""
    import fastavro

    try:
        for record in fastavro.reader(io.BytesIO(content)):
            assert isinstance(record, dict)
            yield {name: arrow_value(record.get(name)) for name in names} | {columns.FILE: path}
    except Exception as error:  # noqa: BLE001 - whatever a damaged file brings about
        said = (str(error).splitlines() or [""])[0][:200]
        yield {columns.FILE: path, columns.ERROR: f"the file cannot be read: {type(error).__name__}: {said}"}
