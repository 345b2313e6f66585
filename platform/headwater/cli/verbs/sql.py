"""`headwater sql`: Spark SQL over topics and Delta tables."""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, client_security, command_config, key_values, servers, settings
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.definition import Loaded
    from headwater.pipelines.sources.known_columns import KnownColumns

TABLE_ROWS_MAX = 1_000  # a table is for people; json and csv give every row
CELL_WIDTH_MAX = 60


@click.command("sql", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-e", "--execute", "query", required=True, metavar="SQL", help="Query to run.")
@client_options
@click.option(
    "--pipeline",
    "file",
    type=click.Path(),
    help="Pipeline file, by which topics get typed columns and tables get names.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of a variable ${NAME} of the pipeline; may be repeated.",
)
@click.option(
    "--delta", "deltas", multiple=True, metavar="NAME=PATH", help="Delta table to register as a view; may be repeated."
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
def sql(
    query: str,
    bootstrap_servers: str | None,
    file: str | None,
    assignments: tuple[str, ...],
    deltas: tuple[str, ...],
    output: str,
) -> None:
    """Run Spark SQL over topics and Delta tables.

    Each topic is a view with the topic's name (in backquotes if it has dots) over the records it has now. With
    --pipeline, values have typed columns, and the pipeline's Delta tables are views, named by the last part of their
    path, with the suffix _delta if a topic has that name.
    """
    from headwater.cli.pipeline.loading import load
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.shell.checks import require_java
    from headwater.pipelines.analysis.analysis import analyse
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.spark.session import close_session, open_session
    from headwater.pipelines.sql import views

    where = servers(bootstrap_servers)
    require_java()
    tables = key_values(deltas, "--delta")
    with reported_errors(), tempfile.TemporaryDirectory(prefix="headwater-sql-") as folder:
        existing = topics_of(where, query)
        loaded = load(file, assignments, existing) if file else None
        if loaded is not None:
            tables = views.delta_views(loaded) | tables
        conf = {"spark.master": settings().spark_master}
        spark = open_session("headwater sql", os.path.join(folder, "spark.log"), conf)
        try:
            reached, topics = brokers(where, command_config()), views.topics_to_show(query, existing)
            analysed = analyse(spark, loaded, reached) if loaded is not None else None
            known = analysed.columns if analysed is not None else None
            missing = register(spark, reached, topics, loaded, known, tables)
            for name in sorted(views.topics_to_show(query, missing)):
                note(f"{name}: there is no Delta table at {tables[name]} yet")
            show(run(spark, query, sorted(existing), sorted(tables)), output)
            if loaded is not None and known is not None:
                for line in left_out(spark, reached, topics, loaded, known, query):
                    note(line)
        finally:
            close_session()


def topics_of(bootstrap_servers: str, query: str) -> frozenset[str]:
    """Return the names of the broker's topics. A query without topics does not require a broker."""
    from headwater.api.topic_admin import TopicAdmin
    from headwater.pipelines.definition.graph import tables_named

    named, fault = tables_named(query)
    if not named and not fault:
        return frozenset()
    return frozenset(topic.name for topic in TopicAdmin(bootstrap_servers, security=client_security()).list_topics())


def register(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topics: frozenset[str],
    loaded: Loaded | None,
    known: KnownColumns | None,
    tables: Mapping[str, str],
) -> list[str]:
    """Register topics and tables as views; returns the names of Delta tables that do not exist yet."""
    from headwater.pipelines.sources.tables import read_table
    from headwater.pipelines.sql import views

    missing = views.register_deltas(spark, tables)
    if loaded is not None and known is not None:
        for name in known.tables.keys() - topics:  # a topic's own table of latest values gives way to the topic
            read_table(spark, loaded, known, name, bootstrap_servers).createOrReplaceTempView(f"`{name}`")
    clashing = sorted(name for name in tables if name in topics)
    if clashing:
        raise CliError(
            "sql", f"'{clashing[0]}' is a topic and a Delta table", "give the table another name with --delta"
        )
    views.register_topics(spark, bootstrap_servers, topics, known)
    return missing


def left_out(
    spark: SparkSession,
    bootstrap_servers: Brokers,
    topics: frozenset[str],
    loaded: Loaded,
    known: KnownColumns,
    query: str,
) -> list[str]:
    """Return one line per topic table in the query from which undecodable records are omitted."""
    from pyspark.errors import PySparkException

    from headwater.pipelines.definition.graph import tables_named
    from headwater.pipelines.sources.table_gaps import gaps_of
    from headwater.pipelines.spark.spark_errors import first_line

    named, fault = tables_named(query)
    asked = {name.lower() for name in named} if not fault else set()
    tables = [name for name in loaded.pipeline.tables.keys() - topics if name.lower() in asked]
    try:
        return [str(gap) for gap in gaps_of(spark, loaded, known, sorted(tables), bootstrap_servers)]
    except PySparkException as error:
        raise CliError("sql", first_line(error), exit_code=EXIT_FAILED) from None


def run(spark: SparkSession, query: str, topics: Sequence[str], tables: Sequence[str]) -> DataFrame:
    """Analyse the query; an error in it is reported as a user error."""
    from pyspark.errors import PySparkException

    from headwater.pipelines.errors import nearest
    from headwater.pipelines.spark.spark_errors import first_line

    try:
        return spark.sql(query)
    except PySparkException as error:
        hint = ""
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            known = [name for name in [*topics, *tables] if not name.startswith("__")]
            name = (error.getMessageParameters() or {}).get("relationName", "").strip("`")
            hint = nearest(name, known)
        raise CliError("sql", first_line(error), hint) from None


def show(frame: DataFrame, output: str) -> None:
    """Print the result; rows are fetched while they are printed, except for a table."""
    from pyspark.errors import PySparkException

    from headwater.pipelines.spark.spark_errors import first_line

    try:
        if output == "table":
            rows = frame.limit(TABLE_ROWS_MAX + 1).collect()
            print_table(frame.columns, [tuple(row) for row in rows[:TABLE_ROWS_MAX]])
            if len(rows) > TABLE_ROWS_MAX:
                note(f"only the first {TABLE_ROWS_MAX:,} rows are shown; -o json or -o csv give all")
        elif output == "json":
            for row in plain_rows(frame):
                sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(frame.columns)
            for row in plain_rows(frame):
                writer.writerow(
                    [json.dumps(v) if isinstance(v, dict | list) else "" if v is None else v for v in row.values()]
                )
    except PySparkException as error:
        raise CliError("sql", first_line(error), exit_code=EXIT_FAILED) from None


def plain_rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON values; of two columns with the same name, the last remains."""
    for row in frame.toLocalIterator():
        yield {name: plain(value) for name, value in zip(frame.columns, row, strict=True)}


def plain(value: Any) -> Any:
    """Convert a value of Spark's to JSON types.

    >>> import datetime
    >>> plain([datetime.date(2013, 1, 1), b"N14228", None, 2.5])
    ['2013-01-01', 'N14228', None, 2.5]
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if hasattr(value, "asDict"):
        return {name: plain(v) for name, v in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def cell(value: Any) -> str:
    """Format a value for a table.

    >>> cell(None), cell(12.345678), cell(336776)
    ('', '12.35', '336,776')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    shown = plain(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return text if len(text) <= CELL_WIDTH_MAX else text[: CELL_WIDTH_MAX - 1] + "…"


def print_table(names: Sequence[str], rows: Sequence[tuple[Any, ...]], title: str = "") -> None:
    """Print a table on stdout: with borders on a terminal, plain into a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if title:
        console.print(Text(title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(names):
        number = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(Text(name), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console.print(table)
