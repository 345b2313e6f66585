"""`headwater sql`: puts its parts together for a script, a stream or the shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.cli.shell.options import key_values, servers, settings
from headwater.cli.shell.output import note
from headwater.cli.sql.execution import Executor, show_chunks
from headwater.cli.sql.follow import Follower, parse_from, start_of, with_history
from headwater.cli.sql.known_relations import Cluster, archives_of, known_relations, left_out
from headwater.cli.sql.options import FOLLOWED_ROWS, SqlOptions
from headwater.cli.sql.outputs import Output, followed_output_of, output_of
from headwater.cli.sql.pager import show_table
from headwater.cli.sql.parameters import parameters
from headwater.cli.sql.script import STOP_WAIT_S, Script, read_script, run_script
from headwater.cli.sql.spark_session import opened
from headwater.pipelines.sql.relations import TABLE_NAME, Known
from headwater.pipelines.sql.statement_errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.cli.messages.start_offset import StartOffset
    from headwater.pipelines.sql.relations import TopicFrames

__all__ = ["run"]


def run(options: SqlOptions) -> None:
    """Run the command. Raises CliError, KeyboardInterrupt, and the errors of the function that lists topics."""
    values = parameters(options.params)
    script = _script(options)
    start = parse_from(options.start or "latest")
    tables = _tables(options.deltas)
    if options.follow and script is not None and len(script.statements) != 1:
        raise CliError("sql", f"--follow takes one statement, and there are {len(script.statements)}")
    if options.to is not None and script is None:
        raise CliError("sql", "-o parquet is for -e and -f")
    require_java()
    if script is None:
        note("starting Spark; end a statement with a semicolon, leave with Ctrl-D or exit")
    with reported_errors():
        archives_of(options)  # the file's mistakes come before Spark
        with opened(settings().spark_master, options.catalog or "") as spark:
            _run(spark, options, script, values, start, tables)


def _run(
    spark: SparkSession,
    options: SqlOptions,
    script: Script | None,
    values: dict[str, Any],
    start: StartOffset,
    tables: dict[str, str],
) -> None:
    cluster = Cluster(servers(options.bootstrap_servers))
    archives = archives_of(options, cluster)
    known = archives.known(known_relations(spark, cluster, options, tables))
    frames = archives.frames(spark, cluster.where)
    if script is None:
        relations = cluster.relations(spark, known, frames)
        _shell(Executor(spark, relations, output_of(options.output, show_table), values))
    elif options.follow:
        most = options.rows_held or FOLLOWED_ROWS
        first_of = partial(archives.first_offsets, spark, cluster.where)
        source_of = start_of(start, with_history(cluster.admin.offsets, first_of))
        arriving = archives.arriving(spark, cluster.where, source_of, most)
        output = followed_output_of(options.output)
        follower = Follower(spark, cluster.relations(spark, known, arriving), values, keyed=output.keyed)
        _follow(follower, script, output)
    else:
        _run_script(spark, cluster, known, frames, options, script, values)


def _script(options: SqlOptions) -> Script | None:
    """The statements of -e, -f or standard input; None for the shell."""
    if options.query is not None:
        return Script(options.query)
    if options.script is not None or not sys.stdin.isatty():
        return read_script(options.script or "-")
    return None


def _tables(deltas: tuple[str, ...]) -> dict[str, str]:
    tables = key_values(deltas, "--delta")
    for name in tables:
        if not TABLE_NAME.fullmatch(name):
            raise CliError("sql", f"--delta {name[:60]!r}: a table's name consists of letters, digits and _")
    return tables


def _run_script(
    spark: SparkSession,
    cluster: Cluster,
    known: Known,
    frames: TopicFrames,
    options: SqlOptions,
    script: Script,
    values: Mapping[str, Any],
) -> None:
    to = os.path.abspath(options.to) if options.to is not None else ""
    executor = Executor(spark, cluster.relations(spark, known, frames), output_of(options.output), values, to)
    run_script(executor, script, goes_on=options.goes_on)
    for line in left_out(spark, cluster.where, known, [each.text for each in script.statements]):
        note(line)


def _follow(follower: Follower, script: Script, output: Output) -> None:
    statement = script.statements[0]
    run = follower.start(statement)
    try:
        show_chunks(run, output)
    except KeyboardInterrupt:
        run.cancel()
        run.wait(STOP_WAIT_S)
        raise
    except StatementError as error:
        code = EXIT_USER if error.is_users else EXIT_FAILED
        raise CliError("" if script.file else "sql", error.line(script.file), exit_code=code) from None


def _shell(executor: Executor) -> None:
    from headwater.cli.sql.completion import SqlCompleter
    from headwater.cli.sql.history import history_at, history_path
    from headwater.cli.sql.prompt import Prompt
    from headwater.cli.sql.shell import Shell

    history, why_not = history_at(history_path(os.environ))
    if why_not:
        note(why_not)
    Shell(Prompt(history, SqlCompleter(executor.relations)), executor).run()
