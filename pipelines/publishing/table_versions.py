"""A version of a Delta table, and the difference of two.

The difference is what leads from the earlier version to the later: rows that the later one has more often, and rows
that it has less often. The change data feed and a comparison of both versions give the same, since changes that cancel
each other out are left out.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.pipelines.file_systems.file_system import FileSystem, join
from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["LOG", "TableDifference", "commit_hash", "difference", "latest_version", "table_id", "version"]

LOG: Final = "_delta_log"

READ_BYTES: Final = 1 << 20
_CHANGE: Final = "_change_type"
_REMOVALS: Final = ("delete", "update_preimage")
_SIGN: Final = "_headwater_sign"
_COUNT: Final = "_headwater_count"


class TableDifference(NamedTuple):
    """Rows of the later version that the earlier lacks, and those of the earlier that the later lacks."""

    added: DataFrame
    removed: DataFrame
    by_feed: bool


def table_id(spark: SparkSession, path: str) -> str:
    """The id of the Delta table at a path. Raises PublishRefused."""
    from delta.tables import DeltaTable
    from pyspark.errors import PySparkException

    try:
        if not DeltaTable.isDeltaTable(spark, path):
            raise PublishRefused(f"{path}: there is no Delta table")
        [row] = DeltaTable.forPath(spark, path).detail().select("id").collect()
    except PySparkException as error:
        raise PublishRefused(f"{path}: {first_line(error)}") from None
    return str(row.id)


def latest_version(spark: SparkSession, path: str) -> int:
    """The latest version of a table."""
    from delta.tables import DeltaTable

    [row] = DeltaTable.forPath(spark, path).history(1).select("version").collect()
    return int(row.version)


def commit_hash(files: FileSystem, path: str, number: int) -> str:
    """A hash of the commit that made a version, which has a random id. Raises PublishRefused, FileSystemError."""
    found = hashlib.sha256()
    try:
        with files.open(join(path, LOG, f"{number:020d}.json")) as commit:
            while data := commit.read(READ_BYTES):
                found.update(data)
    except FileNotFoundError:
        raise PublishRefused(
            f"{path}: the table's log has no commit of version {number}, by which a publish of it is known: it was "
            "removed after delta.logRetentionDuration; publish a later version"
        ) from None
    return found.hexdigest()


def difference(spark: SparkSession, path: str, from_version: int, to_version: int) -> TableDifference:
    """The difference of two versions. Raises PublishRefused if rows cannot be compared."""
    from pyspark.sql import functions as f

    later, earlier = version(spark, path, to_version), version(spark, path, from_version)
    schema = later.schema
    for field in schema.fields:
        if not _is_comparable(field.dataType):
            raise PublishRefused(f"the column {field.name} has a map, and rows with maps cannot be compared")
    changes = _feed(spark, path, from_version, to_version, schema)
    by_feed = changes is not None
    if changes is None:
        changes = (
            _aligned(later, schema)
            .withColumn(_SIGN, f.lit(1))
            .unionAll(_aligned(earlier, schema).withColumn(_SIGN, f.lit(-1)))
        )
    names = [f.col(f"`{name}`") for name in schema.fieldNames()]
    net = changes.groupBy(*names).agg(f.sum(_SIGN).alias(_COUNT)).where(f.col(_COUNT) != 0).persist()
    times = f.array_repeat(f.lit(0), f.abs(f.col(_COUNT)).cast("int"))
    added = net.where(f.col(_COUNT) > 0).select(*names, f.explode(times).alias(_SIGN)).drop(_SIGN)
    return TableDifference(added, net.where(f.col(_COUNT) < 0).drop(_COUNT), by_feed)


def version(spark: SparkSession, path: str, number: int) -> DataFrame:
    """The rows of a version. Raises PublishRefused."""
    from pyspark.errors import PySparkException

    try:
        frame = spark.read.format("delta").option("versionAsOf", number).load(path)
        frame.schema  # noqa: B018 - analysed here
    except PySparkException as error:
        raise PublishRefused(f"{path}: version {number} cannot be read: {first_line(error)}") from None
    return frame


def _feed(spark: SparkSession, path: str, from_version: int, to_version: int, schema: StructType) -> DataFrame | None:
    """The signed changes by the change data feed; None if the table does not have it for all these versions."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    if from_version == to_version:
        return None
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", from_version + 1).option("endingVersion", to_version)
    try:
        frame = reader.load(path)
        jvm.physical_plan_text(frame)  # Delta looks for the feed when it plans
    except (PySparkException, Py4JError):
        return None
    is_removal = f.col(_CHANGE).isin(*_REMOVALS)
    signed = frame.withColumn(_SIGN, f.when(is_removal, f.lit(-1)).otherwise(f.lit(1)))
    return _aligned(signed, schema, _SIGN)


def _aligned(rows: DataFrame, schema: StructType, *more: str) -> DataFrame:
    """The rows with the columns of the later version. Raises PublishRefused if a column's type has changed."""
    from pyspark.sql import functions as f

    have = {field.name.lower(): field for field in rows.schema.fields}
    columns = []
    for field in schema.fields:
        own = have.get(field.name.lower())
        if own is None:
            columns.append(f.lit(None).cast(field.dataType).alias(field.name))
        elif own.dataType.simpleString() != field.dataType.simpleString():
            raise PublishRefused(
                f"the column {field.name} was {own.dataType.simpleString()} and is {field.dataType.simpleString()}: "
                "versions with other types have no difference; publish the later version"
            )
        else:
            columns.append(f.col(f"`{own.name}`").alias(field.name))
    return rows.select(*columns, *more)


def _is_comparable(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _is_comparable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_comparable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType)
