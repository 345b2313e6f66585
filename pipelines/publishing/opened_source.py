"""Opens what is published: its contents, by which it is known, and its rows as a frame.

Rows of files have the columns of `sources.files`: their file, and the reason if a line does not fit the files' columns.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.pipelines import columns
from headwater.pipelines.definition import FilesSource, Loaded
from headwater.pipelines.file_systems.file_system import FileSystem, FileSystemError, join
from headwater.pipelines.file_systems.opening import file_system, scheme_of
from headwater.pipelines.publishing import table_versions
from headwater.pipelines.publishing.contents import Contents, TableVersion, VersionDifference
from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.publishing.file_sets import FileSet, find_files, hadoop_literal
from headwater.pipelines.publishing.request import DELTA, PublishRequest, format_of_names
from headwater.pipelines.sources import avro_files
from headwater.pipelines.sources import files as file_source
from headwater.pipelines.spark import jvm
from headwater.pipelines.spark.hadoop_files import spark_files
from headwater.pipelines.spark.spark_errors import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["OpenedSource", "accessible_files", "named_source", "open_source", "reading_options", "spark_path"]

_UNLIKE_TYPES: Final = re.compile(r"Failed to merge incompatible data types [^.\n]*")
_FILE_PATH: Final = "_metadata.file_path"  # of Spark's own sources
#: Options with which Spark reads a file of other columns than the first whole, or says that it cannot. Without them, it
#: leaves out a Parquet or ORC file's further columns, and takes CSV's columns by their position.
_OF_ALL_FILES: Final = {
    "parquet": {"mergeSchema": "true"},
    "orc": {"mergeSchema": "true"},
    "csv": {"enforceSchema": "false"},
}
#: Options of Spark's reader that would leave rows out, or give them another meaning than their line.
_REFUSED_OPTIONS: Final = ("mode", "columnnameofcorruptrecord", "path", "basepath", "pathglobfilter")


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source whose contents are known.

    Attributes:
        rows: The rows to publish.
        removed: Rows of the earlier of two versions that the later lacks.
        size: Bytes, 0 if unknown.
        files: The set of files; None for a table.
        file_column: The column, or hidden column, with the file of a row.
        by_feed: Whether a difference was read from the change data feed.
    """

    contents: Contents
    rows: DataFrame
    removed: DataFrame | None = None
    size: int = 0
    files: FileSet | None = None
    file_column: str = _FILE_PATH
    by_feed: bool = False

    def changed(self) -> str | None:
        """What of the source has changed since it was opened; versions of tables never do."""
        return None if self.files is None else self.files.changed()


def named_source(request: PublishRequest, files: FileSystem | None) -> PublishRequest:
    """The request with an absolute path and the input's format; without access to the files a table is meant.

    Raises PublishRefused.
    """
    path = request.path
    if "://" not in path and not path.startswith("file:"):
        path = os.path.abspath(path)
    request = dataclasses.replace(request, path=path)
    if request.input_format is not None or request.is_of_table:
        return dataclasses.replace(request, input_format=request.input_format or DELTA)
    if files is None:
        raise PublishRefused(f"{path}: name its format by --input-format")
    if files.entry(join(path, table_versions.LOG)) is not None:
        return dataclasses.replace(request, input_format=DELTA)
    names = [file.name for file in find_files(files, path).contents]
    return dataclasses.replace(request, input_format=format_of_names(names))


def open_source(
    spark: SparkSession, loaded: Loaded, request: PublishRequest, on_bytes: Callable[[int], None]
) -> OpenedSource:
    """Open the source of a request that `named_source` gave. Raises PublishRefused.

    `on_bytes` is called while files are read for their checksums.
    """
    try:
        if request.input_format == DELTA:
            return _table(spark, request)
        return _files(spark, loaded, request, on_bytes)
    except FileSystemError as error:
        raise PublishRefused(str(error)) from None
    except OSError as error:
        raise PublishRefused(f"{error.filename or request.path}: {error.strerror or error}") from None


def accessible_files(path: str) -> FileSystem | None:
    """The file system of a path for Python; None if there is none."""
    try:
        return file_system(path)
    except FileSystemError:
        return None


def _table(spark: SparkSession, request: PublishRequest) -> OpenedSource:
    request = dataclasses.replace(request, path=spark_path(request.path))
    files = spark_files(spark, request.path)
    own_id = table_versions.table_id(spark, request.path)
    if request.between is not None:
        earlier, later = request.between
        found = table_versions.difference(spark, request.path, earlier, later)
        commits = [table_versions.commit_hash(files, request.path, number) for number in request.between]
        wanted = VersionDifference(own_id, earlier, later, *commits)
        return OpenedSource(wanted, found.added, found.removed, by_feed=found.by_feed)
    number = request.version
    if number is None:
        number = table_versions.latest_version(spark, request.path)
    rows = table_versions.version(spark, request.path, number)
    version = TableVersion(own_id, number, table_versions.commit_hash(files, request.path, number))
    return OpenedSource(version, rows, size=jvm.plan_bytes(rows))


def _files(
    spark: SparkSession, loaded: Loaded, request: PublishRequest, on_bytes: Callable[[int], None]
) -> OpenedSource:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    for name in request.input_options:
        if name.lower() in _REFUSED_OPTIONS:
            raise PublishRefused(f"the option {name} of the reader cannot be set: each row of a file is published")
    found = find_files(file_system(request.path), request.path)
    contents = found.checksummed(on_bytes)
    paths = [spark_path(hadoop_literal(path)) for path in found.paths()]
    options = reading_options(request)
    if request.input_format != "avro":
        # The columns of partition folders, such as `day=2013-01-01`, are read from below this folder.
        options["basePath"] = spark_path(found.folder)
    source = FilesSource.model_validate(
        {"files": request.path, "format": request.input_format, "schema": request.input_schema, "options": options}
    )
    try:
        if source.format == "avro" and source.schema_source is None:
            _check_columns(request.path, list(avro_files.header_columns(spark, paths).items()))
        schema = file_source.columns_of(spark, loaded, source, paths)
        if source.may_refuse:
            _check_names(request.path, schema.fieldNames())
            rows, file_column = file_source.batch(spark, source, paths, schema), columns.FILE
        else:
            reader = spark.read.format(source.format).options(**file_source.reader_options(source.format, options))
            rows, file_column = reader.schema(schema).load(paths), _FILE_PATH
        rows.schema  # noqa: B018 - analysed here
    except file_source.SchemaError as error:
        raise PublishRefused(str(error)) from None
    except (PySparkException, Py4JJavaError) as error:  # schemas that cannot be merged are of the second kind
        types = _UNLIKE_TYPES.search(str(error))
        reason = f"a column has several types: {types[0]}" if types else first_line(error)
        raise PublishRefused(f"{request.path}: Spark cannot read the files: {reason}") from None
    return OpenedSource(contents, rows, size=contents.size, files=found, file_column=file_column)


def _check_columns(path: str, named: Sequence[tuple[str, str]]) -> None:
    """Refuse Avro files with several sets of columns, each with one of its files: the first file's would be read."""
    if len(named) > 1:
        (first, one), (other, another) = named[:2]
        raise PublishRefused(
            f"{path}: the files have different columns: {one} has {first}, and {another} has {other}; name those to "
            "be read by --input-schema, or publish the files one by one"
        )


def _check_names(path: str, names: list[str]) -> None:
    """Refuse names of columns that the reading of text and Avro adds."""
    reserved = sorted(set(names) & {columns.FILE, columns.VALUE, columns.ERROR})
    if reserved:
        raise PublishRefused(f"{path}: the name of the column {reserved[0]} is reserved; publish Parquet or ORC files")


def reading_options(request: PublishRequest) -> dict[str, str]:
    """The options of Spark's reader: those that are given, and those with which no column is lost in silence.

    >>> reading_options(PublishRequest("/in", "t", "id", input_format="csv", input_options={"sep": ";"}))
    {'enforceSchema': 'false', 'sep': ';'}
    """
    given = dict(request.input_options)
    named = {name.lower() for name in given}
    own = _OF_ALL_FILES.get(request.input_format or "", {})
    return {name: value for name, value in own.items() if name.lower() not in named} | given


def spark_path(path: str) -> str:
    """A path for Spark, to which one without a scheme is of `fs.defaultFS`; here it is of this machine.

    >>> spark_path("/in/a"), spark_path("hdfs://nn/in")
    ('file:/in/a', 'hdfs://nn/in')
    """
    return path if scheme_of(path) else f"file:{path}"
