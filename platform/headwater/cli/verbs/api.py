"""`headwater api`: the REST API, alone or as a child of `headwater up`."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headwater.child import ParentLink
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import (
    child_options,
    client_options,
    client_security,
    host_option,
    port_option,
    servers,
    settings,
)
from headwater.services import join_address, reachable_host

if TYPE_CHECKING:
    from fastapi import FastAPI

LISTEN_BACKLOG = 512


@click.command()
@client_options
@port_option("--http-port", "Port to listen on; 0 picks a free one.  [default: 8082]")
@host_option
@click.option("--sql-socket", metavar="PATH", help="Socket of `headwater sql-service`, which then answers queries.")
@child_options
def api(
    bootstrap_servers: str | None,
    http_port: int | None,
    host: str | None,
    sql_socket: str | None,
    ready_fd: int | None,
    parent_fd: int | None,
) -> None:
    """Serve topic administration (Confluent REST v3), a schema registry and the status of pipelines over HTTP.

    Requests are not authenticated, so the API listens on 127.0.0.1 by default. With a secured broker, or on another
    address, it is read-only unless the setting http_changes allows changes. When it is ready, its address is printed to
    stdout in one line.
    """
    link = ParentLink(ready_fd, parent_fd)
    try:
        asked_host = host if host is not None else settings().host
        listener = listen(asked_host, http_port if http_port is not None else settings().http_port)
        with listener:
            _serve(listener, asked_host, bootstrap_servers, sql_socket, link)
    except CliError as error:
        if not link.supervised:
            raise
        link.report_error(str(error), error.exit_code)
        raise SystemExit(error.exit_code) from None


def listen(host: str, port: int) -> socket.socket:
    """Bind the HTTP port. Raises CliError with one line if the port cannot be bound."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(LISTEN_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except socket.gaierror as error:
        raise CliError(
            "api", f"host {host!r} is not known: {error.strerror}", "name an address of this machine"
        ) from None
    except OSError as error:
        where = join_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise CliError(
                "api",
                f"{where} is in use by another process",
                "stop it, or choose another port with --http-port (0 picks a free one)",
                exit_code=EXIT_FAILED,
            ) from None
        raise CliError(
            "api",
            f"cannot listen on {where}: {error.strerror}",
            "choose another --host or --http-port",
            exit_code=EXIT_FAILED,
        ) from None
    return listener


def _serve(
    listener: socket.socket, asked_host: str, bootstrap_servers: str | None, sql_socket: str | None, link: ParentLink
) -> None:
    import asyncio
    import ipaddress
    import logging

    import uvicorn

    from headwater.api.access import ChangePolicy
    from headwater.api.app import create_app
    from headwater.api.connection import BootstrapServersError, parse_bootstrap_servers
    from headwater.api.pipeline_status import PipelineStatus
    from headwater.api.registry.service import SchemaRegistry
    from headwater.api.sql_policy import SqlPolicy
    from headwater.api.topic_admin import TopicAdmin
    from headwater.sql_socket.client import SocketGateway

    logging.basicConfig(
        level=settings().log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # A supervisor starts this process together with the broker and tells the address as soon as there is one.
    brokers = link.receive()["bootstrap_servers"] if link.supervised else servers(bootstrap_servers)
    try:
        parse_bootstrap_servers(brokers)
    except BootstrapServersError as error:
        raise CliError("api", str(error)) from None
    admin = TopicAdmin(brokers, settings().request_timeout_ms, client_security())
    registry = SchemaRegistry.on_topic(
        admin,
        settings().registry_topic,
        request_timeout_ms=settings().request_timeout_ms,
        security=client_security(),
    )
    status = PipelineStatus(admin, request_timeout_ms=settings().request_timeout_ms, security=client_security())
    host = listener.getsockname()[0]
    is_secured = client_security().get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT"
    is_loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    app: FastAPI = create_app(
        admin,
        settings().http_body_bytes_max,
        registry=registry,
        status=status,
        changes=ChangePolicy.of(
            settings().http_changes,
            broker_is_secured=is_secured,
            host_is_loopback=is_loopback,
        ),
        sql_gateway=SocketGateway(sql_socket) if sql_socket is not None else None,
        sql_policy=SqlPolicy.of(settings().http_changes, broker_is_secured=is_secured, host_is_loopback=is_loopback),
        hosts=[name for name in (asked_host, *settings().http_hosts.replace(" ", "").split(",")) if name],
    )
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False, ws="none")

    def ready() -> None:
        host, port = listener.getsockname()[:2]
        link.report_ready({"host": host, "port": port})
        link.watch()
        if not link.supervised:
            sys.stdout.write(f"API is ready: http http://{join_address(reachable_host(host), port)}\n")
            sys.stdout.flush()

    class Server(uvicorn.Server):
        """uvicorn's server, which reports when it is ready and leaves signals to `serve`."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    async def serve() -> None:
        server = Server(config)

        def stop() -> None:
            server.should_exit = True

        for number in (signal.SIGTERM,) if link.supervised else (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        await server.serve(sockets=[listener])

    try:
        asyncio.run(serve())
    finally:
        status.close()
        registry.close()
