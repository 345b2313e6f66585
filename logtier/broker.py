"""One broker: its life from start to stop."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

from headwater.logtier.broker_chores import begin_chores
from headwater.logtier.broker_stages import BrokerParts, BrokerStartError, open_parts, serve_metrics
from headwater.logtier.config import BrokerConfig, ConfigError, Endpoint
from headwater.logtier.controller.registration import BrokerIdInUseError
from headwater.logtier.log.log_manager import LogDirError
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.paths import CorruptNodeError
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.protocol.errors import KafkaError
from headwater.logtier.protocol.features import UnsupportedFeaturesError

__all__ = ["Broker", "BrokerStartError"]

logger = logging.getLogger(__name__)

#: What an administrator can mend, each with one line.
_START_ERRORS: Final = (
    BrokerIdInUseError,
    ConfigError,
    KafkaError,
    LogDirError,
    MetadataStoreError,
    UnsupportedFeaturesError,
)


class Broker:
    """One broker: of a cluster that shares a ZooKeeper (`zookeeper.connect`), or a cluster of one, with a local store.

    `start` returns when clients are served; `stop` shuts down cleanly. Each may be called once.

    Args:
        machine: Time, chance, files, processes and the network; by default those of the operating system.
    """

    def __init__(self, config: BrokerConfig, machine: Machine | None = None) -> None:
        self._config = config
        self._machine = machine or Machine()
        self._closing = AsyncExitStack()
        #: The parts, set by `start`.
        self.parts: BrokerParts | None = None
        #: The advertised addresses, set by `start`.
        self.advertised: tuple[Endpoint, ...] = ()
        #: Port of the Prometheus endpoint, None without one; set by `start`.
        self.metrics_port: int | None = None
        self._inside = Endpoint("PLAINTEXT", "", 0)
        self._failure: asyncio.Future[str] | None = None

    @property
    def bootstrap_address(self) -> str:
        """Address of the broker for processes of this node, as `host:port`; set by `start`."""
        return self._inside.address

    @property
    def bootstrap_protocol(self) -> str:
        """The security protocol of `bootstrap_address`."""
        return self._inside.protocol

    @property
    def metrics_url(self) -> str | None:
        """URL of the Prometheus endpoint, None without one."""
        return (
            None if self.metrics_port is None else f"http://{self._config.prometheus_host}:{self.metrics_port}/metrics"
        )

    async def start(self) -> None:
        """Recover the logs, open the listeners, become controller or register in the cluster, and serve clients.

        Raises:
            BrokerStartError: A log folder, a port or ZooKeeper is not available, another broker has the id, or data is
                damaged; everything is closed again.
        """
        try:
            await self._start()
        except CorruptNodeError as error:
            await self._closing.aclose()
            raise BrokerStartError(f"{error}; {error.remedy}") from error
        except _START_ERRORS as error:
            await self._closing.aclose()
            raise BrokerStartError(str(error)) from error
        except BaseException:
            await self._closing.aclose()
            raise

    async def failed(self) -> str:
        """Wait until the started broker fails and must be stopped; return the reason."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    def _fail(self, reason: str) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)

    async def stop(self) -> None:
        """Close the listeners, finish writes, and mark the logs as cleanly shut down."""
        await self._closing.aclose()
        logger.info("broker %d stopped", self._config.node_id)

    async def _start(self) -> None:
        self._failure = asyncio.get_running_loop().create_future()
        parts = self.parts = await open_parts(self._config, self._machine, self._closing, self._fail)
        self.advertised, self._inside = parts.listeners.advertised, parts.listeners.inside
        await self._unless_failed(self._join(parts))
        await begin_chores(self._config, parts, self._machine.clock, self._closing)
        parts.listeners.serve()
        if self._config.prometheus_port >= 0:
            self.metrics_port = await serve_metrics(self._config, parts, self._closing)
        logger.info(
            "broker %d of cluster %s serves %s with %d topics and %d logs",
            self._config.node_id,
            parts.metadata.image.cluster_id,
            ", ".join(map(str, self.advertised)),
            len(parts.metadata.image.topics),
            len(parts.log_manager.logs),
        )

    async def _unless_failed(self, step: Coroutine[Any, Any, None]) -> None:
        """Carry out a step of the start that may wait for the cluster; BrokerStartError if this broker fails before."""
        assert self._failure is not None
        task = asyncio.ensure_future(step)
        try:
            await asyncio.wait((task, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise BrokerStartError(self._failure.result())
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        await task

    async def _join(self, parts: BrokerParts) -> None:
        """Register this broker in the cluster, and load the state of its coordinators."""
        config, inside = self._config, self._inside
        if parts.cluster is None:
            await parts.controller.register_broker(
                config.node_id, inside.host, inside.port, config.broker_rack, self.advertised
            )
        else:
            await parts.cluster.join(parts.log_manager, parts.listeners, self._fail)
        for coordinator in (parts.services.groups, parts.services.transactions):
            await coordinator.start()
            self._closing.push_async_callback(coordinator.stop)
        if parts.cluster is not None:
            parts.cluster.watch_session(parts.services)
            # The first step of a stop: while others take over, this broker still answers.
            self._closing.push_async_callback(parts.cluster.leave)
