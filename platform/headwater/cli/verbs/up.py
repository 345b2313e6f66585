"""`headwater up`: runs a node in the foreground."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import click

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import host_option, port_option, settings
from headwater.cli.sql.foreign_addresses import CONNECT, JDBC, foreign_addresses, foreign_options
from headwater.cluster_folder import BROKERS_MAX, ClusterFolderError, check_folder, stored_ids
from headwater.local_cluster import LocalCluster
from headwater.services import LocalNode, NodeStartError, join_address
from headwater.settings import Settings

if TYPE_CHECKING:
    from types import FrameType

#: Properties that differ between the brokers of one machine.
OF_ONE_BROKER = ("listeners", "advertised.listeners", "node.id", "broker.id", "log.dirs", "log.dir")


def _own_properties(broker_config: str) -> dict[str, object]:
    """Return the properties of the user's file; empty without one."""
    if not broker_config:
        return {}
    from headwater.cli.shell.broker_properties import read_properties

    return read_properties(broker_config)


@click.command()
@click.option("--data", "data_dir", type=click.Path(), metavar="DIR", help="Data directory.  [default: headwater-data]")
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    default=1,
    metavar="N",
    help="Number of brokers: a broker uses one core, so that a machine has use for up to one a core. Several replicate "
    "topics and coordinate through a ZooKeeper of their own.  [default: 1]",
)
@port_option("--kafka-port", "Port of the (first) broker; 0 picks a free one.  [default: 9092]")
@port_option("--http-port", "Port of the REST API; 0 picks a free one.  [default: 8082]")
@port_option(
    "--metrics-port", "Port of the broker's Prometheus metrics.  [default: 9404; a free port if --kafka-port is 0]"
)
@host_option
@click.option(
    "--archive",
    "archive_where",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[FILE|ROOT]",
    help="Keep archives, as `headwater archive run` does: those that FILE declares, and those that topic configs "
    "enable, whose tables are below ROOT.",
)
@click.option(
    "--sql",
    "sql_file",
    is_flag=False,
    flag_value="",
    default=None,
    type=click.Path(),
    metavar="[FILE]",
    help="Answer queries on the REST API (POST /headwater/v1/sql); FILE is a pipeline, by which topics get columns.",
)
@foreign_options
def up(
    data_dir: str | None,
    brokers: int,
    kafka_port: int | None,
    http_port: int | None,
    metrics_port: int | None,
    host: str | None,
    archive_where: str | None,
    sql_file: str | None,
    jdbc: str | None,
    connect: str | None,
) -> None:
    """Run a node in the foreground: a broker and the REST API, each in its own process.

    When both are ready, their addresses are printed to stdout in one line. A process that exits is restarted. SIGINT
    (Ctrl-C) and SIGTERM shut the node down cleanly.

    With --brokers 3 the node is a cluster: ZooKeeper and three brokers on ports P to P+2, which keep three copies of
    each topic. Their data is in DIR/zookeeper and DIR/broker-1 to DIR/broker-3, their properties in DIR/broker-1.yaml
    and so on.

    All of them are on this machine, and are lost with it. On several machines, start each broker with `headwater
    broker`, up to one a core, and name its machine in broker.rack: the copies of a partition are then on different
    machines.
    """
    node = _node(settings(), data_dir, brokers, kafka_port, http_port, metrics_port, host)
    if archive_where is not None:
        node.add_archive(archive_where)
    foreign = foreign_addresses("up", {JDBC: jdbc, CONNECT: connect})
    if sql_file is not None:
        node.add_sql(sql_file, archive_where, {name: join_address(*each) for name, each in foreign.items()})
    elif foreign:
        raise CliError("up", f"--{next(iter(foreign))} is served by the SQL service: give --sql, too")

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
        foreign_words = "".join(f", {name} {address}" for name, address in node.sql_addresses.items())
        sys.stdout.write(
            f"Headwater is ready: kafka {node.bootstrap_servers}, http {node.http_url}, metrics {node.metrics_url}"
            f"{foreign_words}\n"
        )
        sys.stdout.flush()
        alive = node.wait()
    finally:
        node.stop()
    if not alive:
        raise CliError(
            "up", "a process of the node was given up", "its last lines above say why", exit_code=EXIT_FAILED
        )


def _node(
    chosen: Settings,
    data_dir: str | None,
    brokers: int,
    kafka_port: int | None,
    http_port: int | None,
    metrics_port: int | None,
    host: str | None,
) -> LocalNode | LocalCluster:
    """Prepare what `up` runs; the folder must be for as many brokers."""
    folder = data_dir if data_dir is not None else chosen.data_dir
    own = _own_properties(chosen.broker_config)
    first_port = kafka_port if kafka_port is not None else chosen.kafka_port
    http = http_port if http_port is not None else chosen.http_port
    address = host if host is not None else chosen.host
    # Who lets the node choose its ports runs several, and they cannot share one.
    metrics = metrics_port if metrics_port is not None else 0 if kafka_port == 0 else chosen.metrics_port
    if brokers > 1 and (fixed := [name for name in OF_ONE_BROKER if name in own]):
        raise CliError(
            "up",
            f"{chosen.broker_config} sets {fixed[0]}, which each of {brokers} brokers has for itself",
            "leave it out, or start each broker with `headwater broker --config FILE`",
        )
    try:
        check_folder(folder, brokers)
    except ClusterFolderError as error:
        raise CliError("", str(error), exit_code=EXIT_FAILED) from None
    if brokers > 1:
        from headwater.cluster_ports import ClusterPortError

        if "authorizer.class.name" in own and stored_ids(folder) is None:
            from headwater.cli.shell.cluster_rights import check_rights

            check_rights("up", chosen.broker_config)
        try:
            return LocalCluster(
                folder,
                brokers,
                first_port,
                http,
                address,
                metrics_port=metrics,
                settings=chosen,
                own_properties=own,
            )
        except ClusterPortError as error:
            raise CliError("up", str(error)) from None
    return LocalNode(
        folder,
        first_port,
        http,
        address,
        metrics_port=metrics,
        settings=chosen,
        own_listeners=kafka_port is None and host is None and "listeners" in own,
    )
