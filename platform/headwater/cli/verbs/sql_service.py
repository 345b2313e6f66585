"""`headwater sql-service`: queries for the REST API, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

import click

from headwater.child import ParentLink
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import child_options, client_options, key_values, servers, settings
from headwater.cli.shell.output import note
from headwater.cli.sql.foreign_addresses import CONNECT, JDBC, SERVER_NAMES, foreign_addresses, foreign_options
from headwater.cli.sql.relation_options import relation_options
from headwater.services import join_address

if TYPE_CHECKING:
    from headwater.api.sql_gateway import QueryEvent, SqlQuery
    from headwater.cli.sql.options import SqlOptions
    from headwater.cli.sql_service.connections import QueryWatch

SOCKET_PATH_BYTES_MAX: Final = 107  # of a Unix socket's address on Linux


@click.command("sql-service")
@client_options
@click.option("--socket", "path", required=True, metavar="PATH", help="Unix socket to listen on.")
@foreign_options
@relation_options
@child_options
def sql_service(
    bootstrap_servers: str | None,
    path: str,
    jdbc: str | None,
    connect: str | None,
    file: str | None,
    archive: str | None,
    assignments: tuple[str, ...],
    deltas: tuple[str, ...],
    registry: str | None,
    ready_fd: int | None,
    parent_fd: int | None,
) -> None:
    """Run queries over topics and Delta tables for the REST API.

    The API reaches the service by --sql-socket. Spark starts with the first query, and ends when there was none for
    sql_idle_ms. `headwater up --sql` runs both.

    Clients of JDBC, ODBC and Spark Connect need no password, run programs and read files as this user, and read topics
    with this service's rights: only this machine can reach their ports.
    """
    from headwater.cli.shell.checks import require_java
    from headwater.cli.shell.termination import raise_on_sigterm
    from headwater.cli.sql.options import SqlOptions

    link = ParentLink(ready_fd, parent_fd)
    raise_on_sigterm()
    try:
        require_java()
        tables = key_values(deltas, "--delta")
        addresses = foreign_addresses("sql-service", {JDBC: jdbc, CONNECT: connect})
        if link.supervised:
            # A supervisor tells the addresses as soon as there are some.
            told = link.receive()
            bootstrap_servers = str(told["bootstrap_servers"])
            registry = told.get("registry") if registry is None else registry
        options = SqlOptions(file=file, assignments=assignments, archive=archive, registry=registry)
        _run(link, bootstrap_servers or servers(None), path, options, tables, addresses)
    except CliError as error:
        if not link.supervised:
            raise
        link.report_error(str(error), error.exit_code)
        note(str(error))
        raise SystemExit(error.exit_code) from None


def listen(path: str) -> socket.socket:
    """Listen on a Unix socket that its user alone can reach. Raises CliError.

    A socket that a process left behind is replaced; one that is in use is not.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise CliError("sql-service", f"--socket {path}: the path is longer than {SOCKET_PATH_BYTES_MAX} bytes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if _is_served(path):
                raise CliError("sql-service", f"--socket {path}: another process listens on it")
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise CliError("sql-service", f"--socket {path}: {error.strerror}", exit_code=EXIT_FAILED) from None
    except BaseException:
        listener.close()
        raise
    return listener


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        return True


def foreign_listener(protocol: str, address: tuple[str, int]) -> socket.socket:
    """Listen for clients of a protocol. Raises CliError."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=128)
    except OSError as error:
        where = join_address(*address)
        raise CliError(
            "sql-service", f"--{protocol}: cannot listen on {where}: {error.strerror}", exit_code=EXIT_FAILED
        ) from None


def _run(
    link: ParentLink,
    where: str,
    path: str,
    options: SqlOptions,
    tables: dict[str, str],
    addresses: dict[str, tuple[str, int]],
) -> None:
    from headwater.cli.pipeline.reported_errors import reported_errors
    from headwater.cli.sql.known_relations import Cluster
    from headwater.cli.sql_service.catalog_query import run_query
    from headwater.cli.sql_service.connections import Service, ServiceLimits
    from headwater.cli.sql_service.foreign_ports import ForeignPort
    from headwater.cli.sql_service.held_resource import HeldResource
    from headwater.cli.sql_service.session import OpenedService, checked_files, opened_service

    cluster = Cluster(where)
    limits = ServiceLimits(queries_max=settings().sql_queries_max)
    held: HeldResource[OpenedService] = HeldResource(
        lambda: opened_service(cluster, options, tables, frozenset(addresses)), settings().sql_idle_ms / 1000
    )

    def run(query: SqlQuery, pool: int, send: Callable[[QueryEvent], None], watch: QueryWatch) -> None:
        with held.used(watch.check) as service:
            run_query(service.sessions, query, pool, limits.bytes_max, send, watch)

    def opened(protocol: str) -> Callable[[Callable[[], None]], AbstractContextManager[int]]:
        @contextlib.contextmanager
        def held_port(check: Callable[[], None]) -> Iterator[int]:
            with held.used(check) as service:
                assert service.servers is not None, "there are addresses"
                yield service.servers.port(protocol, check)

        return held_port

    with reported_errors():
        checked_files(cluster, options)
    with contextlib.ExitStack() as listeners:
        ports = {
            protocol: ForeignPort(
                SERVER_NAMES[protocol],
                listeners.enter_context(foreign_listener(protocol, address)),
                opened(protocol),
                note,
            )
            for protocol, address in addresses.items()
        }
        listener = listeners.enter_context(listen(path))
        try:
            threading.Thread(target=Service(run, limits).serve, args=(listener,), daemon=True).start()
            for port in ports.values():
                port.start()
            reached = {protocol: join_address(*port.address) for protocol, port in ports.items()}
            link.watch()
            link.report_ready(reached)
            if not link.supervised:
                words = [f"socket {path}", *(f"{protocol} {address}" for protocol, address in reached.items())]
                sys.stdout.write(f"SQL service is ready: {', '.join(words)}\n")
                sys.stdout.flush()
            held.keep(_is_over)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _is_over(sessions: object | None) -> bool:
    """Never; signals end the service, and so does the end of its JVM: a supervisor restarts it."""
    if sessions is not None:
        from headwater.pipelines.spark.session import lost_jvm

        lost = lost_jvm()
        if lost is not None:
            note(lost)
            raise SystemExit(EXIT_FAILED)
    return False
