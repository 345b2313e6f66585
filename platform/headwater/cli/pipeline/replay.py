"""`headwater pipeline replay`: restarts a stage from given offsets or from a timestamp."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from headwater.cli.pipeline.checkpoint_place import file_options, known_or_wanted_place
from headwater.cli.pipeline.options import checkpoints_option, environment_option, set_option
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options, command_config, servers
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClusterClient
    from headwater.pipelines.definition import Loaded, Stage
    from headwater.pipelines.deployment.replay import LogBounds, Origin, StageReplay
    from headwater.pipelines.deployment.state_folder import StateFolder

VERB = "pipeline replay"


@click.command("replay")
@click.argument("file", type=click.Path())
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="OFFSETS|TIMESTAMP",
    help='A timestamp (2026-01-01T00:00:00Z, @1767225600000), offsets ({"0": 17}, or {"TOPIC": {"0": 17}}; -2 is the '
    "earliest; other partitions keep their position), or earliest.",
)
@click.option(
    "--stage",
    "names",
    multiple=True,
    metavar="NAME",
    help="Replay this stage; may be repeated.  [default: stages that no other stage feeds]",
)
@set_option
@environment_option
@click.option("--state", metavar="FOLDER", help="State folder.  [default: .headwater/state]")
@checkpoints_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be done without doing it.")
@click.option("--run", "runs", is_flag=True, help="Run the stages now instead of waiting for the next run.")
@client_options
@click.pass_context
def replay(
    context: click.Context,
    file: str,
    origin: str,
    names: tuple[str, ...],
    assignments: tuple[str, ...],
    environment: str,
    state: str | None,
    checkpoints: str | None,
    yes: bool,
    dry_run: bool,
    runs: bool,
    bootstrap_servers: str | None,
) -> None:
    """Restart stages of FILE from given offsets or from a timestamp, with a new checkpoint.

    The old checkpoint is moved aside, never deleted, and the state of the stage is rebuilt. Topics and tables to which
    rows are appended then hold the replayed results twice; they are listed before anything changes. If the log no
    longer has the requested offsets, the replay is refused, and the Delta tables that hold the history are named.
    """
    from headwater.cli.pipeline.loading import load
    from headwater.cli.pipeline.options import STATE_DEFAULT
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.pipeline.run import run
    from headwater.cli.shell.administration import cluster_client
    from headwater.pipelines.datasource.brokers import brokers
    from headwater.pipelines.deployment.replay import default_stages, parse_origin
    from headwater.pipelines.deployment.run_lock import hold
    from headwater.pipelines.deployment.shared_lock import hold_shared
    from headwater.pipelines.deployment.state_folder import StateFolder

    try:
        begins = parse_origin(origin)
    except ValueError as error:
        raise CliError(VERB, str(error)) from None
    with cluster_client(VERB, bootstrap_servers) as cluster, reported_errors():
        loaded = load(file, assignments, frozenset(cluster.topics()), environment)
        pipeline = loaded.pipeline.pipeline
        local = StateFolder(state or STATE_DEFAULT, pipeline)
        place = known_or_wanted_place(checkpoints, loaded.pipeline.checkpoints, local.root, pipeline)
        folder = StateFolder(place, pipeline, file_options(loaded)) if place else local
        stages = _chosen(loaded, names or tuple(default_stages(loaded)))
        with hold(local.path), contextlib.ExitStack() as shared:
            if place:
                reached = brokers(servers(bootstrap_servers), command_config())
                shared.enter_context(hold_shared(reached, folder, f"replay of {pipeline}"))
            planned = {stage.name: _planned(cluster, loaded, folder, stage, begins) for stage in stages}
            _confirm(loaded, folder, stages, planned, yes=yes, dry_run=dry_run)
            if dry_run:
                return
            for name, found in planned.items():
                moved = folder.stage(name).set_aside(found.start)
                note(f"stage {name} starts anew" + (f"; its checkpoint was moved to {moved}" if moved else ""))
    if not runs:
        note(f"`headwater pipeline run {file}` continues from there")
        return
    context.invoke(
        run,
        file=file,
        assignments=assignments,
        environment=environment,
        bootstrap_servers=bootstrap_servers,
        state=state or STATE_DEFAULT,
        checkpoints=place,
        stages=tuple(planned),
    )


def _chosen(loaded: Loaded, names: Iterable[str]) -> list[Stage]:
    from headwater.pipelines.errors import nearest

    known = [stage.name for stage in loaded.pipeline.stages]
    for name in names:
        if name not in known:
            raise CliError(VERB, f"there is no stage '{name}'", nearest(name, known))
    return [loaded.pipeline.stage(name) for name in dict.fromkeys(names)]


def _planned(cluster: ClusterClient, loaded: Loaded, folder: StateFolder, stage: Stage, origin: Origin) -> StageReplay:
    """Return the start of a stage's replay. Raises CliError if the replay is impossible."""
    from headwater.cli.pipeline.log_offsets import group_offsets
    from headwater.pipelines.deployment.replay import furthest, histories, replay_of

    # A batch that was committed when a crash came is in the group's offsets, and not yet in the checkpoint's.
    group = group_offsets(cluster, f"{loaded.pipeline.pipeline}.{stage.name}")
    known = furthest(folder.stage(stage.name).progress().topics(), group)
    try:
        found = replay_of(stage, origin, _bounds(cluster, stage, origin), known)
    except ValueError as error:
        raise CliError(VERB, str(error)) from None
    if not found.gone:
        return found
    note(f"stage {stage.name}: the log no longer has these offsets")
    for each in found.gone:
        note(f"  {each}")
    topics = dict.fromkeys(each.topic for each in found.gone)
    tables = [table for topic in topics for table in histories(loaded, topic)]
    kept = "; the history is in " + ", ".join(tables) if tables else "; no Delta table of this pipeline has it either"
    raise CliError(
        VERB,
        f"{', '.join(topics)}: the log no longer has the requested offsets{kept}",
        "`--from earliest` replays what the log has",
        exit_code=EXIT_FAILED,
    )


def _bounds(cluster: ClusterClient, stage: Stage, origin: Origin) -> LogBounds:
    from headwater.logtier.client.cluster import EARLIEST, LATEST
    from headwater.pipelines.deployment.replay import LogBounds

    partitions = [(source.topic, p) for source in stage.topic_inputs for p in cluster.partitions(source.topic)]

    def asked(timestamp: int) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in cluster.list_offsets(dict.fromkeys(partitions, timestamp)).items():
            found.setdefault(topic, {})[partition] = offset
        return found

    return LogBounds(asked(EARLIEST), asked(LATEST), {} if origin.moment_ms is None else asked(origin.moment_ms))


def _confirm(
    loaded: Loaded,
    folder: StateFolder,
    stages: list[Stage],
    planned: dict[str, StageReplay],
    *,
    yes: bool,
    dry_run: bool,
) -> None:
    """Print the planned actions; require confirmation if the output will contain duplicates."""
    from headwater.pipelines.deployment.replay import written_twice

    twice = []
    for stage in stages:
        note(f"stage {stage.name} would start at {json.dumps(planned[stage.name].start)}")
        if folder.stage(stage.name).keeps_state:
            note("  its state is dropped and rebuilt from the records read from there on")
        if folder.stage(stage.name).has_checkpoint or folder.stage(stage.name).epoch > 1:
            twice += written_twice(loaded, stage)
        progress = folder.stage(stage.name).progress()
        if progress.planned != progress.done:
            batch = f"micro-batch {progress.planned}, which was begun and not ended: a run before would end it"
            twice.append(f"what tables have of {batch}")
    for each in twice:
        note(f"  written twice: {each}")
    if dry_run or yes or not twice:
        return
    if not sys.stdin.isatty():
        raise CliError(VERB, "results that exist would be written again", "give --yes to confirm")
    click.confirm("Replay?", abort=True, err=True)
