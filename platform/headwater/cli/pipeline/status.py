"""`headwater pipeline status`: running pipelines and their progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.pipeline.log_offsets import group_offsets, log_ends
from headwater.cli.pipeline.named_folder import all_folders, named_folder, state_path
from headwater.cli.pipeline.options import state_option
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options
from headwater.cli.shell.output import format_table, note

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient
    from headwater.pipelines.deployment.stage_report import StageReport
    from headwater.pipelines.deployment.state_folder import StateFolder


@click.command("status")
@click.argument("pipeline", required=False, metavar="[FILE|NAME]")
@state_option
@client_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status(pipeline: str | None, state: str | None, bootstrap_servers: str | None, output: str) -> None:
    """Show whether a pipeline is running, and the progress of its stages; without FILE or NAME, of all pipelines.

    Progress is read from the state folder; the lag also needs the log end offsets, which the broker is asked for.
    """
    from headwater.pipelines.deployment.run_lock import holder
    from headwater.pipelines.deployment.state_folder import StateFolder

    folders = [named_folder(pipeline, state)] if pipeline else all_folders(state)
    found = []
    with _broker(bootstrap_servers) as cluster:
        for folder, names in folders:
            process = holder(folder.path)
            reports = list(_reports(folder, names, cluster))
            if pipeline and not reports and process is None:
                known = ", ".join(StateFolder.pipelines(state_path(state))) or "none"
                where = f"the state folder {state_path(state)}"
                why = f"{folder.pipeline} has not run with {where} (those that have: {known})"
                raise CliError("pipeline status", why, "name another folder with --state")
            found.append((folder, process, reports))
    if output == "json":
        rows = [
            {
                "pipeline": folder.pipeline,
                "state": os.path.abspath(folder.path),
                "alive": process is not None,
                "process": process or None,
                "stages": [each.as_dict() for each in reports],
            }
            for folder, process, reports in found
        ]
        sys.stdout.write(json.dumps(rows[0] if pipeline else rows, indent=2, ensure_ascii=False) + "\n")
        return
    if not found:
        note(f"no pipeline has run with the state folder {state_path(state)}")
    for folder, process, reports in found:
        sys.stdout.write(describe(folder.pipeline, process, reports))


@contextmanager
def _broker(bootstrap_servers: str | None) -> Iterator[ClusterClient | None]:
    """Provide a client; None, after a note on stderr, if no broker answers."""
    from headwater.cli.shell.administration import cluster_client

    try:
        with cluster_client("pipeline status", bootstrap_servers) as cluster:
            cluster.any_connection()
            yield cluster
            return
    except CliError as error:
        if error.exit_code != EXIT_FAILED:
            raise
        note(f"the lag is unknown: {error}")
    yield None


def _reports(folder: StateFolder, names: Iterable[str], cluster: ClusterClient | None) -> Iterator[StageReport]:
    from headwater.pipelines.deployment.stage_report import report

    for name in dict.fromkeys((*names, *folder.stages())):
        stage = folder.stage(name)
        progress = stage.progress()
        offsets = progress.topics()
        group = None
        if not offsets and cluster is not None:
            group = group_offsets(cluster, f"{folder.pipeline}.{name}")
        known = offsets or group or {}
        if not known and progress.planned is None and not os.path.isdir(stage.path):
            continue  # it has never run
        ends = log_ends(cluster, known) if cluster is not None else None
        yield report(name, stage.epoch, progress, group, ends, stage.start(), stage.last_error())


def describe(pipeline: str, process: int | None, reports: Iterable[StageReport]) -> str:
    """Format a pipeline's status for people."""
    alive = "is not running" if process is None else f"is running (process {process or 'unknown'})"
    reports = list(reports)
    rows: list[Mapping[str, Any]] = [
        {
            "stage": each.stage,
            "epoch": each.epoch,
            "batch": each.batch,
            "done_at": each.done_at,
            "lag": each.behind,
            "topics": [f"{topic}: {lag}" for topic, lag in (each.lag or {}).items()],
        }
        for each in reports
    ]
    headings = {"stage": "STAGE", "epoch": "EPOCH", "batch": "BATCH", "done_at": "DONE AT", "lag": "LAG"}
    lines = [f"{pipeline} {alive}\n"]
    if rows:
        lines.append(format_table(rows, headings | {"topics": "OF WHICH"}))
    for each in reports:
        if each.planned is not None and process is None:
            lines.append(
                f"{each.stage}: micro-batch {each.planned} was started but not finished; the next run repeats it\n"
            )
        if each.starts_at is not None:
            lines.append(f"{each.stage}: the next run starts at {json.dumps(each.starts_at)}\n")
        if each.error is not None:
            lines.append(f"{each.stage}: failed at {each.error_at}: {each.error}\n")
    return "".join(lines)
