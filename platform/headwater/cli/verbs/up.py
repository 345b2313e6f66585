"""`headwater up`: runs a node in the foreground."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import click

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import host_option, port_option, settings
from headwater.services import LocalNode, NodeStartError

if TYPE_CHECKING:
    from types import FrameType


def _has_listeners(broker_config: str) -> bool:
    """Whether the broker's properties define listeners, which replace the settings' host and port."""
    if not broker_config:
        return False
    from headwater.cli.verbs.broker import read_properties

    return "listeners" in read_properties(broker_config)


@click.command()
@click.option("--data", "data_dir", type=click.Path(), metavar="DIR", help="Data directory.  [default: headwater-data]")
@port_option("--kafka-port", "Port of the broker; 0 picks a free one.  [default: 9092]")
@port_option("--http-port", "Port of the REST API; 0 picks a free one.  [default: 8082]")
@port_option(
    "--metrics-port", "Port of the broker's Prometheus metrics.  [default: 9404; a free port if --kafka-port is 0]"
)
@host_option
def up(
    data_dir: str | None, kafka_port: int | None, http_port: int | None, metrics_port: int | None, host: str | None
) -> None:
    """Run a node in the foreground: a broker and the REST API, each in its own process.

    When both are ready, their addresses are printed to stdout in one line. A process that exits is restarted. SIGINT
    (Ctrl-C) and SIGTERM shut the node down cleanly.
    """
    chosen = settings()
    node = LocalNode(
        data_dir if data_dir is not None else chosen.data_dir,
        kafka_port if kafka_port is not None else chosen.kafka_port,
        http_port if http_port is not None else chosen.http_port,
        host if host is not None else chosen.host,
        # Who lets the node choose its ports runs several, and they cannot share one.
        metrics_port=metrics_port if metrics_port is not None else 0 if kafka_port == 0 else chosen.metrics_port,
        settings=chosen,
        own_listeners=kafka_port is None and host is None and _has_listeners(chosen.broker_config),
    )

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def end(_number: int, _frame: FrameType | None) -> None:
        node.end_wait()

    # While starting, a signal interrupts the wait for the children; `start` then leaves nothing behind.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        node.start()
    except NodeStartError as error:
        raise CliError("", str(error), exit_code=EXIT_FAILED) from None
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    try:
        sys.stdout.write(
            f"Headwater is ready: kafka {node.bootstrap_servers}, http {node.http_url}, metrics {node.metrics_url}\n"
        )
        sys.stdout.flush()
        alive = node.wait()
    finally:
        node.stop()
    if not alive:
        raise CliError(
            "up", "a process of the node was given up", "its last lines above say why", exit_code=EXIT_FAILED
        )
