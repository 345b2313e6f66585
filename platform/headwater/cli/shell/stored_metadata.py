"""The metadata of brokers that do not run: in a data folder or, for a cluster, in ZooKeeper.

The first user of brokers that require a login is created here, also the one as whom brokers log in to each other: none
of them could be asked.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.cli.shell.errors import EXIT_FAILED, CliError

if TYPE_CHECKING:
    from headwater.logtier.config import BrokerConfig
    from headwater.logtier.controller.controller import Controller
    from headwater.logtier.machine import Machine
    from headwater.logtier.metadata.image import MetadataCache

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """Where metadata are stored: in a data folder, or where a broker's properties say. One of the two is set."""

    data_dir: str | None = None
    config_path: str | None = None

    def broker_config(self, verb: str) -> BrokerConfig:
        """Return the configs of a broker with this metadata; CliError."""
        from headwater.cli.shell.broker_properties import broker_properties, read_properties
        from headwater.cluster_folder import LAYOUT_FILE
        from headwater.logtier.config import BrokerConfig, ConfigError

        if self.data_dir is not None and os.path.exists(os.path.join(self.data_dir, LAYOUT_FILE)):
            # Metadata of a node would be written beside those in ZooKeeper, and reach no broker.
            raise CliError(
                verb,
                f"{self.data_dir} is the folder of several brokers, whose metadata are in ZooKeeper",
                "start them with `headwater up`, and name one by -b",
            )
        try:
            if self.config_path is None:
                return BrokerConfig.from_properties({"log.dirs": self.data_dir})
            return BrokerConfig.from_properties(
                broker_properties(read_properties(self.config_path, verb), {}, None, None, None)
            )
        except ConfigError as error:
            raise CliError(verb, str(error)) from None


def stored_metadata_options(function: F) -> F:
    """Add `--data` and `--config`; the function receives `stored`, None for a running broker."""

    @functools.wraps(function)
    def with_stored(*arguments: Any, data_dir: str | None, config_path: str | None, **options: Any) -> Any:
        if data_dir is not None and config_path is not None:
            raise click.UsageError("--data and --config exclude each other: the file names the folder")
        is_stored = data_dir is not None or config_path is not None
        return function(*arguments, stored=StoredMetadata(data_dir, config_path) if is_stored else None, **options)

    data = click.option(
        "--data",
        "data_dir",
        type=click.Path(),
        metavar="DIR",
        help="Data directory of a stopped broker, used instead of a running broker.",
    )
    config = click.option(
        "--config",
        "config_path",
        type=click.Path(),
        metavar="FILE",
        help="Broker properties, used instead of a running broker: all brokers of its cluster must be stopped.",
    )
    decorated: Any = data(config(with_stored))
    return decorated  # type: ignore[no-any-return]


def with_controller(
    verb: str, stored: StoredMetadata, call: Callable[[Controller, MetadataCache], Coroutine[Any, Any, T]]
) -> T:
    """Call `call` with a controller of stored metadata, which no broker may use meanwhile; CliError."""
    import asyncio

    from headwater.logtier.config import ConfigError
    from headwater.logtier.log.log_manager import LogDirError
    from headwater.logtier.machine import Machine
    from headwater.logtier.metadata.paths import CorruptNodeError
    from headwater.logtier.metadata.store import MetadataStoreError
    from headwater.logtier.protocol.features import UnsupportedFeaturesError

    config = stored.broker_config(verb)
    try:
        return asyncio.run(call_controller(verb, config, Machine(), call))
    except (ConfigError, CorruptNodeError, LogDirError, MetadataStoreError, UnsupportedFeaturesError) as error:
        raise CliError(verb, str(error), exit_code=EXIT_FAILED) from None


async def call_controller(
    verb: str,
    config: BrokerConfig,
    machine: Machine,
    call: Callable[[Controller, MetadataCache], Coroutine[Any, Any, T]],
) -> T:
    """Become controller of a store, call `call`, and resign; first begin a cluster in a new store, as a broker does.

    Raises:
        CliError: A broker of the cluster is controller.
        ConfigError, CorruptNodeError, LogDirError, MetadataStoreError: The store is not available, or damaged.
        UnsupportedFeaturesError: It is that of a later release.
    """
    from headwater.logtier.controller.bootstrap import bootstrap, bootstrap_cluster
    from headwater.logtier.controller.controller import Controller
    from headwater.logtier.log.folders.log_directory import stored_cluster_ids
    from headwater.logtier.metadata.follower import MetadataFollower
    from headwater.logtier.metadata.image import MetadataCache
    from headwater.logtier.metadata.stored_levels import check_stored_levels

    metadata = MetadataCache(config)
    store = machine.metadata_store(config, machine.disk, lambda _: None)
    await store.start()
    try:
        await check_stored_levels(store)
        follower = MetadataFollower(store, metadata)
        controller = Controller(config, machine.clock, machine.prng, store, follower)
        if config.zookeeper_connect is None:
            await bootstrap(store, machine.prng, machine.random_bytes)
        else:
            folders = stored_cluster_ids(machine.disk, config.log_dirs)
            await bootstrap_cluster(store, machine.prng, machine.random_bytes, folders)
        await follower.start()
        try:
            if not await controller.elect():
                raise CliError(
                    verb,
                    f"a broker is controller of the cluster at {config.zookeeper_connect}",
                    "change it through a broker, by -b; or stop all brokers, and if one was killed wait until its "
                    "session with ZooKeeper is over",
                    exit_code=EXIT_FAILED,
                )
            return await call(controller, metadata)
        finally:
            await controller.stop()
            await follower.stop()
    finally:
        await store.close()
