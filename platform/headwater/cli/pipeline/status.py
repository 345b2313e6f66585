"""`headwater pipeline status`: running pipelines and their progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.pipeline.checkpoint_place import reported_file_errors, running_stage
from headwater.cli.pipeline.log_offsets import group_offsets, log_ends
from headwater.cli.pipeline.named_folder import NamedPipeline, all_pipelines, named_pipeline, state_path
from headwater.cli.pipeline.options import checkpoints_option, state_option
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
@checkpoints_option
@client_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status(
    pipeline: str | None, state: str | None, checkpoints: str | None, bootstrap_servers: str | None, output: str
) -> None:
    """Show whether a pipeline is running, and the progress of its stages; without FILE or NAME, of all pipelines.

    Progress is read from the state folder, or from the checkpoints' URL; the lag also needs the log end offsets, which
    the broker is asked for. Whether a pipeline with checkpoints at a URL runs on another machine is read from the topic
    of stages' status.
    """
    from headwater.pipelines.deployment.state_folder import StateFolder

    found = []
    with _broker(bootstrap_servers) as cluster, reported_file_errors("pipeline status"):
        pipelines = [named_pipeline(pipeline, state, checkpoints)] if pipeline else all_pipelines(state, checkpoints)
        for each in pipelines:
            folder = each.folder
            run = _live_run(each, bootstrap_servers if cluster is not None else None, is_known=cluster is not None)
            reports = list(_reports(folder, each.stages, cluster))
            if pipeline and not reports and run is None:
                known = ", ".join(StateFolder.pipelines(state_path(state))) or "none"
                where = f"the state folder {state_path(state)}" if each.is_here else f"checkpoints at {folder.root}"
                why = f"{folder.pipeline} has not run with {where} (those that have: {known})"
                raise CliError("pipeline status", why, "name another folder with --state")
            found.append((folder, run, reports))
    if output == "json":
        rows = [
            {
                "pipeline": folder.pipeline,
                "state": folder.path,
                "alive": run is not None,
                "process": (run.process or None) if run is not None else None,
                "host": (run.host or None) if run is not None else None,
                "stages": [each.as_dict() for each in reports],
            }
            for folder, run, reports in found
        ]
        sys.stdout.write(json.dumps(rows[0] if pipeline else rows, indent=2, ensure_ascii=False) + "\n")
        return
    if not found:
        note(f"no pipeline has run with the state folder {state_path(state)}")
    for folder, run, reports in found:
        sys.stdout.write(describe(folder.pipeline, run, reports))


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that is alive: its process (0: unknown), and its machine; '' for this one."""

    process: int
    host: str = ""


def _live_run(named: NamedPipeline, bootstrap_servers: str | None, *, is_known: bool) -> LiveRun | None:
    """Find the live run of a pipeline. `is_known`: a broker answers, and has the status of runs on other machines."""
    from headwater.pipelines.deployment.run_lock import holder

    process = holder(named.local.path)
    if process is not None:
        return LiveRun(process)
    if named.is_here or not is_known:
        return None
    found = running_stage(named.folder.pipeline, bootstrap_servers)
    return None if found is None else LiveRun(found.process, found.host)


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
        if not known and progress.planned is None and not stage.exists:
            continue  # it has never run
        ends = log_ends(cluster, known) if cluster is not None else None
        yield report(name, stage.epoch, progress, group, ends, stage.start(), stage.last_error())


def describe(pipeline: str, run: LiveRun | None, reports: Iterable[StageReport]) -> str:
    """Format a pipeline's status for people."""
    where = f" on {run.host}" if run is not None and run.host else ""
    alive = "is not running" if run is None else f"is running{where} (process {run.process or 'unknown'})"
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
        if each.planned is not None and run is None:
            lines.append(
                f"{each.stage}: micro-batch {each.planned} was started but not finished; the next run repeats it\n"
            )
        if each.starts_at is not None:
            lines.append(f"{each.stage}: the next run starts at {json.dumps(each.starts_at)}\n")
        if each.error is not None:
            lines.append(f"{each.stage}: failed at {each.error_at}: {each.error}\n")
    return "".join(lines)
