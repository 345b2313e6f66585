"""The options of a port with metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.output import note
from headwater.services import join_address, reachable_host

__all__ = ["metrics_options", "open_metrics"]

_F = TypeVar("_F", bound=Callable[..., Any])


class ServesMetrics(Protocol):
    """What serves metrics."""

    def open(self, host: str, port: int) -> int:
        """Bind the port and return it. Raises OSError."""


def metrics_options(function: _F) -> _F:
    """Add `--metrics-port` and `--metrics-host`; the function receives them as `metrics_port` and `metrics_host`."""
    port = click.option(
        "--metrics-port",
        type=click.IntRange(0, 65_535),
        metavar="PORT",
        help="Port of Prometheus metrics; 0 picks a free one.  [default: no metrics]",
    )
    host = click.option(
        "--metrics-host",
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="Address on which metrics are served.",
    )
    return port(host(function))


def open_metrics(endpoint: ServesMetrics, host: str, port: int) -> None:
    """Open the port, and print its URL. Raises CliError."""
    try:
        opened = endpoint.open(host, port)
    except OSError as error:
        where = join_address(host, port)
        raise CliError(
            "metrics",
            f"cannot listen on {where}: {error.strerror or error}",
            "choose another --metrics-port (0 picks a free one)",
            exit_code=EXIT_FAILED,
        ) from None
    note(f"metrics: http://{join_address(reachable_host(host), opened)}/metrics")
