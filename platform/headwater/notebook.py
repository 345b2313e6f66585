"""`headwater.sql`, `table`, `stream` and `load`: topics and tables in a session of the user's, as a notebook's.

Names and columns are those of `headwater sql`, without `lake.NAME`, which would leave a schema in the user's catalog.
Frames read topics whole: a frame may be scanned any number of times, with any filters.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from headwater.api.topic_admin import TopicAdmin
from headwater.logtier.config.client_properties import read_client_config
from headwater.pipelines.analysis.analysis import analyse
from headwater.pipelines.archive.declared import is_root
from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.datasource.brokers import Brokers, brokers
from headwater.pipelines.datasource.errors import user_message
from headwater.pipelines.definition import TopicSource
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.file_systems.options import FileSystemOptions
from headwater.pipelines.loads.errors import LoadError, LoadFailed
from headwater.pipelines.loads.options import LoadOptions, requests_of
from headwater.pipelines.loads.request import LoadOutcome
from headwater.pipelines.loads.running import LoadRun
from headwater.pipelines.sql.lake_tables import delta_tables
from headwater.pipelines.sql.registry_columns import Registered, RegistryColumns
from headwater.pipelines.sql.relations import Known, RelationError, Relations, TopicFrames
from headwater.pipelines.sql.statement import analysed, suggestion
from headwater.pipelines.sql.statement_errors import StatementError, missing_format, name_of
from headwater.pipelines.sql.topic_names import TopicNames
from headwater.pipelines.sql_text.scanner import statements
from headwater.pipelines.unified.session_archives import SessionArchives
from headwater.pipelines.validation import pipeline_file
from headwater.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["load", "sql", "stream", "table"]

log = logging.getLogger(__name__)

KEPT_MAX: Final = 16  # combinations of arguments; each call with the same arguments shares what is known


@dataclass(frozen=True, slots=True)
class _Source:
    """Where names are looked up; hashable, as it is the key of what is kept."""

    bootstrap_servers: str
    command_config: str
    pipeline: str
    changed_ns: int
    archive: str
    archive_changed_ns: int
    variables: tuple[tuple[str, str], ...]
    tables: tuple[tuple[str, str], ...]
    registry: str


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What is known of a session and a source."""

    spark: SparkSession
    relations: Relations
    archives: SessionArchives
    where: Brokers


_analysing = threading.Lock()  # a statement's relations have names in the session while it is analysed
_kept: OrderedDict[tuple[int, _Source], _Kept] = OrderedDict()


def sql(
    spark: SparkSession,
    statement: str,
    args: Mapping[str, Any] | None = None,
    *,
    bootstrap_servers: str | None = None,
    command_config: str | None = None,
    pipeline: str | None = None,
    archive: str | None = None,
    variables: Mapping[str, str] | None = None,
    tables: Mapping[str, str] | None = None,
    registry: str | None = None,
) -> DataFrame:
    """Return the frame of one statement over topics and Delta tables.

    Args:
        spark: A classic session; `log.NAME` needs one that was started with `spark.sql.globalTempDatabase=log`.
        statement: A statement of Spark SQL.
        args: Values of the parameters `:NAME`.
        bootstrap_servers: Brokers; by default the setting of the same name.
        command_config: A file of client properties for a secured broker; by default the setting of the same name.
        pipeline: A pipeline's file, which gives topics columns, and its tables and Delta tables their names.
        archive: A file that declares archives, or the root of those that topic configs enable: the name of an archived
            topic then stands for its table and the log behind it, at one state for the whole statement.
        variables: Values of the variables of the pipeline, or of the archives' file without one.
        tables: Paths of Delta tables by name.
        registry: A schema registry's address, which gives topics columns.

    Raises:
        StatementError: The statement is wrong, or the session lacks Delta; the message is one line.
        TopicAdminError: No broker answers.
        PipelineError: The pipeline's file, or that of the archives, is wrong.
        ArchiveError: The file declares archives that cannot be.
    """
    relations = _kept_of(
        spark, bootstrap_servers, command_config, pipeline, archive, variables or {}, tables or {}, registry or ""
    ).relations
    found = statements(statement)
    if len(found) != 1:
        raise StatementError(f"headwater.sql takes one statement, and there are {len(found)}")
    with _analysing:
        try:
            return analysed(spark, relations, found[0], args, narrows=False)
        finally:
            relations.end()


def table(
    spark: SparkSession,
    name: str,
    *,
    bootstrap_servers: str | None = None,
    command_config: str | None = None,
    pipeline: str | None = None,
    archive: str | None = None,
    variables: Mapping[str, str] | None = None,
    tables: Mapping[str, str] | None = None,
    registry: str | None = None,
) -> DataFrame:
    """Return the rows of a topic, of `log.TOPIC` or of a table; a topic's name with dots needs no backquotes.

    Arguments and errors are those of `sql`.
    """
    relations = _kept_of(
        spark, bootstrap_servers, command_config, pipeline, archive, variables or {}, tables or {}, registry or ""
    ).relations
    return _frame(relations, name)


def stream(
    spark: SparkSession,
    name: str,
    *,
    start: str | Mapping[int, int] | dt.datetime = "earliest",
    max_offsets_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
    bootstrap_servers: str | None = None,
    command_config: str | None = None,
    pipeline: str | None = None,
    archive: str | None = None,
    variables: Mapping[str, str] | None = None,
    tables: Mapping[str, str] | None = None,
    registry: str | None = None,
) -> DataFrame:
    """Return the rows of a topic or of `log.TOPIC` as a streaming frame, in the columns of `table`.

    An archived topic begins with its table: checkpoints hold the log's offsets for table and log alike.

    Args:
        start: Where a query without a checkpoint begins: `earliest`, `latest`, an offset for each partition, or a time,
            as `starting_offsets` in a pipeline.
        max_offsets_per_trigger: Records of a micro-batch at most; one of an archive's table ends with a file.
        fail_on_data_loss: Whether a query fails if records were deleted before it read them.

    The other arguments and the errors are those of `sql`.
    """
    kept = _kept_of(
        spark, bootstrap_servers, command_config, pipeline, archive, variables or {}, tables or {}, registry or ""
    )

    def source_of(topic: str) -> TopicSource:
        given = {"topic": topic, "starting_offsets": start, "fail_on_data_loss": fail_on_data_loss}
        try:
            return TopicSource.model_validate(given)
        except ValidationError as error:
            raise StatementError(f"start: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None

    frames = kept.archives.arriving(spark, kept.where, source_of, max_offsets_per_trigger)
    found = _frame(kept.relations, name, frames)
    if not found.isStreaming:
        raise StatementError(f"headwater.stream: '{name}' is a table, and streams are of topics")
    return found


def _frame(relations: Relations, name: str, frames: TopicFrames | None = None) -> DataFrame:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    parts = name_of(name)
    try:
        # A topic may be named with its dots, and be called log.x itself.
        frame = relations.frame((name,), frames=frames) if len(parts) > 1 else None
        frame = relations.frame(parts, frames=frames) if frame is None else frame
    except RelationError as error:
        raise StatementError(str(error)) from None
    except (PySparkException, Py4JJavaError) as error:
        reason = missing_format(error) or user_message(error)
        if reason is None:
            raise
        raise StatementError(reason) from None
    if frame is None:
        hint = suggestion(relations, parts)
        raise StatementError(f"there is no topic or table '{name}'" + (f"; {hint}" if hint else ""))
    return frame


def load(
    spark: SparkSession,
    *topics: str,
    to: str,
    format: str = "delta",  # noqa: A002 - the name of Spark's writers
    start: str = "last",
    until: str = "latest",
    id: str = "",  # noqa: A002 - as the option of the command line
    partition_by: Sequence[str] = (),
    timezone: str = "UTC",
    missing: bool = False,
    replace: str = "",
    on_gap: str = "fail",
    merge_schema: bool = False,
    headers: bool = False,
    wait_s: float = 0.0,
    value: str | None = None,
    schema: str | None = None,
    registry: str | None = None,
    bootstrap_servers: str | None = None,
    command_config: str | None = None,
) -> list[LoadOutcome]:
    """Load ranges of topics into files or Delta tables, as `headwater load` does (docs/reference/loads.md).

    Args:
        spark: A classic session; with Delta for `format="delta"`.
        topics: Names of topics; with several, `to` contains `{topic}`.
        start: As `--from`.
        until: As `--until`.
        id: Name of the load; by default by topic and range.
        wait_s: Seconds to wait for another load into the target.
        value: Format of the topics' values; by default raw.

    Returns:
        How each load ended, in the order of the topics.

    Raises:
        LoadError: What was asked for cannot be done.
        LoadFailed: A load failed; the message has a line for each.
    """
    where = bootstrap_servers or load_settings().bootstrap_servers
    options = LoadOptions(
        topics=topics,
        to=to,
        format=format,
        start=start,
        until=until,
        partition_by=tuple(partition_by),
        timezone=timezone,
        load_id=id,
        missing=missing,
        replace=replace,
        on_gap=on_gap,
        merge_schema=merge_schema,
        headers=headers,
        wait_s=wait_s,
        value=value,
        schema=schema,
        registry=registry,
    )
    requests, loaded = requests_of(options, ())
    settings = FileSystemOptions.of(dict(spark.sparkContext.getConf().getAll()))
    reached = brokers(where, command_config or load_settings().command_config)
    run = LoadRun(requests, loaded, reached, lambda target: file_system(target, settings))
    outcomes = run.run(lambda: spark)
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        kind = LoadError if all(outcome.is_user_error for outcome in failed) else LoadFailed
        raise kind("\n".join(map(str, failed)))
    return outcomes


def _kept_of(
    spark: SparkSession,
    bootstrap_servers: str | None,
    command_config: str | None,
    pipeline: str | None,
    archive: str | None,
    variables: Mapping[str, str],
    tables: Mapping[str, str],
    registry: str,
) -> _Kept:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise StatementError("headwater.sql needs a classic Spark session, and this is a client of Spark Connect")
    settings = load_settings()
    source = _Source(
        settings.bootstrap_servers if bootstrap_servers is None else bootstrap_servers,
        settings.command_config if command_config is None else command_config,
        *_file(pipeline),
        *((archive, 0) if archive is not None and is_root(archive) else _file(archive)),
        tuple(sorted(variables.items())),
        tuple(sorted(tables.items())),
        registry,
    )
    key = (id(spark), source)
    if key in _kept and _kept[key].spark is spark:
        _kept.move_to_end(key)
        return _kept[key]
    made = _kept[key] = _made(spark, source)
    while len(_kept) > KEPT_MAX:
        _kept.popitem(last=False)
    return made


def _file(path: str | None) -> tuple[str, int]:
    """A file's absolute path, and when it was changed."""
    if path is None:
        return "", 0
    return os.path.abspath(path), os.stat(path).st_mtime_ns if os.path.exists(path) else 0


def _made(spark: SparkSession, source: _Source) -> _Kept:
    where = brokers(source.bootstrap_servers, source.command_config)
    security = read_client_config(source.command_config) if source.command_config else {}
    topics = TopicNames(TopicAdmin(source.bootstrap_servers, security=security).topic_names)
    registered: Callable[[str], Registered | None] = lambda _topic: None  # noqa: E731 - the default of Known
    if source.registry:
        registered = RegistryColumns(source.registry).of
    variables = dict(source.variables)
    archives = SessionArchives()
    if source.archive:
        try:
            archives = SessionArchives.of(
                source.archive, {} if source.pipeline else variables, where, lambda: source.registry or None
            )
        except ArchiveFailed as error:
            raise StatementError(str(error)) from None
        for topic, reason in archives.refused.items():
            log.warning("%s is the topic alone, its archive cannot be: %s", topic, reason)
    known = Known(tables=dict(source.tables), registered=registered)
    if source.pipeline:
        loaded = pipeline_file.load(source.pipeline, variables, frozenset(topics.all()), "")
        columns = analyse(spark, loaded, where).columns
        known = Known(columns, loaded, delta_tables(loaded) | dict(source.tables), registered)
    relations = Relations(spark, where, topics, archives.known(known), archives.frames(spark, where))
    return _Kept(spark, relations, archives, where)
