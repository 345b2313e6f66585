"""`headwater pipeline plan`: the actions of a run, and the effect of a changed file on the deployed stages."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.pipeline.checkpoint_place import file_options, known_or_wanted_place, reported_file_errors
from headwater.cli.pipeline.options import checkpoints_option, environment_option, set_option

if TYPE_CHECKING:
    from headwater.pipelines.definition.plan import Plan
    from headwater.pipelines.deployment.changes import Change
    from headwater.pipelines.deployment.deployment import Deployment


@click.command("plan")
@click.argument("file", type=click.Path())
@set_option
@environment_option
@click.option("--state", metavar="FOLDER", help="State folder of the deployed pipeline.  [default: .headwater/state]")
@checkpoints_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def plan(
    file: str,
    assignments: tuple[str, ...],
    environment: str,
    state: str | None,
    checkpoints: str | None,
    output: str,
) -> None:
    """Print what a run of FILE would do, without Spark and without a broker.

    Each change of a stage that has run before is reported as safe (the stage continues), new state (it starts where the
    file says) or needs reset (its checkpoint is incompatible; `run` refuses the change without `--reset`).
    """
    from headwater.cli.pipeline.loading import load
    from headwater.cli.pipeline.options import STATE_DEFAULT
    from headwater.pipelines.definition.plan import make_plan
    from headwater.pipelines.deployment.deployment import Deployment

    loaded = load(file, assignments, environment=environment)
    made = make_plan(loaded)
    pipeline = loaded.pipeline
    with reported_file_errors("pipeline plan"):
        folder = state or STATE_DEFAULT
        place = known_or_wanted_place(checkpoints, pipeline.checkpoints, folder, pipeline.pipeline)
        deployment = Deployment(loaded, place or folder, options=file_options(loaded))
        _print(made, deployment, output)


def _print(made: Plan, deployment: Deployment, output: str) -> None:
    loaded = deployment.loaded
    changes = deployment.changes()
    if output == "json":
        found: dict[str, Any] = made.as_dict()
        found["deployed"] = _deployed(deployment, made)
        found["changes"] = [
            {"stage": each.stage, "effect": each.effect.value, "what": each.what, "reason": each.reason}
            for each in changes
        ]
        found["warnings"] = [str(warning) for warning in loaded.warnings]
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(describe(made) + describe_changes(made, deployment, changes))


def _deployed(deployment: Deployment, made: Plan) -> dict[str, dict[str, int | None]]:
    """Return the progress of each stage: the epoch of its checkpoint, and its last completed micro-batch."""
    found: dict[str, dict[str, int | None]] = {}
    for stage in made.stages:
        folder = deployment.stage(stage.name)
        if folder.has_checkpoint:
            found[stage.name] = {"epoch": folder.epoch, "batch": folder.progress().done}
    return found


def describe_changes(made: Plan, deployment: Deployment, changes: Sequence[Change]) -> str:
    """Format the changes for people, stage by stage; empty for a pipeline that has never run."""
    deployed = _deployed(deployment, made)
    if not deployed and not any(change.what == "stage removed" for change in changes):
        return ""
    lines = ["changes since it was deployed"]
    for name in dict.fromkeys((*(stage.name for stage in made.stages), *(change.stage for change in changes))):
        own = [change for change in changes if change.stage == name]
        if not own:
            batch = deployed[name]["batch"]
            where = "with its first micro-batch" if batch is None else f"after micro-batch {batch}"
            lines.append(f"  {name}: no changes; it continues {where}")
        lines += [f"  {name}: {change}" for change in own]
    return "\n".join(lines) + "\n"


def describe(plan: Plan) -> str:
    """Format the plan for people."""
    environment = f", environment {plan.environment}" if plan.environment else ""
    lines = [f"pipeline {plan.pipeline} ({plan.file}{environment})", "topics"]
    for topic in plan.topics:
        partitions = "must exist" if topic.partitions is None else f"{topic.partitions} partitions"
        configs = "".join(f", {key}={value}" for key, value in topic.configs.items())
        lines.append(f"  {topic.name}: {partitions}, {topic.value}, columns: {topic.columns}{configs}")
    for number, stage in enumerate(plan.stages, 1):
        after = f" (after {', '.join(stage.after)})" if stage.after else ""
        lines.append(f"stage {number}: {stage.name}{after}")
        for source in stage.reads:
            most = "the whole backlog at once" if source.limit is None else f"at most {source.limit} a batch"
            named = f" as {source.name}" if source.name != source.target else ""
            lines.append(f"  reads    {source.kind} {source.target}{named} from {source.start}, {most}")
            if source.watermark:
                lines.append(f"           watermark {source.watermark}")
        lines.append(f"  through  {stage.transform}" + (f" with {', '.join(stage.tables)}" if stage.tables else ""))
        lines += [f"  expects  {expectation}" for expectation in stage.expectations]
        for sink in stage.writes:
            key = f", key {sink.key}" if sink.key else ""
            by = f", by {', '.join(sink.partition_by)}" if sink.partition_by else ""
            how = "" if sink.how == "append" else f", {sink.how}"
            when = "" if sink.when is None else f", when {sink.when}"
            lines.append(f"  writes   {sink.kind} {sink.target}{key}{by}{how}{when}, {sink.guarantee}")
        lines.append(f"  refuses  to {', '.join(stage.dead_letters)}")
        lines.append(f"  keeps    {stage.checkpoint}")
    lines += [f"note: {text}" for text in plan.notes]
    return "\n".join(lines) + "\n"
