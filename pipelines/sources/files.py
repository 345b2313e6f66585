"""Files of a folder as frames: rows of new files, and lines that do not fit the schema.

A frame has the schema's columns, `columns.FILE`, `columns.VALUE` (the line, if it does not fit) and `columns.ERROR`
(the reason).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.datasource.brokers import Brokers
from headwater.pipelines.definition.file_formats import is_columns
from headwater.pipelines.formats import json_schema
from headwater.pipelines.formats.misfits import csv_misfit, csv_texts, json_misfit, json_texts
from headwater.pipelines.sources import avro_files
from headwater.pipelines.sources.kind import InputMistake, Running, Sample, StageInput, no_rows
from headwater.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import FilesSource, FilesTable, Loaded
    from headwater.pipelines.definition.model import Scalar
    from headwater.pipelines.sources.known_columns import KnownColumns

_CORRUPT = "_corrupt_record"
_TEXTS = "_corrupt_texts"  # the fields of lines that do not fit, as text
_WITH_LINES = ("csv", "json")


class SchemaError(Exception):
    """The columns of files cannot be determined; the message gives the reason."""


def reader_options(file_format: str, options: Mapping[str, Scalar]) -> dict[str, str]:
    """Options of Spark's reader or writer; CSV has a header unless the options override it.

    >>> reader_options("csv", {"sep": ";"})
    {'header': 'true', 'sep': ';'}
    """
    defaults = {"header": "true"} if file_format == "csv" else {}
    given = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in options.items()}
    return defaults | given


def declared_columns(loaded: Loaded, schema: str) -> StructType:
    """Columns from `schema:`, which is a column list or a JSON Schema file. Raises SchemaError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        text = schema
        if not is_columns(schema):
            with open(loaded.path(schema), encoding="utf-8") as file:
                text = file.read(json_schema.SCHEMA_BYTES_MAX + 1)
            if schema.endswith(".avsc"):
                return avro_files.declared(text)
            text = json_schema.parse(text).ddl
        found = StructType.fromDDL(text)
    except OSError as error:
        raise SchemaError(f"cannot read the schema {loaded.path(schema)}: {error.strerror}") from None
    except ValueError as error:
        raise SchemaError(f"the schema {schema} cannot be used: {error}") from None
    except PySparkException:
        raise SchemaError(f"'{schema}' is no list of columns such as `id BIGINT, name STRING`") from None
    assert isinstance(found, StructType)
    return found


def found_columns(spark: SparkSession, loaded: Loaded, source: FilesSource | FilesTable, path: str) -> StructType:
    """Columns of the files at a path: the declared columns, else those that Spark infers from the existing files.

    Raises SchemaError, or Spark's errors on the files.
    """
    return columns_of(spark, loaded, source, [path])


def columns_of(
    spark: SparkSession, loaded: Loaded, source: FilesSource | FilesTable, paths: Sequence[str]
) -> StructType:
    """The same for some paths. For Avro, the first file determines the columns."""
    if source.schema_source is not None:
        return declared_columns(loaded, source.schema_source)
    if source.format == "avro":
        try:
            found = avro_files.first_schema(spark, paths)
        except (ValueError, EOFError) as error:
            raise SchemaError(f"the schema of the files in {paths[0]} cannot be used: {error}") from None
        if found is None:
            raise SchemaError(f"there is no file in {paths[0]} that tells the columns; name a schema")
        return found
    options = reader_options(source.format, source.options)
    if source.format == "csv":
        options = {"inferSchema": "true"} | options
    return spark.read.format(source.format).options(**options).load(list(paths)).schema


def stream(spark: SparkSession, source: FilesSource, path: str, schema: StructType) -> DataFrame:
    """The rows of new files as a streaming frame."""
    if source.format == "avro":
        return avro_files.stream(spark, path, schema, source.max_files_per_trigger)
    reader: Any = spark.readStream.format(source.format).options(**reader_options(source.format, source.options))
    if source.max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_trigger)
    return with_errors(reader.schema(_with_corrupt(schema, source.format)).load(path), source, schema)


def batch(spark: SparkSession, source: FilesSource, paths: Sequence[str], schema: StructType) -> DataFrame:
    """The rows of some files, in the form of `stream`."""
    if source.format == "avro":
        return avro_files.batch(spark, paths, schema)
    reader = spark.read.format(source.format).options(**reader_options(source.format, source.options))
    return with_errors(reader.schema(_with_corrupt(schema, source.format)).load(list(paths)), source, schema)


def _with_corrupt(schema: StructType, file_format: str) -> StructType:
    from pyspark.sql.types import StringType, StructType

    return StructType(list(schema.fields)).add(_CORRUPT, StringType()) if file_format in _WITH_LINES else schema


def with_origin(rows: DataFrame) -> DataFrame:
    """Rows of files with the columns of their origin, still null."""
    from pyspark.sql import functions as f

    nothing = f.lit(None)
    return rows.withColumns({columns.FILE: nothing.cast("string"), columns.VALUE: nothing.cast("binary")})


def with_errors(rows: DataFrame, source: FilesSource, schema: StructType) -> DataFrame:
    """The rows read by Spark, with the columns of origin and error named as in `columns`."""
    from pyspark.sql import functions as f

    data = [f.col(f"`{name}`") for name in schema.fieldNames()]
    file = f.col("_metadata.file_path").alias(columns.FILE)
    if source.format not in _WITH_LINES:
        nothing = f.lit(None)
        value, error = nothing.cast("binary"), nothing.cast("string")
    else:
        line = f.col(_CORRUPT)
        value = line.cast("binary")
        options = reader_options(source.format, source.options)
        parsed = f.struct(*data)
        is_csv = source.format == "csv"
        texts = csv_texts(line, schema, options) if is_csv else json_texts(line, options)
        rows = rows.withColumn(_TEXTS, f.when(line.isNotNull(), texts))
        found = f.col(_TEXTS)
        misfit = csv_misfit(found, parsed, schema) if is_csv else json_misfit(line, found, parsed, schema, options)
        # Besides informing users, naming the other columns prevents Spark from reading the files for this column alone.
        read = f.to_json(parsed)
        said = "the line does not fit the schema: "
        why = f.concat(f.lit(said), misfit, f.lit("; what could be read of it: "), read)
        error = f.when(line.isNotNull(), why)
    return rows.select(*data, file, value.alias(columns.VALUE), error.alias(columns.ERROR))


def file_paths(plan: Any) -> list[str]:
    """The files that a micro-batch's plan reads from a folder."""
    if plan.nodeName() == "LogicalRelation":
        relation = plan.relation()
        return [str(path) for path in relation.location().inputFiles()] if hasattr(relation, "location") else []
    children = plan.children()
    return [path for i in range(children.size()) for path in file_paths(children.apply(i))]


class FilesSourceKind:
    """See `SourceKind`."""

    def columns(self, session: SparkSession, loaded: Loaded, source: FilesSource, _known: KnownColumns) -> StructType:
        """The declared columns, else the columns of the existing files."""
        try:
            return found_columns(session, loaded, source, loaded.path(source.files))
        except SchemaError as error:
            raise InputMistake("schema", str(error)) from None

    def empty(
        self,
        session: SparkSession,
        _source: FilesSource,
        _known: KnownColumns,
        schema: StructType | None,
    ) -> DataFrame:
        """An empty frame of the columns, including the columns of a row's origin."""
        return with_origin(no_rows(session, schema))

    def stream(self, at: StageInput, source: FilesSource, _running: Running) -> DataFrame:
        """The rows of new files."""
        found = stream(at.session, source, at.loaded.path(source.files), at.schema)
        return found if source.may_refuse else found.drop(columns.ERROR)

    def read_again(self, at: StageInput, source: FilesSource, plan: Any) -> DataFrame | None:
        """The rows of the batch's files."""
        paths = file_paths(plan)
        return batch(at.session, source, paths, at.schema) if paths else None

    def sample(self, at: StageInput, source: FilesSource, wanted: Sample) -> tuple[DataFrame, None]:
        """The first rows."""
        rows = batch(at.session, source, [at.loaded.path(source.files)], at.schema)
        rows = rows if source.may_refuse else rows.drop(columns.ERROR)
        return rows.limit(wanted.rows_max), None


class FilesTableKind:
    """See `TableKind`."""

    def written_columns(self, session: SparkSession, loaded: Loaded, table: FilesTable, known: KnownColumns) -> None:
        """None: only the files determine the columns."""

    def read(
        self,
        session: SparkSession,
        loaded: Loaded,
        table: FilesTable,
        schema: StructType | None,
        _known: KnownColumns,
        _servers: Brokers,
    ) -> DataFrame:
        """All rows of the files."""
        path = loaded.path(table.path)
        found = found_columns(session, loaded, table, path) if schema is None else schema
        if table.format == "avro":
            rows = avro_files.batch(session, [path], found)
            return rows.where(rows[columns.ERROR].isNull()).drop(columns.FILE, columns.VALUE, columns.ERROR)
        options = reader_options(table.format, table.options)
        return session.read.format(table.format).options(**options).schema(found).load(path)

    def look_again(self, frame: DataFrame) -> None:
        """List the folder's files again: a frame is bound to the files at its creation."""
        jvm.list_files_again(frame)

    def hint(self, loaded: Loaded, table: FilesTable) -> str:
        """A hint that names the folder."""
        return "" if "://" in table.path else f"looked in {os.path.dirname(loaded.path(table.path))}"
