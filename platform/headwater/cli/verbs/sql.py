"""`headwater sql`: the command's options."""

from __future__ import annotations

import click

from headwater.cli.shell.options import client_options
from headwater.cli.sql.options import FOLLOWED_ROWS, SqlOptions
from headwater.cli.sql.relation_options import relation_options


@click.command("sql", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-e", "--execute", "query", metavar="SQL", help="Statements to run, separated by semicolons.")
@click.option("-f", "--file", "script", metavar="FILE", help="File of statements to run; - is standard input.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    help="Value of the parameter :NAME of the statements; may be repeated. Without a type (string, bigint, double, "
    "decimal, boolean, date, timestamp), a number, true, false and null are what SQL makes of them; all else is text.",
)
@click.option("--continue", "goes_on", is_flag=True, help="Run the statements after one that fails.")
@client_options
@relation_options
@click.option(
    "--catalog",
    metavar="DIR",
    help="Folder that keeps created schemas, tables and views.  [default: they last as long as the session]",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "jsonl", "csv", "parquet"]),
    default="table",
    show_default=True,
    help="Format of results: json is one array, jsonl an object a line.",
)
@click.option("--to", metavar="FILE", help="File of -o parquet; it is replaced when the result is whole.")
@click.option("--follow", is_flag=True, help="Read the statement's topics as streams, and print what comes.")
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="Start of --follow: earliest, latest, an offset, -N (before the end) or @TIME.  [default: latest]",
)
@click.option(
    "--rows-held",
    type=click.IntRange(1, 10_000_000),
    help=f"Records of a topic that --follow reads, and holds, at once.  [default: {FOLLOWED_ROWS}]",
)
def sql(**given: object) -> None:
    """Run Spark SQL over topics and Delta tables.

    Without -e and -f, statements are read from the terminal, each ended by a semicolon, or from standard input.

    NAME is a topic (in backquotes if it has dots) with the columns that --pipeline or the schema registry knows, or an
    archived topic's table together with the log (--archive); log.NAME are a topic's records as the log holds them,
    lake.NAME is the table of an archive, or a Delta table of the pipeline or of --delta.
    """
    options = SqlOptions(**given)  # type: ignore[arg-type]
    options.check()
    from headwater.cli.sql.command import run

    run(options)
