"""`headwater pipeline status` and `stop`: what runs, how far it is, and its end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.cli.errors import EXIT_FAILED, CliError
from headwater.cli.options import client_options
from headwater.cli.output import format_table, note

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient
    from headwater.pipelines.deployment.stage_report import StageReport
    from headwater.pipelines.deployment.state_folder import StateFolder

STOP_TIMEOUT_S: Final = 120
"""A run ends its present micro-batches first, and cuts those that take longer than a minute."""

_POLL_S: Final = 0.1

_state_option = click.option("--state", metavar="FOLDER", help="The state folder.  [default: .headwater/state]")


@click.command("status")
@click.argument("pipeline", required=False, metavar="[FILE|NAME]")
@_state_option
@client_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status(pipeline: str | None, state: str | None, bootstrap_servers: str | None, output: str) -> None:
    """Say whether a pipeline runs, and how far each of its stages is; without FILE or NAME, all of them.

    It looks into the state folder, and asks the broker how much there is to read.
    """
    from headwater.pipelines.deployment.run_lock import holder
    from headwater.pipelines.deployment.state_folder import StateFolder

    folders = [named_folder(pipeline, state)] if pipeline else _all(state)
    found = []
    with _broker(bootstrap_servers) as cluster:
        for folder, names in folders:
            process = holder(folder.path)
            reports = list(_reports(folder, names, cluster))
            if pipeline and not reports and process is None:
                known = ", ".join(StateFolder.pipelines(_path(state))) or "none"
                why = f"{folder.pipeline} has not run with the state folder {_path(state)} (those that have: {known})"
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
        note(f"nothing has run with the state folder {_path(state)}")
    for folder, process, reports in found:
        sys.stdout.write(describe(folder.pipeline, process, reports))


@click.command("stop")
@click.argument("pipeline", metavar="FILE|NAME")
@_state_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(0),
    default=STOP_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it has ended.",
)
def stop(pipeline: str, state: str | None, timeout_s: int) -> None:
    """Ask the run of a pipeline to stop, and wait until it has: each stage ends its present micro-batch.

    Only the process that holds the pipeline's state folder is asked. The next run goes on from there.
    """
    from headwater.pipelines.deployment.run_lock import UNKNOWN_PROCESS, ask_to_stop, holder

    folder, _ = named_folder(pipeline, state)
    process = holder(folder.path)
    if process is None:
        note(f"{folder.pipeline} does not run")
        return
    if process == UNKNOWN_PROCESS:
        raise CliError(
            "pipeline stop",
            f"{folder.pipeline} runs, but its process cannot be told",
            "stop it where it was started: it runs in another container or under another user",
            exit_code=EXIT_FAILED,
        )
    try:
        asked = ask_to_stop(folder.path, process)
    except PermissionError:
        raise CliError("pipeline stop", f"process {process} belongs to another user", exit_code=EXIT_FAILED) from None
    if asked:
        note(f"asked process {process} to stop {folder.pipeline}")
    deadline_s = time.monotonic() + timeout_s
    while holder(folder.path) in (process, UNKNOWN_PROCESS):
        if time.monotonic() >= deadline_s:
            raise CliError(
                "pipeline stop",
                f"{folder.pipeline} has not ended within {timeout_s} s",
                "it ends with its present micro-batches; ask again, or wait longer with --timeout",
                exit_code=EXIT_FAILED,
            )
        time.sleep(_POLL_S)
    note(f"{folder.pipeline} has stopped")


# -- which pipeline ------------------------------------------------------------------------------------------------


def _path(state: str | None) -> str:
    from headwater.cli.pipeline import STATE_DEFAULT

    return state or STATE_DEFAULT


def named_folder(pipeline: str, state: str | None) -> tuple[StateFolder, list[str]]:
    """The state folder of a pipeline that is named, or whose file is, and the stages that its file names itself."""
    from headwater.pipelines.definition.model import identifier
    from headwater.pipelines.definition.yaml_source import FILE_BYTES_MAX, read
    from headwater.pipelines.deployment.state_folder import StateFolder
    from headwater.pipelines.errors import PipelineError

    if not os.path.isfile(pipeline):
        try:
            return StateFolder(_path(state), identifier(pipeline)), []
        except ValueError:
            raise CliError("pipeline", f"there is no file {pipeline}, and it is no name of a pipeline") from None
    try:
        with open(pipeline, encoding="utf-8") as file:
            values = read(file.read(FILE_BYTES_MAX + 1), pipeline).values
        name = identifier(str(values["pipeline"]))
    except (PipelineError, OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise CliError("pipeline", f"{pipeline} does not say which pipeline it is: {error}") from None
    stages = values.get("stages")
    names = [str(each["name"]) for each in stages if isinstance(each, dict) and "name" in each] if stages else []
    return StateFolder(_path(state), name), names


def _all(state: str | None) -> list[tuple[StateFolder, list[str]]]:
    from headwater.pipelines.deployment.state_folder import StateFolder

    path = _path(state)
    return [(StateFolder(path, name), []) for name in StateFolder.pipelines(path)]


# -- what is known -------------------------------------------------------------------------------------------------


@contextmanager
def _broker(bootstrap_servers: str | None) -> Iterator[ClusterClient | None]:
    """A client; None, with a line that says so, where no broker answers."""
    from headwater.cli.administration import cluster_client

    try:
        with cluster_client("pipeline status", bootstrap_servers) as cluster:
            cluster.any_connection()
            yield cluster
            return
    except CliError as error:
        if error.exit_code != EXIT_FAILED:
            raise
        note(f"the lag is not known: {error}")
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


def log_ends(cluster: ClusterClient, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    """Where topics end; those that are gone are left out."""
    from headwater.logtier.client.cluster import LATEST
    from headwater.logtier.client.errors import UnknownTopicError

    wanted: dict[tuple[str, int], int] = {}
    for topic in topics:
        try:
            wanted |= {(topic, partition): LATEST for partition in cluster.partitions(topic)}
        except UnknownTopicError:
            continue
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in (cluster.list_offsets(wanted) if wanted else {}).items():
        found.setdefault(topic, {})[partition] = offset
    return found


def group_offsets(cluster: ClusterClient, group: str) -> dict[str, dict[int, int]]:
    """What a consumer group has committed, by topic."""
    from headwater.logtier.client.group_offsets import committed_group_offsets

    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in committed_group_offsets(cluster, [group])[group].items():
        found.setdefault(topic, {})[partition] = offset
    return found


def describe(pipeline: str, process: int | None, reports: Iterable[StageReport]) -> str:
    """A pipeline for people."""
    alive = "does not run" if process is None else f"runs (process {process or 'unknown'})"
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
            lines.append(f"{each.stage}: micro-batch {each.planned} was begun, and is run again by the next run\n")
        if each.starts_at is not None:
            lines.append(f"{each.stage}: the next run starts at {json.dumps(each.starts_at)}\n")
        if each.error is not None:
            lines.append(f"{each.stage}: failed at {each.error_at}: {each.error}\n")
    return "".join(lines)
