"""`headwater publish`: files or Delta tables into a topic, exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.cli.shell.options import (
    client_options,
    command_config,
    compression_option,
    key_values,
    servers,
    settings,
)
from headwater.cli.shell.output import note
from headwater.cli.shell.termination import raise_on_sigterm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

    from headwater.pipelines.datasource.brokers import Brokers
    from headwater.pipelines.publishing.publisher import Published
    from headwater.pipelines.publishing.request import PublishRequest
    from headwater.pipelines.publishing.topic_declaration import DeclaredTopic

VALUE_FORMATS: Final = ("json", "csv", "string", "raw", "avro", "protobuf", "json_schema")
KEY_FORMATS: Final = ("raw", "string", "json", "avro", "protobuf", "json_schema")
INPUT_FORMATS: Final = ("parquet", "orc", "json", "csv", "avro", "delta")
POLL_S: Final = 0.5
LINE_S: Final = 10.0  # between lines where there is no terminal


@click.command("publish", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="PATH[@VERSION]")
@click.option("-t", "--topic", required=True, help="Topic to write to; it exists.")
@click.option("-k", "--key", metavar="EXPR", help="Key of a record: a column, or an expression in Spark SQL.")
@click.option("--no-key", is_flag=True, help="Records have no key.")
@click.option("--value", metavar="EXPR", help="Value of a record.  [default: all columns in the topic's format]")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=EXPR", help="Header of a record; may be repeated."
)
@click.option("--timestamp", metavar="EXPR", help="Timestamp of a record.  [default: the time of writing]")
@click.option("--format", "value_format", type=click.Choice(VALUE_FORMATS), help="Format of values.  [default: json]")
@click.option("--schema", metavar="FILE|registry", help="Schema of values.  [default: the columns of the rows]")
@click.option("--message", metavar="NAME", help="Message of a Protobuf schema with several.")
@click.option("--subject", metavar="NAME", help="Subject of the schema in the registry.  [default: TOPIC-value]")
@click.option("--key-format", type=click.Choice(KEY_FORMATS), help="Format of keys.  [default: text]")
@click.option("--key-schema", metavar="FILE|registry", help="Schema of keys.")
@click.option("--registry", metavar="URL", help="Schema registry.")
@click.option("--pipeline", "file", type=click.Path(), help="Pipeline file that declares the topic, or the registry.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Variable of the pipeline.")
@click.option("--input-format", type=click.Choice(INPUT_FORMATS), help="Format of PATH.  [default: by the names]")
@click.option("--input-schema", metavar="COLUMNS|FILE", help="Columns of JSON, CSV or Avro files.  [default: found]")
@click.option("--input-option", "input_options", multiple=True, metavar="NAME=VALUE", help="Option of Spark's reader.")
@click.option("--version", type=click.IntRange(0), help="Version of a Delta table.  [default: the latest]")
@click.option("--from-version", type=click.IntRange(0), help="Publish what has changed since this version.")
@click.option("--to-version", type=click.IntRange(0), help="The later version of a difference.")
@click.option("--order-by", multiple=True, metavar="EXPR [DESC]", help="Order of the records of a key.")
@click.option("--id", "given_id", metavar="NAME", help="Name of this publish.  [default: a hash of its contents]")
@click.option("--split", is_flag=True, help="Permit several transactions, where one would take too long.")
@click.option("--transaction-rows", type=click.IntRange(1), help="Most rows of a transaction.  [default: by brokers]")
@click.option("--abandon", is_flag=True, help="Give up an interrupted publish of what PATH held before.")
@compression_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@client_options
def publish(
    path: str,
    topic: str,
    key: str | None,
    no_key: bool,
    value: str | None,
    headers: tuple[str, ...],
    timestamp: str | None,
    value_format: str | None,
    schema: str | None,
    message: str | None,
    subject: str | None,
    key_format: str | None,
    key_schema: str | None,
    registry: str | None,
    file: str | None,
    assignments: tuple[str, ...],
    input_format: str | None,
    input_schema: str | None,
    input_options: tuple[str, ...],
    version: int | None,
    from_version: int | None,
    to_version: int | None,
    order_by: tuple[str, ...],
    given_id: str | None,
    split: bool,
    transaction_rows: int | None,
    abandon: bool,
    compression: str,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Write the rows of files or of a Delta table to a topic, each once.

    PATH is a file, a folder, a pattern such as 'in/*.json', or a Delta table, on any file system that Spark reads. All
    rows are written in one transaction, so that readers (read_committed) see all of them or none. The cluster remembers
    what was published: an interrupted command is repeated without losing or doubling a row, and repeating a finished
    one changes nothing.
    """
    from headwater.cli.pipeline.loading import load
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.shell.checks import require_java
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.file_systems.file_system import FileSystemError
    from headwater.pipelines.publishing.contents import valid_id
    from headwater.pipelines.publishing.errors import PublishFailed, PublishRefused
    from headwater.pipelines.publishing.opened_source import accessible_files, named_source
    from headwater.pipelines.publishing.request import PublishRequest, split_version
    from headwater.pipelines.publishing.topic_declaration import declared_topic
    from headwater.pipelines.spark.session import close_session, open_session

    if (key is None) == (not no_key):
        raise CliError("publish", "name the column of the key by --key, or say --no-key")
    if (from_version is None) != (to_version is None):
        raise CliError("publish", "--from-version and --to-version go together")
    between = (from_version, to_version) if from_version is not None and to_version is not None else None
    own = {
        "value": value_format,
        "schema": schema,
        "message": message,
        "subject": subject,
        "key": key_format,
        "key_schema": key_schema,
    }
    try:
        own_id = valid_id(given_id) if given_id is not None else None
        files = accessible_files(path)
        name, suffixed = (path, None) if files is not None and files.entry(path) is not None else split_version(path)
        if suffixed is not None and version is not None:
            raise PublishRefused(f"the version is given twice: {path} and --version {version}")
        request = named_source(
            PublishRequest(
                path=name,
                topic=topic,
                key=key,
                value=value,
                timestamp=timestamp,
                headers=key_values(headers, "--header"),
                input_format=input_format,
                input_schema=input_schema,
                input_options=key_values(input_options, "--input-option"),
                version=suffixed if version is None else version,
                between=between,
                order_by=order_by,
                compression=compression,
                given_id=own_id,
                is_split=split,
                transaction_rows=transaction_rows,
                abandons=abandon,
            ),
            files,
        )
        loaded = load(file, assignments) if file is not None else None
        declared = declared_topic(request, {k: v for k, v in own.items() if v is not None}, registry, loaded)
    except (PublishRefused, ValueError) as error:
        raise CliError("publish", str(error)) from None
    except FileSystemError as error:
        raise CliError("publish", str(error), exit_code=EXIT_FAILED) from None
    where = brokers(servers(bootstrap_servers), command_config())
    require_java()
    with reported_errors(), tempfile.TemporaryDirectory(prefix="headwater-publish-") as folder:
        started_s = time.monotonic()
        spark = open_session(
            "headwater publish", os.path.join(folder, "spark.log"), {"spark.master": settings().spark_master}
        )
        # So that an open transaction is aborted: readers would wait for its timeout.
        raise_on_sigterm()
        try:
            published = run(spark, request, declared, where)
        except PublishRefused as error:
            raise CliError("publish", str(error), exit_code=EXIT_USER) from None
        except PublishFailed as error:
            raise CliError("", str(error), exit_code=EXIT_FAILED) from None
        finally:
            close_session()
    report(request, published, time.monotonic() - started_s, output)


def run(spark: SparkSession, request: PublishRequest, declared: DeclaredTopic, brokers: Brokers) -> Published:
    """Publish, with progress on stderr."""
    from headwater.pipelines.publishing.publisher import publish as publish_source

    watching = PublishDisplay(spark, brokers, request.topic)
    try:
        return publish_source(spark, request, declared, brokers, watching)
    finally:
        watching.close()


def report(request: PublishRequest, published: Published, seconds: float, output: str) -> None:
    """Print the summary on stdout."""
    from headwater.pipelines.publishing.publisher import source_shown

    rate = published.written / seconds if seconds > 0 else 0.0
    if output == "json":
        told: dict[str, Any] = {
            "id": published.name,
            "path": request.path,
            "source": source_shown(published),
            "topic": published.topic,
            "rows": published.rows,
            "written": published.written,
            "transactions": published.transactions,
            "was_there": published.was_there,
            "seconds": round(seconds, 3),
            "rows_per_second": round(rate),
        }
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
        return
    what = f"{request.path} ({source_shown(published)})"
    many = "1 transaction" if published.transactions == 1 else f"{published.transactions} transactions"
    if published.was_there:
        line = f"{what} is in {published.topic} already: {published.rows:,} rows, {many}; nothing was written"
    else:
        rest = published.rows - published.written
        before = f", {rest:,} were there already" if rest else ""
        speed = f"{seconds:,.1f} s, {rate:,.0f}/s"
        line = f"{published.written:,} rows of {what} to {published.topic}{before}: {many}, {speed}"
    sys.stdout.write(f"{line}\nid {published.name}\n")


class PublishDisplay:
    """Progress on stderr: a bar on a terminal, lines elsewhere. See `publisher.PublishWatch`."""

    def __init__(self, spark: SparkSession, brokers: Brokers, topic: str) -> None:
        self._spark = spark
        self._brokers = brokers
        self._topic = topic
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TextColumn("{task.fields[told]}"))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("starting", total=None, told="")
            self._bar.start()

    def close(self) -> None:
        """Stop drawing."""
        if self._bar is not None:
            self._bar.stop()

    def reading(self, size: int) -> None:
        """Bytes were read for checksums; a bar without an end shows that."""

    def phase(self, name: str) -> None:
        """Show what is being done."""
        self._show(name, None, 0, "")

    @contextlib.contextmanager
    def sending(self, rows: int, part: int, parts: int) -> Iterator[None]:
        """Show the progress of a transaction."""
        ended = threading.Event()
        what = "publishing" if parts == 1 else f"publishing {part + 1} of {parts}"
        thread = threading.Thread(target=self._watch, args=(what, rows, ended), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _watch(self, what: str, rows: int, ended: threading.Event) -> None:
        from headwater.pipelines.publishing.sending_progress import SendingProgress

        progress = SendingProgress(self._spark, self._brokers, self._topic)
        lined_s = time.monotonic()
        first_s: float | None = None
        try:
            while not ended.wait(POLL_S):
                now_s = time.monotonic()
                with contextlib.suppress(Exception):  # the job may be at its end, and Spark gone
                    sample = progress.sample()
                    sent = min(sample.sent, rows)
                    if sent == 0:
                        told = f"encoding {rows:,} rows, {sample.tasks_done} of {sample.tasks} tasks"
                    else:
                        first_s = now_s - POLL_S if first_s is None else first_s
                        told = sent_text(sent, rows, now_s - first_s)
                    self._show(what, rows, sent, told)
                    if self._bar is None and now_s - lined_s >= LINE_S:
                        lined_s = now_s
                        note(f"{what}: {told}")
        finally:
            progress.close()

    def _show(self, what: str, total: int | None, done: int, told: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what, total=total, completed=done, told=told)


def sent_text(sent: int, rows: int, seconds: float) -> str:
    """The progress of sending: rows, rate, time left.

    >>> sent_text(50_000, 200_000, 2.0)
    '50,000 of 200,000 rows, 25,000/s, 6 s left'
    """
    rate = sent / seconds if seconds > 0 else 0.0
    left = f", {(rows - sent) / rate:,.0f} s left" if rate else ""
    return f"{sent:,} of {rows:,} rows, {rate:,.0f}/s{left}"
