"""`headwater pipeline stop`: stops a run, and waits for its end."""

from __future__ import annotations

import time
from typing import Final

import click

from headwater.cli.pipeline.checkpoint_place import reported_file_errors, running_stage
from headwater.cli.pipeline.named_folder import named_pipeline
from headwater.cli.pipeline.options import checkpoints_option, state_option
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import client_options
from headwater.cli.shell.output import note

STOP_TIMEOUT_S: Final = 120
"""A run completes its current micro-batches first, and cancels those that take longer than a minute."""

_POLL_S: Final = 0.1


@click.command("stop")
@click.argument("pipeline", metavar="FILE|NAME")
@state_option
@checkpoints_option
@client_options
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(0),
    default=STOP_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time to wait for the end of the run.",
)
def stop(
    pipeline: str, state: str | None, checkpoints: str | None, bootstrap_servers: str | None, timeout_s: int
) -> None:
    """Stop the run of a pipeline, and wait for its end: each stage finishes its current micro-batch.

    Only the process that holds the lock of the pipeline's state folder is stopped. The next run continues from there.
    Of a pipeline with checkpoints at a URL, the machine is named on which it runs.
    """
    from headwater.pipelines.deployment.run_lock import UNKNOWN_PROCESS, ask_to_stop, holder

    with reported_file_errors("pipeline stop"):
        named = named_pipeline(pipeline, state, checkpoints)
    folder = named.local
    process = holder(folder.path)
    if process is None and not named.is_here:
        _refuse_if_elsewhere(folder.pipeline, bootstrap_servers)
    if process is None:
        note(f"{folder.pipeline} is not running")
        return
    if process == UNKNOWN_PROCESS:
        raise CliError(
            "pipeline stop",
            f"{folder.pipeline} is running, but its process is unknown",
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


def _refuse_if_elsewhere(pipeline: str, bootstrap_servers: str | None) -> None:
    """Raise CliError with the machine if the pipeline runs on another one, as the status topic has it."""
    found = running_stage(pipeline, bootstrap_servers)
    if found is not None:
        raise CliError(
            "pipeline stop",
            f"{pipeline} runs on {found.host} (process {found.process})",
            f"stop it there: headwater pipeline stop {pipeline}",
            exit_code=EXIT_FAILED,
        )
