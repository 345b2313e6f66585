"""`headwater broker`: one broker of the log tier, alone or as a child of `headwater up`."""

from __future__ import annotations

import gc
import signal
import sys

import click

from headwater.child import ParentLink
from headwater.cli.shell.broker_properties import broker_properties, read_properties
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import child_options, host_option, key_values, port_option, settings

#: Time for a start to end after a signal, before it is interrupted.
START_GRACE_S = 5.0


@click.command()
@click.option("--data", "data_dir", type=click.Path(), metavar="DIR", help="Data directory.  [default: headwater-data]")
@port_option("--kafka-port", "Port to listen on; 0 picks a free one.  [default: 9092]")
@host_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Broker property; may be repeated.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(),
    metavar="FILE",
    help="Broker properties in YAML, such as conf/broker.yaml, or as name=value lines in a .properties file.",
)
@child_options
def broker(
    data_dir: str | None,
    kafka_port: int | None,
    host: str | None,
    overrides: tuple[str, ...],
    config_path: str | None,
    ready_fd: int | None,
    parent_fd: int | None,
) -> None:
    """Run a broker in the foreground; SIGINT and SIGTERM shut it down cleanly.

    Broker properties have Kafka's names. When the broker is ready, its address is printed to stdout in one line.
    """
    link = ParentLink(ready_fd, parent_fd)
    try:
        path = config_path if config_path is not None else settings().broker_config
        properties = broker_properties(
            read_properties(path) if path else {}, dict(key_values(overrides, "--set")), data_dir, kafka_port, host
        )
        _run(properties, link)
    except CliError as error:
        _fail(link, str(error), error.exit_code)
    except click.ClickException as error:
        _fail(link, f"broker: {error.format_message()}", 2)


def _fail(link: ParentLink, message: str, exit_code: int) -> None:
    """Report a failure: to the supervisor if present, which prints it; otherwise on stderr."""
    if link.supervised:
        link.report_error(message, exit_code)
        raise SystemExit(exit_code)
    raise CliError("", message, exit_code=exit_code)


def _run(properties: dict[str, object], link: ParentLink) -> None:
    # What a start makes stays: to look for garbage in it would take a fifteenth of its time.
    gc.disable()
    import asyncio
    import logging

    # kio describes its types to hypothesis, a tool for tests, wherever that is installed: 0.2 s and 9 MiB for nothing.
    # To the import system None is a module that is not there (Python's reference, "The module cache").
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]

    from headwater.logtier.broker import Broker, BrokerStartError
    from headwater.logtier.config import BrokerConfig, ConfigError
    from headwater.logtier.runtime.event_loop import run
    from headwater.logtier.runtime.open_files import raise_open_file_limit

    logging.basicConfig(
        level=settings().log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    raise_open_file_limit()
    try:
        config = BrokerConfig.from_properties(properties)
    except ConfigError as error:
        raise CliError("broker", str(error)) from None

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM,) if link.supervised else (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        instance = Broker(config)
        stopped = asyncio.ensure_future(stop.wait())
        starting = asyncio.ensure_future(instance.start())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            # Most starts are over soon; one that waits for ZooKeeper or the cluster may not be.
            await asyncio.wait((starting,), timeout=START_GRACE_S)
            starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            return
        gc.enable()
        try:
            address = instance.bootstrap_address
            host, _, port = address.rpartition(":")
            ready: dict[str, int | str] = {
                "host": host.removeprefix("[").removesuffix("]"),
                "port": int(port),
                "protocol": instance.bootstrap_protocol,
            }
            if instance.metrics_port is not None:
                ready["metrics_port"] = instance.metrics_port
            link.report_ready(ready)
            link.watch()
            if not link.supervised:
                others = "".join(f", {other}" for other in instance.advertised if other.address != address)
                metrics = f", metrics {instance.metrics_url}" if instance.metrics_url else ""
                sys.stdout.write(f"Broker is ready: kafka {address}{others}{metrics}\n")
                sys.stdout.flush()
            failed = asyncio.ensure_future(instance.failed())
            await asyncio.wait((failed, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if failed.done():
                raise BrokerStartError(failed.result())
            failed.cancel()
        finally:
            await instance.stop()

    try:
        run(serve())
    except BrokerStartError as error:
        raise CliError("broker", str(error), exit_code=EXIT_FAILED) from None
