"""Delta tables as streams: appended rows, or the change data feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.sources.kind import InputMistake, Running, Sample, StageInput, no_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import DeltaSource, DeltaTable, Loaded
    from headwater.pipelines.sources.known_columns import KnownColumns

CHANGE_DDL = "_change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"


def stream(spark: SparkSession, source: DeltaSource, path: str) -> DataFrame:
    """The rows of a table, or its changes, as a streaming frame."""
    reader = spark.readStream.format("delta")
    if source.changes:
        reader = reader.option("readChangeFeed", "true")
    if source.starting_version is not None:
        reader = reader.option("startingVersion", source.starting_version)
    if source.starting_timestamp is not None:
        reader = reader.option("startingTimestamp", source.starting_timestamp.isoformat())
    if source.max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_trigger)
    if source.skip_change_commits:
        reader = reader.option("skipChangeCommits", "true")
    return reader.load(path)


def columns(table: StructType, source: DeltaSource) -> StructType:
    """Columns of the result of `stream` for a table with these columns."""
    from pyspark.sql.types import StructType

    if not source.changes:
        return table
    changes = StructType.fromDDL(CHANGE_DDL)
    assert isinstance(changes, StructType)
    return StructType([*table.fields, *changes.fields])


def exists(spark: SparkSession, path: str) -> bool:
    """Whether a Delta table exists at the path."""
    from delta.tables import DeltaTable

    return bool(DeltaTable.isDeltaTable(spark, path))


class DeltaSourceKind:
    """See `SourceKind`."""

    def columns(self, session: SparkSession, loaded: Loaded, source: DeltaSource, known: KnownColumns) -> StructType:
        """The columns that a stage of the pipeline writes, else the columns of the existing table."""
        path = loaded.path(source.delta)
        if path in known.stored:
            return columns(known.stored[path], source)
        if not exists(session, path):
            raise InputMistake("delta", f"there is no Delta table at {path}")
        return columns(session.read.format("delta").load(path).schema, source)

    def empty(
        self,
        session: SparkSession,
        _source: DeltaSource,
        _known: KnownColumns,
        schema: StructType | None,
    ) -> DataFrame:
        """An empty frame of the columns."""
        return no_rows(session, schema)

    def stream(self, at: StageInput, source: DeltaSource, running: Running) -> DataFrame:
        """The rows or the changes of a table. A table that a stage writes is created first if missing."""
        path = at.loaded.path(source.delta)
        if path in at.known.stored:
            running.make_table(path, at.known.stored[path])
        return stream(at.session, source, path)

    def read_again(self, at: StageInput, source: DeltaSource, plan: Any) -> None:
        """None: no row is refused."""

    def sample(self, at: StageInput, source: DeltaSource, wanted: Sample) -> tuple[DataFrame, None]:
        """The first rows; no rows of a table that its stage has not created yet."""
        path = at.loaded.path(source.delta)
        if not exists(at.session, path):
            return no_rows(at.session, at.schema), None
        reader = at.session.read.format("delta")
        if source.changes:
            reader = reader.option("readChangeFeed", "true").option("startingVersion", source.starting_version or 0)
        return reader.load(path).limit(wanted.rows_max), None


class DeltaTableKind:
    """See `TableKind`."""

    def written_columns(
        self,
        _session: SparkSession,
        loaded: Loaded,
        table: DeltaTable,
        known: KnownColumns,
    ) -> StructType | None:
        """The columns that the writing stage stores."""
        return known.stored.get(loaded.path(table.delta))

    def read(
        self,
        session: SparkSession,
        loaded: Loaded,
        table: DeltaTable,
        schema: StructType | None,
        _known: KnownColumns,
        _servers: Brokers,
    ) -> DataFrame:
        """The latest version, or the declared fixed version."""
        path = loaded.path(table.delta)
        if schema is not None and not exists(session, path):
            return no_rows(session, schema)
        reader = session.read.format("delta")
        return (reader if table.version is None else reader.option("versionAsOf", table.version)).load(path)

    def look_again(self, frame: DataFrame) -> None:
        """Does nothing: Delta checks for a new version itself."""

    def hint(self, _loaded: Loaded, _table: DeltaTable) -> str:
        """No hint: Spark's error is complete."""
        return ""
