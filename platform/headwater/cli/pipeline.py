"""`headwater pipeline`: validate and run pipelines written in YAML."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from headwater.cli import (
    pipeline_graph,
    pipeline_init,
    pipeline_plan,
    pipeline_preview,
    pipeline_replay,
    pipeline_status,
    pipeline_tests,
)
from headwater.cli.errors import EXIT_FAILED, CliError
from headwater.cli.options import client_options, client_security, command_config, key_values, servers, settings
from headwater.cli.output import note
from headwater.cli.run_display import summary
from headwater.cli.run_watching import Watching, watching, watching_options

if TYPE_CHECKING:
    from headwater.pipelines.definition import Loaded
    from headwater.pipelines.definition.plan import TopicPlan
    from headwater.pipelines.engine.runner import Runner
    from headwater.pipelines.errors import PipelineError
    from headwater.pipelines.monitoring.progress import StageTotals

LOST_SECONDS = 1.0
"""After an unexpected error: how long to wait for the end of a JVM that may be ending."""

STATE_DEFAULT = os.path.join(".headwater", "state")

_set_option = click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Value of a variable ${NAME}; may be repeated."
)
_environment_option = click.option(
    "--env", "environment", default="", metavar="NAME", help="One of the pipeline's environments."
)


@click.group("pipeline", context_settings={"help_option_names": ["-h", "--help"]})
def app() -> None:
    """Validate and run pipelines written in YAML."""


app.add_command(pipeline_tests.test)
app.add_command(pipeline_graph.graph)
app.add_command(pipeline_preview.preview)
app.add_command(pipeline_init.init)
app.add_command(pipeline_plan.plan)
app.add_command(pipeline_status.status)
app.add_command(pipeline_status.stop)
app.add_command(pipeline_replay.replay)


@app.command()
@click.argument("file", type=click.Path())
@_set_option
@_environment_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def validate(file: str, assignments: tuple[str, ...], environment: str, output: str) -> None:
    """Check FILE, without starting Spark or asking a broker; `plan` says what a run would do."""
    loaded = load(file, assignments, environment=environment)
    pipeline = loaded.pipeline
    if output == "json":
        import json

        found = {
            "pipeline": pipeline.pipeline,
            "file": file,
            "environment": environment,
            "stages": [stage.name for stage in pipeline.stages],
            "topics": list(pipeline.topics),
            "tables": list(pipeline.tables),
            "tests": [test.name for test in pipeline.tests],
            "warnings": [str(warning) for warning in loaded.warnings],
        }
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        stages = ", ".join(stage.name for stage in pipeline.stages)
        sys.stdout.write(f"{file} is a correct pipeline: {pipeline.pipeline}, with the stages {stages}\n")


@app.command()
@click.option("-o", "--output", "path", type=click.Path(dir_okay=False), help="Write it to this file.")
def schema(path: str | None) -> None:
    """Print the JSON Schema of pipeline files, for editors.

    With the YAML language server, begin a pipeline with `# yaml-language-server: $schema=pipeline.schema.json`.
    """
    import json

    from headwater.pipelines.definition.editor_schema import editor_schema

    text = json.dumps(editor_schema(), indent=2, ensure_ascii=False) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CliError("schema", f"cannot write {path}: {error.strerror}") from None


@app.command()
@click.argument("file", type=click.Path())
@_set_option
@_environment_option
@client_options
@click.option("--state", default=STATE_DEFAULT, show_default=True, help="Folder of checkpoints and of the lock.")
@click.option(
    "--once/--continuous",
    "available_now",
    default=True,
    show_default=True,
    help="Process what there is and end, stage after stage; or run all stages until Ctrl-C.",
)
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Run this stage only; may be repeated.")
@click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
@click.option(
    "--reset",
    multiple=True,
    metavar="STAGE",
    help="Let this stage start anew where the file says; its checkpoint is moved away, data stays. May be repeated.",
)
@click.option("--fail-fast", is_flag=True, help="End a continuous run when one stage is given up.")
@watching_options
def run(
    file: str,
    assignments: tuple[str, ...],
    environment: str,
    bootstrap_servers: str | None,
    state: str,
    available_now: bool,
    stages: tuple[str, ...],
    confs: tuple[str, ...],
    reset: tuple[str, ...],
    fail_fast: bool,
    **watched: Any,
) -> None:
    """Run the pipeline in FILE.

    What is cut off by a crash or a stop goes on with the next run. Topics and Delta tables have each record once; who
    reads the topics needs isolation.level=read_committed.
    """
    from headwater.api.topic_admin import TopicAdmin
    from headwater.pipelines.datasource.brokers import connection_options
    from headwater.pipelines.engine.runner import Runner, RunOptions
    from headwater.pipelines.errors import PipelineFailed
    from headwater.pipelines.spark.session import close_session

    where = servers(bootstrap_servers)
    require_java()
    with told():
        admin = TopicAdmin(where, security=client_security())
        existing = frozenset(topic.name for topic in admin.list_topics())
        loaded = load(file, assignments, existing, environment)
        spark_conf = key_values(confs, "--conf")
        options = RunOptions(
            where, state, available_now, stages, spark_conf, settings().spark_master, fail_fast, reset,
            command_config(),
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
        note("stopped; the next run goes on from here")


def summarise(stages: Iterable[StageTotals], watch: Watching) -> None:
    """Say what the stages of a run that has ended did."""
    for totals in () if watch.quiet else stages:
        note(summary(totals))


def load(
    file: str, assignments: tuple[str, ...], existing: frozenset[str] = frozenset(), environment: str = ""
) -> Loaded:
    """Read a pipeline; its warnings go to stderr, its problems end the command."""
    from headwater.pipelines.errors import PipelineError
    from headwater.pipelines.validation.pipeline_file import load as load_file

    try:
        loaded = load_file(file, key_values(assignments, "--set"), existing, environment)
    except PipelineError as error:
        user_error(error)
    for warning in loaded.warnings:
        note(f"warning: {warning}")
    return loaded


def require_java() -> None:
    """End the command where Spark could not start; its own words for that are of no help."""
    from headwater.cli.checks import check_java

    check = check_java()
    if not check.is_ok:
        raise CliError("Java", check.found, check.fix, exit_code=EXIT_FAILED)


def user_error(error: PipelineError) -> NoReturn:
    """Print every problem, one a line, and end with exit code 2."""
    for problem in error.problems[:-1]:
        note(str(problem))
    raise CliError("", str(error.problems[-1])) from None


@contextmanager
def told() -> Iterator[None]:
    """Turn what pipelines raise into lines and an exit code."""
    from headwater.pipelines.errors import PipelineBusy, PipelineError, PipelineFailed
    from headwater.pipelines.spark.session import SessionError, lost_jvm

    try:
        yield
    except PipelineError as error:
        user_error(error)
    except (PipelineBusy, PipelineFailed, SessionError) as error:
        raise CliError("", str(error), exit_code=EXIT_FAILED) from None
    except Exception:
        # Calls into a JVM that has ended fail in many ways, none of which names the cause.
        lost = lost_jvm(LOST_SECONDS) if "py4j" in sys.modules else None
        if lost is None:
            raise
        raise CliError("", lost, exit_code=EXIT_FAILED) from None


def topics_creator(admin: Any) -> Callable[[Sequence[TopicPlan]], None]:
    """What a runner calls to create the topics it needs; those that exist are left as they are."""
    from headwater.api.topic_model import ErrorCode, TopicAdminError, TopicRequest

    def ensure(topics: Sequence[TopicPlan]) -> None:
        existing = {topic.name: topic for topic in admin.list_topics()}
        for topic in topics:
            if topic.name in existing:
                count = existing[topic.name].partitions_count
                if topic.partitions is not None and count != topic.partitions:
                    wanted = f"the pipeline says {topic.partitions}"
                    note(f"topic {topic.name}: has {count} partitions, {wanted}; left as it is")
                continue
            try:
                admin.create_topic(
                    TopicRequest(topic.name, partitions_count=topic.partitions, configs=dict(topic.configs) or None)
                )
            except TopicAdminError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another run was faster
                    raise

    return ensure


def run_until_signal(runner: Runner, on_session: Callable[[], None] = lambda: None) -> Any:
    """Run; SIGINT and SIGTERM ask for a stop, a second SIGINT cuts it short. `on_session` hears that Spark is up."""

    def on_signal(number: int, frame: Any) -> None:  # noqa: ARG001 - the signature of a handler
        runner.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not by sys.stderr, in whose writing the signal may have come.
        os.write(2, b"stopping as soon as the present batch has ended; Ctrl-C cuts it short\n")

    def install() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)

    def session_is_up(spark: Any) -> None:  # noqa: ARG001 - the signature of the runner's callback
        install()  # Spark has set handlers of its own
        on_session()

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    install()
    try:
        return runner.run(session_is_up)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
