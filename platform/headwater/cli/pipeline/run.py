"""`headwater pipeline run`: runs a pipeline's stages, once or continuously."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.pipeline.checkpoint_place import wanted_place
from headwater.cli.pipeline.loading import load
from headwater.cli.pipeline.options import STATE_DEFAULT, checkpoints_option, environment_option, set_option
from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.pipeline.run_display import summary
from headwater.cli.pipeline.run_watching import Watching, watching, watching_options
from headwater.cli.pipeline.stopping import run_until_signal
from headwater.cli.pipeline.topic_creation import topics_creator
from headwater.cli.shell.checks import require_java
from headwater.cli.shell.options import client_options, client_security, command_config, key_values, servers, settings
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.progress import StageTotals


@click.command("run")
@click.argument("file", type=click.Path())
@set_option
@environment_option
@client_options
@click.option("--state", default=STATE_DEFAULT, show_default=True, help="State folder: checkpoints and the lock.")
@checkpoints_option
@click.option("--move", is_flag=True, help="Take the state along from where the last run kept it.")
@click.option(
    "--once/--continuous",
    "available_now",
    default=True,
    show_default=True,
    help="Process the available records stage by stage and exit, or run all stages until Ctrl-C.",
)
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Run this stage only; may be repeated.")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
@click.option(
    "--reset",
    multiple=True,
    metavar="STAGE",
    help="Restart this stage where the file says; its checkpoint is moved aside, its data remain. May be repeated.",
)
@click.option("--fail-fast", is_flag=True, help="End a continuous run when a stage is no longer restarted.")
@watching_options
def run(
    file: str,
    assignments: tuple[str, ...],
    environment: str,
    bootstrap_servers: str | None,
    state: str,
    checkpoints: str | None,
    move: bool,
    available_now: bool,
    stages: tuple[str, ...],
    confs: tuple[str, ...],
    reset: tuple[str, ...],
    fail_fast: bool,
    **watched: Any,
) -> None:
    """Run the pipeline in FILE.

    After a crash or a stop, the next run continues where this one ended. Topics and Delta tables are written exactly
    once; consumers of the topics need isolation.level=read_committed.
    """
    from headwater.api.topic_admin import TopicAdmin
    from headwater.pipelines.datasource.brokers import connection_options
    from headwater.pipelines.engine.runner import Runner, RunOptions
    from headwater.pipelines.errors import PipelineFailed
    from headwater.pipelines.spark.session import close_session

    where = servers(bootstrap_servers)
    require_java()
    with reported_errors():
        admin = TopicAdmin(where, security=client_security())
        existing = frozenset(topic.name for topic in admin.list_topics())
        loaded = load(file, assignments, existing, environment)
        spark_conf = key_values(confs, "--conf")
        options = RunOptions(
            where, state, available_now, stages, spark_conf, settings().spark_master, fail_fast, reset,
            command_config(), wanted_place(checkpoints, loaded.pipeline.checkpoints), move,
        )  # fmt: skip
        with watching(connection_options(options.brokers), watched) as watch:
            runner = Runner(
                loaded,
                options,
                topics_creator(admin),
                watch.on_progress,
                listeners=watch.listeners,
                on_event=watch.on_event,
                on_phase=watch.on_phase,
            )
            try:
                result = run_until_signal(runner)
            except PipelineFailed:
                summarise(runner.totals.values(), watch)
                raise
            finally:
                close_session()
    summarise(result.totals.values(), watch)
    if result.stopped and not watch.quiet:
        note("stopped; the next run continues from here")


def summarise(stages: Iterable[StageTotals], watch: Watching) -> None:
    """Print a summary of the stages after a run."""
    for totals in () if watch.quiet else stages:
        note(summary(totals))
