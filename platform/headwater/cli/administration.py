"""What verbs that administer a broker share: a client of a running one, or the metadata of one that does not run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.cli.errors import EXIT_FAILED, CliError
from headwater.cli.options import client_security, servers, settings

if TYPE_CHECKING:
    from logtier.controller.controller import Controller
    from logtier.metadata.image import MetadataCache

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def data_option(function: F) -> F:
    """Add `--data`: the folder of a broker that does not run (see `offline`)."""
    return click.option(
        "--data", "data_dir", metavar="DIR", help="Folder of a broker that does not run, in place of a running one."
    )(function)


def reachable_servers(verb: str, bootstrap_servers: str | None) -> str:
    """Return the brokers to talk to; CliError when nobody answers there."""
    from api.connection import BootstrapServersError, BrokerUnreachableError, require_reachable

    brokers = servers(bootstrap_servers)
    try:
        require_reachable(brokers)
    except BootstrapServersError as error:
        raise CliError(verb, str(error)) from None
    except BrokerUnreachableError as error:
        raise CliError(
            verb,
            f"no broker answers at {error}",
            "start one with `headwater up`, or name the folder of one that does not run with --data",
            exit_code=EXIT_FAILED,
        ) from None
    return brokers


def admin_client(verb: str, bootstrap_servers: str | None) -> Any:
    """Return librdkafka's administration client; whoever calls has to hold it until it is answered."""
    from confluent_kafka.admin import AdminClient

    from api.connection import client_properties

    brokers = reachable_servers(verb, bootstrap_servers)
    return AdminClient(client_properties(brokers, settings().request_timeout_ms, client_security()))


def answer(verb: str, future: Any) -> Any:
    """Wait for the broker's answer; CliError with its reason when it refused."""
    from confluent_kafka import KafkaException

    try:
        return future.result(2 * settings().request_timeout_ms / 1000 + 5)
    except KafkaException as error:
        reason = error.args[0].str().removeprefix("Broker: ").removeprefix("Local: ")
        raise CliError(verb, reason, exit_code=EXIT_FAILED) from None


def offline(verb: str, data_dir: str, call: Callable[[Controller, MetadataCache], Coroutine[Any, Any, T]]) -> T:
    """Call with the metadata of a folder, which no broker may be using."""
    import asyncio
    import os
    import random

    from logtier.broker import METADATA_DIRECTORY
    from logtier.config import BrokerConfig
    from logtier.controller.controller import Controller
    from logtier.metadata.image import MetadataCache
    from logtier.metadata.local import LocalMetadataStore
    from logtier.metadata.paths import CorruptNodeError
    from logtier.metadata.store import MetadataStoreError
    from logtier.runtime.clock import SystemClock
    from logtier.runtime.disk import RealDisk

    async def run() -> T:
        config = BrokerConfig.from_properties({"log.dirs": data_dir})
        metadata = MetadataCache(config)
        store = LocalMetadataStore(os.path.join(data_dir, METADATA_DIRECTORY), RealDisk())
        await store.start()
        try:
            controller = Controller(config, SystemClock(), random.Random(), store, metadata)
            await controller.start()
            try:
                return await call(controller, metadata)
            finally:
                await controller.stop()
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (MetadataStoreError, CorruptNodeError) as error:
        raise CliError(verb, str(error), exit_code=EXIT_FAILED) from None
