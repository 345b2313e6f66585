"""`headwater zookeeper`: one ZooKeeper server for brokers of this machine, alone or as a child of `headwater up`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from headwater.child import ParentLink
from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.cli.shell.options import child_options, host_option, port_option, settings
from headwater.zookeeper_server import ZooKeeperError, ZooKeeperPlace, ZooKeeperProcess, free_port

if TYPE_CHECKING:
    from types import FrameType

#: ZooKeeper's own default.
DEFAULT_PORT = 2181


@click.command()
@click.option(
    "--data", "data_dir", type=click.Path(), metavar="DIR", help="Data directory.  [default: headwater-data/zookeeper]"
)
@port_option("--port", "Port to listen on; 0 picks a free one.  [default: 2181]")
@host_option
@click.option(
    "--jaas",
    type=click.Path(),
    metavar="FILE",
    help="JAAS file with the logins (DIGEST-MD5) of its section Server; sessions without a login are refused.",
)
@child_options
def zookeeper(
    data_dir: str | None,
    port: int | None,
    host: str | None,
    jaas: str | None,
    ready_fd: int | None,
    parent_fd: int | None,
) -> None:
    """Run a ZooKeeper server in the foreground, from the jars that come with pyspark.

    It is one server for brokers of this machine, such as `headwater up --brokers 3` starts. Brokers of several machines
    use an ensemble of their own (zookeeper.connect). Without --jaas everybody who reaches the port may read and write.
    SIGINT and SIGTERM end it.
    """
    link = ParentLink(ready_fd, parent_fd)
    place = ZooKeeperPlace(
        os.path.abspath(data_dir if data_dir is not None else os.path.join(settings().data_dir, "zookeeper")),
        host if host is not None else settings().host,
        DEFAULT_PORT if port is None else port,
        os.path.abspath(jaas) if jaas is not None else "",
    )
    if place.port == 0:
        place = dataclasses.replace(place, port=free_port(place.host))
    if place.jaas and not os.path.isfile(place.jaas):
        _fail(link, f"{place.jaas} is not there; name a file with --jaas", EXIT_USER)
    try:
        exit_code, is_asked = _run(place, link)
    except ZooKeeperError as error:
        _fail(link, str(error), EXIT_FAILED)
    if not is_asked:
        raise CliError("zookeeper", f"the server ended with exit code {exit_code}", exit_code=EXIT_FAILED)


def _fail(link: ParentLink, message: str, exit_code: int) -> NoReturn:
    if link.supervised:
        link.report_error(f"zookeeper: {message}", exit_code)
        raise SystemExit(exit_code)
    raise CliError("zookeeper", message, exit_code=exit_code)


def _run(place: ZooKeeperPlace, link: ParentLink) -> tuple[int, bool]:
    """Run the server to its end; return its exit code, and whether a signal asked for it."""
    server = ZooKeeperProcess(place)
    is_asked = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        server.terminate()

    signal.signal(signal.SIGTERM, end)
    if not link.supervised:
        signal.signal(signal.SIGINT, end)
    server.start()
    try:
        server.wait_ready(settings().start_timeout_ms / 1000)
        link.report_ready({"host": place.host, "port": place.port})
        link.watch()
        if not link.supervised:
            sys.stdout.write(f"ZooKeeper is ready: {place.host}:{place.port}\n")
            sys.stdout.flush()
        return server.wait(), is_asked
    except ZooKeeperError:
        if is_asked:
            return 0, True
        raise
    finally:
        server.terminate()
        server.wait()
