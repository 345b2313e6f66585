"""Options that observe a run of a pipeline, and the listeners they configure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.cli.pipeline.run_display import RunDisplay, StateLines, is_terminal, no_report, report
from headwater.cli.shell.errors import CliError
from headwater.cli.shell.metrics_port import metrics_options, open_metrics
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.progress import StageProgress, StageTotals
    from headwater.pipelines.monitoring.watching import RunListener

F = TypeVar("F", bound=Callable[..., Any])

LINEAGE_KEY = "OPENLINEAGE_API_KEY"


@dataclass(frozen=True, slots=True)
class Watching:
    """Arguments of a runner: listeners, and callbacks for micro-batches, events and phases of the start."""

    listeners: tuple[RunListener, ...]
    on_progress: Callable[[StageProgress, StageTotals], None]
    on_event: Callable[[str], None]
    on_phase: Callable[[str], None]
    quiet: bool


def watching_options(function: F) -> F:
    """Add the options; the function receives them as keyword arguments (see `watching`)."""
    for option in reversed(
        (
            metrics_options,
            click.option(
                "--status/--no-status",
                "status",
                default=True,
                show_default=True,
                help="Publish the status of each stage to the topic __headwater_status, which the REST API reads.",
            ),
            click.option(
                "--openlineage",
                metavar="URL|FILE",
                help="Send OpenLineage events to this URL, or append them to this file.",
            ),
            click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only."),
        )
    ):
        function = option(function)
    return function


@contextmanager
def watching(client: Mapping[str, str], given: Mapping[str, Any]) -> Iterator[Watching]:
    """Open the listeners that the options request. `client` holds the data source's connection options.

    Ports in use and invalid receivers are reported before the run starts.
    """
    from headwater import __version__
    from headwater.pipelines.datasource.options import WriteOptions
    from headwater.pipelines.monitoring.lag_sampler import LagSampler
    from headwater.pipelines.monitoring.metrics import MetricsEndpoint
    from headwater.pipelines.monitoring.status_topic import StatusTopic

    config = WriteOptions.parse(client).client
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_Notes()])
    listeners: list[RunListener] = [LagSampler(config)]
    if given["status"]:
        listeners.append(StatusTopic(config, {"headwater": __version__}))
    if given["openlineage"]:
        listeners.append(_lineage(given["openlineage"]))
    endpoint: MetricsEndpoint | None = None
    if given["metrics_port"] is not None:
        endpoint = MetricsEndpoint()
        open_metrics(endpoint, given["metrics_host"], given["metrics_port"])
        listeners.append(endpoint)
    quiet = bool(given["quiet"])
    on_terminal = is_terminal() and not quiet
    if on_terminal:
        listeners.append(RunDisplay())
    elif not quiet:
        listeners.append(StateLines())
    on_progress = no_report if quiet or on_terminal else report
    try:
        yield Watching(tuple(listeners), on_progress, note, _unsaid if quiet else note, quiet)
    finally:
        if endpoint is not None:
            endpoint.close()


def _unsaid(_line: str) -> None:
    return


def _lineage(target: str) -> RunListener:
    import os

    from headwater.pipelines.monitoring.lineage_emitter import LineageEmitter, appending, posting

    try:
        if "://" in target:
            return LineageEmitter(posting(target, os.environ.get(LINEAGE_KEY, "")))
        return LineageEmitter(appending(target))
    except ValueError as error:
        raise CliError("--openlineage", str(error)) from None
    except OSError as error:
        raise CliError("--openlineage", f"{target}: {error.strerror or error}") from None


class _Notes(logging.Handler):
    """Prints warnings logged by listeners as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"warning: {record.getMessage()}")
