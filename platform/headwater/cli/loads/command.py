"""`headwater load`: loads ranges of topics into files and Delta tables, each record once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headwater.cli.loads.display import LoadDisplay, show
from headwater.cli.loads.readiness import DEFAULT_IDLE_S, report_readiness
from headwater.cli.loads.verifying import verify_target
from headwater.cli.pipeline.options import set_option
from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.driver_session import driver_conf, driver_session
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.cli.shell.options import client_options, client_security, command_config, key_values, servers
from headwater.cli.shell.output import note
from headwater.pipelines.loads.target_format import TARGET_FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = ["raw", "string", "json", "csv", "avro", "protobuf", "json_schema"]


@click.command("load", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@click.option("--topics", "pattern", metavar="REGEX", help="Load every topic whose whole name matches.")
@click.option("-f", "--file", type=click.Path(), metavar="FILE", help="Loads in YAML; options override it.")
@click.option("--to", metavar="URL", help="Folder or table: a path, file:, hdfs: or s3a: URL, with {topic}.")
@click.option("--format", "form", type=click.Choice(TARGET_FORMATS), help="Format of the target.  [default: delta]")
@click.option("--from", "start", metavar="POSITION", help="Start: earliest, last, offsets, a time.  [default: last]")
@click.option("--until", metavar="POSITION", help="End, excluded: latest, offsets, a time.  [default: latest]")
@click.option("--interval", metavar="START/END", help="Two times: from where the interval before ended, named by them.")
@click.option(
    "--partition-by", multiple=True, metavar="COLUMN", help="Column, date(COLUMN) or hour(COLUMN); may be repeated."
)
@click.option("--timezone", metavar="NAME", help="Time zone of date(...) and hour(...).  [default: UTC]")
@click.option("--id", "load_id", default="", metavar="NAME", help="Name of the load.  [default: by topic and range]")
@click.option("--missing", is_flag=True, help="Load what the target lacks of the range.")
@click.option("--replace", default="", metavar="ID", help="Load a load's range anew, in place of its rows.")
@click.option("--on-gap", type=click.Choice(["fail", "record"]), help="Records lost by retention.  [default: fail]")
@click.option("--merge-schema", is_flag=True, help="Add new columns to the target.")
@click.option("--headers", is_flag=True, help="Keep the headers of raw topics.")
@click.option("--value", type=click.Choice(VALUES), help="Format of the topics' values.  [default: raw]")
@click.option("--schema", metavar="FILE", help="Schema of the values, or `registry`.")
@click.option("--registry", metavar="URL", help="Schema registry.")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="Wait for another load into the target.")  # fmt: skip
@click.option("--verify", "verified", metavar="URL", help="Compare a target with its loads and the log; load nothing.")
@click.option("--ready", is_flag=True, help="Exit with 0 when all partitions are past --until, else with 75.")
@click.option("--lateness", "lateness_s", type=click.FloatRange(0), metavar="SECONDS",
              help="With --ready: wait that much longer for late records.  [default: 0]")  # fmt: skip
@click.option("--idle", "idle_s", type=click.FloatRange(0, 60), metavar="SECONDS",
              help="With --ready: a partition without a new record for that long is idle.  [default: 5]")  # fmt: skip
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@set_option
@click.option("--end-with-caller", is_flag=True, help="End when the calling process has ended.")
@client_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def load(
    topics: tuple[str, ...],
    pattern: str | None,
    file: str | None,
    to: str | None,
    form: str | None,
    start: str | None,
    until: str | None,
    interval: str | None,
    partition_by: tuple[str, ...],
    timezone: str | None,
    load_id: str,
    missing: bool,
    replace: str,
    on_gap: str | None,
    merge_schema: bool,
    headers: bool,
    value: str | None,
    schema: str | None,
    registry: str | None,
    wait_s: float,
    verified: str | None,
    ready: bool,
    lateness_s: float | None,
    idle_s: float | None,
    confs: tuple[str, ...],
    assignments: tuple[str, ...],
    end_with_caller: bool,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Load ranges of topics into files or Delta tables, each record once.

    A load's range is resolved once, and written down below the target before its first row. A command that is repeated,
    with the same --id or range, changes nothing when the range is loaded.
    """
    from headwater.api.topic_admin import TopicAdmin
    from headwater.pipelines.loads.errors import LoadError
    from headwater.pipelines.loads.options import LoadOptions, requests_of

    where = servers(bootstrap_servers)
    if ready:
        if pattern or file or to or not topics or until is None:
            raise CliError("load", "--ready needs topics by name and --until", "see `headwater load --help`")
        report_readiness(topics, where, until, lateness_s or 0.0, DEFAULT_IDLE_S if idle_s is None else idle_s, output)
        return
    if lateness_s is not None or idle_s is not None:
        raise CliError("load", "--lateness and --idle are for --ready")
    require_java()
    if verified is not None:
        if topics or pattern or file or to:
            raise CliError("load", "--verify names the target itself", "give it alone")
        verify_target(verified, where, key_values(confs, "--conf"), output)
        return
    options = LoadOptions(
        topics=topics,
        pattern=pattern,
        file=file,
        to=to,
        format=form,
        start=start,
        until=until,
        interval=interval,
        partition_by=partition_by,
        timezone=timezone,
        load_id=load_id,
        missing=missing,
        replace=replace,
        on_gap=on_gap,
        merge_schema=merge_schema,
        headers=headers,
        wait_s=wait_s,
        value=value,
        schema=schema,
        registry=registry,
        assignments=key_values(assignments, "--set"),
    )
    with reported_errors():
        existing = {topic.name for topic in TopicAdmin(where, security=client_security()).list_topics()}
        try:
            requests, loaded = requests_of(options, existing)
        except LoadError as error:
            raise CliError("load", str(error)) from None
        loaded.require_secrets()
        outcomes = _run(requests, loaded, where, driver_conf(loaded, confs), end_with_caller=end_with_caller)
    show(outcomes, output)
    failed = [each for each in outcomes if each.error]
    if failed:
        is_user_error = all(each.is_user_error for each in failed)
        what = f"{len(failed)} of {len(outcomes)} loads failed" if len(outcomes) > 1 else "the load failed"
        raise CliError("load", what, exit_code=EXIT_USER if is_user_error else EXIT_FAILED)


def _run(requests: Any, loaded: Any, where: str, conf: dict[str, str], *, end_with_caller: bool) -> Any:
    from headwater.cli.shell.spark_signals import exit_code_of, until_signal
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.file_systems.opening import file_system
    from headwater.pipelines.file_systems.options import FileSystemOptions
    from headwater.pipelines.loads.running import LoadRun, told_in_a_line

    display = LoadDisplay(len(requests))
    with told_in_a_line():
        options = FileSystemOptions.of(conf)
    run = LoadRun(
        requests,
        loaded,
        brokers(where, command_config()),
        lambda target: file_system(target, options, note),
        on_end=display.ended_one,
        on_wait=lambda held: note(f"{held}; waiting"),
    )
    with driver_session("headwater load", conf) as start:

        def start_spark() -> SparkSession:
            spark = start()
            display.started(spark)
            return spark

        display.begin()
        try:
            outcomes, number = until_signal(run.run, run.stop, start_spark, end_with_caller=end_with_caller)
        finally:
            display.end()
    if number and any(outcome.error for outcome in outcomes):
        raise SystemExit(exit_code_of(number))
    return outcomes
