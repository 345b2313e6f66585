"""The columns of an archive's table, and records as its rows by Spark's own decoding.

`_partition, _offset, _timestamp, _key` come first, because Delta keeps statistics of the first 32 columns; then the
value's columns, `_headers`, and for a value that is decoded `_error` and `_value`: the reason and the bytes of a value
that cannot be. `arrow_rows` makes the same rows without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines import columns
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.sources import decoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.sources.known_columns import KnownColumns

__all__ = ["FIRST", "HEADERS", "is_raw", "read_records", "rows_of", "table_columns"]

FIRST: Final = (columns.PARTITION, columns.OFFSET, columns.TIMESTAMP, columns.KEY)
HEADERS: Final = "_headers"


def is_raw(known: KnownColumns, topic: str) -> bool:
    """Whether the values of a topic are kept as they are: `value: raw`, or a topic that is not declared."""
    return known.value_format(topic) == "raw"


def table_columns(
    spark: SparkSession, known: KnownColumns, topic: str, *, keeps_value: bool, headers: bool
) -> StructType:
    """The columns of a topic's table. Raises ArchiveError if the value has columns of these names."""
    from pyspark.sql.types import StructType

    wanted = known.values.get(topic)
    for name in [] if wanted is None or wanted.schema is None else wanted.schema.fieldNames():
        if name.lower() in (*columns.RESERVED, HEADERS):
            raise ArchiveError(f"the values of {topic} have a field {name}, a name that tables use for themselves")
    empty = decoding.empty_records(spark)
    found = rows_of(empty, known, topic, keeps_value=keeps_value, headers=headers, with_headers=True)
    names = [field.name.lower() for field in found.schema.fields]
    for name in names:
        if names.count(name) > 1:
            raise ArchiveError(f"the values of {topic} have a column {name}, which the table has of its own")
    return StructType.fromJson(_nullable(found.schema.jsonValue()))


def _nullable(kind: Any) -> Any:
    """A type in Spark's JSON, nullable in every part: a field that a schema requires today may go from a later one."""
    if isinstance(kind, list):
        return [_nullable(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    always = ("nullable", "containsNull", "valueContainsNull")
    return {name: True if name in always else _nullable(value) for name, value in kind.items()}


def read_records(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Records that tasks have left in files, as the data source would return them."""
    reader = spark.read.schema(decoding.records_schema())
    # Whatever the session says: a record that is missing would be lost.
    return reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false").parquet(*files)


def rows_of(
    records: DataFrame,
    known: KnownColumns,
    topic: str,
    *,
    keeps_value: bool,
    headers: bool,
    with_headers: bool,
    carried: str = "",
) -> DataFrame:
    """Records, with the column `headers`, as rows of the table.

    Args:
        keeps_value: Whether `_value` has the bytes of every value.
        headers: Whether the table has the column `_headers`.
        with_headers: Whether any of these records has headers.
        carried: A column of the records that their rows have as well, as the last one.
    """
    from pyspark.sql import functions as f

    kept = f.col("headers").alias(HEADERS)
    if is_raw(known, topic):
        origin = [f.col(name.removeprefix("_")).alias(name) for name in FIRST]
        return records.select(*origin, "value", *([kept] if headers else []), *([carried] if carried else []))
    # A decoder passes on what it knows of a record, such as its topic, of which there is one here: other columns take
    # its place. A join by the records' places would read them twice.
    taken = [*(["headers"] if headers and with_headers else []), *([carried] if carried else [])]
    given = records.withColumn("topic", f.struct(*taken)) if taken else records
    found = decoding.decode_topic(known, given, topic)
    own = [
        name
        for name in found.columns
        # Text has its key as a column as well, which is `_key` here, unless keys have fields of their own.
        if name not in columns.RESERVED
        and not (known.value_format(topic) == "string" and name == "key" and topic not in known.keys)
    ]
    fault = f.col(columns.ERROR)
    if "headers" in taken:
        found = found.withColumn(HEADERS, f.col(columns.TOPIC)["headers"])
    elif headers:
        found = found.withColumn(HEADERS, f.lit(None).cast(records.schema["headers"].dataType))
    value = f.col(columns.VALUE)
    return found.select(
        *FIRST,
        # A refused record's columns are what could be read of it: not to be taken for its value.
        *(f.when(fault.isNull(), f.col(f"`{name}`")).alias(name) for name in own),
        *([HEADERS] if headers else []),
        fault,
        value if keeps_value else f.when(fault.isNotNull(), value).alias(columns.VALUE),
        *([f.col(columns.TOPIC)[carried].alias(carried)] if carried else []),
    )
