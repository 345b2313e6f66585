"""`headwater archive run`: lets tables catch up with their topics, or keeps them fresh."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from headwater.child import ParentLink
from headwater.cli.archive.loading import NO_ARCHIVES, ArchivesOfCommand, archive_options, reported_archive_errors
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.driver_session import driver_conf, driver_session
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.cli.shell.metrics_port import metrics_options, open_metrics
from headwater.cli.shell.options import child_options, servers
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.archive.archive_round import RoundOutcome
    from headwater.pipelines.archive.configured import KnownArchives
    from headwater.pipelines.archive.running import RoundFailure
    from headwater.pipelines.datasource.brokers import Brokers

#: How often Hadoop's client tries again to reach a name node that keeps silent, 20 seconds each: 45 times without it,
#: and all the while a round has a thread, and a table is not fresh.
CONNECT_RETRIES: Final = {"spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "3"}


@click.command("run")
@archive_options
@click.option("--once", is_flag=True, help="Let the tables catch up with the topics as they are now, and end.")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@metrics_options
@click.option(
    "--status/--no-status",
    "publishes_status",
    default=True,
    show_default=True,
    help="Publish the status of each archive to the topic __headwater_status.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="A line or a JSON object for each commit.")  # fmt: skip
@child_options
def run(
    where: str,
    topics: tuple[str, ...],
    assignments: tuple[str, ...],
    registry: str | None,
    bootstrap_servers: str | None,
    once: bool,
    confs: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    publishes_status: bool,
    output: str,
    ready_fd: int | None,
    parent_fd: int | None,
) -> None:
    """Add the topics' records to their tables: until Ctrl-C, or once.

    Archived are the topics that FILE names, and those whose config headwater.archive.enable is true; without a file,
    ROOT is the folder or URL below which the tables of these are.
    """
    from headwater.cli.sql.known_relations import Cluster

    link = ParentLink(ready_fd, parent_fd)
    try:
        require_java()
        with reported_archive_errors():
            archives = ArchivesOfCommand(where, assignments, topics)
            if link.supervised:
                # A supervisor tells the addresses as soon as there are some.
                told = link.receive()
                bootstrap_servers, registry = str(told["bootstrap_servers"]), registry or told.get("registry")
            cluster = Cluster(bootstrap_servers or servers(None))
            _run(
                link,
                archives,
                archives.now(cluster, registry),
                cluster.where,
                confs,
                None if metrics_port is None else (metrics_host, metrics_port),
                _Display(output),
                once=once,
                publishes_status=publishes_status,
            )
    except CliError as error:
        if not link.supervised:
            raise
        link.report_error(str(error), error.exit_code)
        note(str(error))
        raise SystemExit(error.exit_code) from None


def _run(
    link: ParentLink,
    archives: ArchivesOfCommand,
    known: KnownArchives,
    broker: Brokers,
    confs: tuple[str, ...],
    metrics: tuple[str, int] | None,
    display: _Display,
    *,
    once: bool,
    publishes_status: bool,
) -> None:
    from headwater.cli.shell.spark_signals import exit_code_of, until_signal
    from headwater.pipelines.archive.metrics import families
    from headwater.pipelines.archive.running import ArchiveRun, RoundFailure
    from headwater.pipelines.archive.status_topic import ArchiverStatusTopic
    from headwater.pipelines.file_systems.opening import file_system
    from headwater.pipelines.file_systems.options import FileSystemOptions
    from headwater.pipelines.loads.offsets.log_state import client_of
    from headwater.pipelines.monitoring.prometheus_endpoint import PrometheusEndpoint

    specs, loaded = known.specs, known.loaded
    if not specs and not known.refused:
        note(NO_ARCHIVES)
        if once:
            return
    loaded.require_secrets()
    conf = archiver_conf(driver_conf(loaded, confs), os.environ)
    options = FileSystemOptions.of(conf)
    running = ArchiveRun(
        specs,
        loaded,
        broker,
        lambda table: file_system(table, options, note),
        listed=archives.again,
        on_round=display.round_ended,
        on_failure=display.round_failed,
        on_end=lambda: status.end() if status is not None else None,
    )
    endpoint = PrometheusEndpoint(lambda: families(running.counts()))
    if metrics is not None:
        open_metrics(endpoint, *metrics)
    status = ArchiverStatusTopic(client_of(broker), running.counts) if publishes_status else None
    link.watch()
    link.report_ready({})
    with driver_session("headwater archive", conf) as start_spark:
        try:
            if status is not None:
                status.start()
            if once:
                failures, number = until_signal(running.run_once, running.stop, start_spark)
            else:
                until_signal(running.run, running.stop, start_spark)
                return
        finally:
            endpoint.close()
    failures = [
        RoundFailure(topic, "", why.reason, why.is_user_error) for topic, why in known.refused.items()
    ] + failures
    count = len(specs) + len(known.refused)
    for each in failures:
        display.round_failed(each)
    if failures and number:
        raise SystemExit(exit_code_of(number))
    if failures:
        is_user_error = all(each.is_user_error for each in failures)
        what = f"{len(failures)} of {count} archives have failed" if count > 1 else "the archive has failed"
        raise CliError("archive run", what, exit_code=EXIT_USER if is_user_error else EXIT_FAILED)


def archiver_conf(own: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings of an archiver; `own` take precedence, and so do the files of HADOOP_CONF_DIR.

    >>> archiver_conf({"spark.cores.max": "2"}, {"HADOOP_CONF_DIR": "/etc/hadoop"})
    {'spark.scheduler.mode': 'FAIR', 'spark.cores.max': '2'}
    """
    hadoop = {} if environment.get("HADOOP_CONF_DIR") else CONNECT_RETRIES
    return {"spark.scheduler.mode": "FAIR", **hadoop, **own}


class _Display:
    """Prints what happens, from any thread."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._lock = threading.Lock()

    def round_ended(self, outcome: RoundOutcome) -> None:
        """A commit was made."""
        with self._lock:
            if self._output == "json":
                sys.stdout.write(json.dumps(outcome.value(), ensure_ascii=False) + "\n")
            else:
                sys.stdout.write(f"{outcome}\n")
            sys.stdout.flush()

    def round_failed(self, failure: RoundFailure) -> None:
        """A round has failed."""
        with self._lock:
            again = "" if failure.retry_s is None else f"; tried again in {failure.retry_s:,.0f} s"
            note(f"{failure.topic}: {failure.error}{again}")
