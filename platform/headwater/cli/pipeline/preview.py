"""`headwater pipeline preview`: the output of a stage for existing records; nothing is written."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.pipeline.options import environment_option, set_option
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, client_security, command_config, key_values, servers
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.definition import Loaded
    from headwater.pipelines.preview.stage_preview import Preview

VALUE_CHARACTERS_MAX = 1_000  # of one value on the terminal; -o json has all of it
ROWS_MAX = 1_000  # of a sink: more is a query for `headwater sql`


@click.command("preview")
@click.argument("file", type=click.Path())
@click.argument("stage")
@set_option
@environment_option
@click.option(
    "--rows",
    type=click.IntRange(1, ROWS_MAX),
    default=10,
    show_default=True,
    help="Number of rows to show for each sink.",
)
@click.option(
    "--records",
    type=click.IntRange(1, 10_000_000),
    default=10_000,
    show_default=True,
    help="Maximum number of records to read from each input.",
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="Where to start in topics: earliest, latest (the last records), an offset, or a timestamp in ISO 8601.",
)
@client_options
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def preview(
    file: str,
    stage: str,
    assignments: tuple[str, ...],
    environment: str,
    rows: int,
    records: int,
    start: str,
    bootstrap_servers: str | None,
    confs: tuple[str, ...],
    output: str,
) -> None:
    """Show what STAGE of the pipeline in FILE would write for existing records.

    Nothing is written, created or committed. A stateful stage is computed over all records read, as one batch.
    """
    from headwater.api.topic_admin import TopicAdmin
    from headwater.cli.pipeline.loading import load
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.shell.checks import require_java
    from headwater.pipelines.analysis.analysis import analyse
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.errors import PipelineError, nearest
    from headwater.pipelines.preview.stage_preview import Request, StagePreview
    from headwater.pipelines.preview.start_offsets import parse_start
    from headwater.pipelines.spark.session import close_session, open_session

    try:
        request = Request(parse_start(start), records, rows)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--from") from None
    where = servers(bootstrap_servers)
    require_java()
    with reported_errors(), tempfile.TemporaryDirectory(prefix="headwater-preview-") as folder:
        admin = TopicAdmin(where, security=client_security())
        loaded = load(file, assignments, frozenset(topic.name for topic in admin.list_topics()), environment)
        names = [one.name for one in loaded.pipeline.stages]
        if stage not in names:
            raise PipelineError([loaded.problem(("stages",), f"there is no stage '{stage}'", nearest(stage, names))])
        loaded.require_secrets()
        note("starting Spark, which takes a few seconds")
        own = {name: text.reveal() for name, text in loaded.pipeline.spark.items()}
        conf = {**own, "spark.sql.warehouse.dir": folder, **key_values(confs, "--conf")}
        spark = open_session(
            f"headwater preview {loaded.pipeline.pipeline}", os.path.join(folder, "spark.log"), conf, few_rows=True
        )
        try:
            with _failures(loaded):
                secured = brokers(where, command_config())
                analysis = analyse(spark, loaded, secured)
                empty = os.path.join(folder, "empty")
                os.mkdir(empty)
                stage_preview = StagePreview(spark, loaded, loaded.pipeline.stage(stage), analysis, secured, empty)
                found = stage_preview.compute(request)
        finally:
            close_session()
    if output == "json":
        sys.stdout.write(json.dumps(found.as_dict(), indent=2, ensure_ascii=False) + "\n")
    else:
        print_preview(found, start)


@contextmanager
def _failures(loaded: Loaded) -> Iterator[None]:
    """Report failures of Spark, brokers and databases in one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from headwater.pipelines.datasource.errors import SourceError
    from headwater.pipelines.spark.spark_errors import first_line

    try:
        yield
    except (PySparkException, Py4JError, SourceError) as error:
        raise CliError("preview", loaded.redacted(first_line(error)), exit_code=EXIT_FAILED) from None


def print_preview(shown: Preview, start: str) -> None:
    """Print a preview for people."""
    lines = [f"stage {shown.stage}: what it would write; nothing is written"]
    for one in shown.inputs:
        of = "" if one.there is None else f" of {one.there:,} offsets, from {start}"
        bad = f", {one.undecodable:,} not decodable" if one.undecodable else ""
        lines.append(f"reads   {one.kind} {one.target}: {one.rows:,} rows{of}{bad}")
    lines += [f"misses  {gap}" for gap in shown.gaps]
    if shown.keeps_state:
        lines.append(
            "note    the stage keeps state: computed over these rows as a whole, windows that are open included"
        )
    lines += [f"unmet   {name}: {count:,} rows" for name, count in shown.unmet.items()]
    lines += [f"stops   a run would stop here, before it writes: {name} is not met" for name in shown.stopped_by]
    for sink in shown.sinks:
        how = f", {sink.how}" if sink.how else ""
        lines.append(f"writes  {sink.kind} {sink.target}{how}: {sink.count:,} rows")
        lines += _rows(sink.rows, sink.count)
    if shown.dead_letters:
        lines.append(f"refuses {shown.dead_letters:,} dead letters")
        lines += _rows(shown.letters, shown.dead_letters)
    sys.stdout.write("\n".join([*lines, ""]))


def _rows(rows: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    """Return one line per row; keys and values that are JSON are printed as JSON."""
    from headwater.pipelines.rows.comparison import value_text
    from headwater.pipelines.testing.stage_run import dead_letter_part

    found = []
    for row in rows:
        parts = (f"{name}: {value_text(dead_letter_part(v), VALUE_CHARACTERS_MAX)}" for name, v in row.items())
        found.append(f"  {', '.join(parts)}")
    return [*found, f"  and {count - len(rows):,} more"] if rows and count > len(rows) else found
