"""One broker: makes the parts and puts them together; decides nothing."""

import asyncio
import logging
import os
import random
import socket
from contextlib import AsyncExitStack

from logtier.config import BrokerConfig, Listener
from logtier.controller.controller import Controller
from logtier.group.coordinator import GroupCoordinator
from logtier.handlers.context import Services
from logtier.handlers.dispatcher import Dispatcher
from logtier.handlers.registry import HANDLERS, advertised_versions
from logtier.log.log_manager import LogDirError, LogManager
from logtier.metadata.image import MetadataCache
from logtier.metadata.local import LocalMetadataStore
from logtier.metadata.paths import CorruptNodeError
from logtier.metadata.store import MetadataStoreError
from logtier.network.server import Server, ServerLimits
from logtier.replication.replica_manager import ReplicaManager
from logtier.runtime.clock import Clock, SystemClock
from logtier.runtime.disk import Disk, RealDisk
from logtier.runtime.network import Network, SocketNetwork

logger = logging.getLogger(__name__)

#: Logs are looked after at least this often, for deletions whose delay is over.
MAINTENANCE_INTERVAL_MS_MAX = 30_000
#: Folder of the embedded metadata store in the first of `log.dirs`; it does not read as a partition's.
METADATA_DIRECTORY = "__cluster_metadata"


class BrokerStartError(OSError):
    """Why the broker cannot start, in one line for a person."""

    def __str__(self) -> str:
        return str(self.args[0])


class Broker:
    """A broker of a cluster of one, with its metadata in a local store.

    `start` returns when clients are served; `stop` leaves a clean shutdown behind. Each may be called once.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        prng: random.Random | None = None,
        disk: Disk | None = None,
        network: Network | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._prng = prng or random.Random()
        self._disk = disk or RealDisk()
        self._network = network or SocketNetwork()
        self._parts = AsyncExitStack()
        self._advertised = Listener("PLAINTEXT", "", 0)

    @property
    def bootstrap_address(self) -> str:
        """Where clients reach this broker, as `host:port`; known once it is started."""
        return str(self._advertised).removeprefix(f"{self._advertised.protocol}://")

    async def start(self) -> None:
        """Recover the logs, become controller, open the port, serve.

        Raises:
            BrokerStartError: the folder or the port cannot be had, or the data is damaged; nothing is left open.
        """
        try:
            await self._start()
        except (LogDirError, MetadataStoreError, CorruptNodeError) as error:
            await self._parts.aclose()
            raise BrokerStartError(str(error)) from error
        except BaseException:
            await self._parts.aclose()
            raise

    async def stop(self) -> None:
        """Close the port, finish writes, mark the logs as cleanly shut down."""
        await self._parts.aclose()
        logger.info("broker %d stopped", self._config.node_id)

    async def _start(self) -> None:
        config, clock, prng = self._config, self._clock, self._prng
        store = LocalMetadataStore(os.path.join(config.log_dirs[0], METADATA_DIRECTORY), self._disk)
        await store.start()
        self._parts.push_async_callback(store.close)
        metadata = MetadataCache(config)
        controller = Controller(config, clock, prng, store, metadata)
        await controller.start()
        self._parts.push_async_callback(controller.stop)

        image = metadata.image
        log_manager = LogManager(
            config,
            self._disk,
            clock,
            prng,
            cluster_id=image.cluster_id,
            topic_configs={topic.name: metadata.topic_config(topic) for topic in image.topics.values()},
        )
        log_manager.start()
        self._parts.callback(log_manager.close)
        replica_manager = ReplicaManager(
            config.node_id, metadata.topic_config, log_manager, clock, asyncio.get_running_loop().call_later
        )
        replica_manager.start(image)
        metadata.subscribe(replica_manager.apply)

        groups = GroupCoordinator(config, clock, prng, replica_manager, controller, metadata)
        services = Services(config, clock, prng, metadata, controller, replica_manager, groups, advertised_versions())
        servers = self._bind(Dispatcher(services, HANDLERS))
        await controller.register_broker(
            config.node_id, self._advertised.host, self._advertised.port, config.broker_rack
        )
        await groups.start()
        self._parts.push_async_callback(groups.stop)
        self._parts.callback(asyncio.create_task(self._maintain(log_manager, replica_manager)).cancel)
        for server in servers:
            server.serve()
        logger.info(
            "broker %d of cluster %s serves %s with %d topics and %d logs",
            config.node_id,
            metadata.image.cluster_id,
            self.bootstrap_address,
            len(metadata.image.topics),
            len(log_manager.logs),
        )

    def _bind(self, dispatcher: Dispatcher) -> list[Server]:
        """Open every listener; clients are told the first one's address."""
        config = self._config
        limits = ServerLimits(
            request_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            connections_per_host_max=config.max_connections_per_ip,
            idle_ms_max=config.connections_max_idle_ms,
            queued_bytes_max=config.queued_max_request_bytes,
            buffer_bytes=(config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes),
            backlog=config.socket_listen_backlog_size,
        )
        servers: list[Server] = []
        for endpoint in config.bind_endpoints:
            server = Server(self._network, self._clock, dispatcher.dispatch, limits)
            try:
                host, port = server.bind(endpoint.host, endpoint.port)
            except OSError as error:
                raise BrokerStartError(
                    f"cannot listen on {endpoint}: {error.strerror or error}; "
                    "stop what uses the port or choose another one (listeners; port 0 takes any free port)"
                ) from error
            self._parts.callback(server.stop)
            if not servers:
                self._advertised = self._advertise(endpoint, host, port)
            servers.append(server)
        return servers

    def _advertise(self, endpoint: Listener, host: str, port: int) -> Listener:
        """The address that clients are told: what is configured, else the bound one, else this machine's name."""
        if self._config.advertised_endpoints:
            return self._config.advertised_endpoints[0]
        everywhere = endpoint.host in ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound)
        return Listener(endpoint.protocol, socket.getfqdn() if everywhere else host, port)

    async def _maintain(self, log_manager: LogManager, replica_manager: ReplicaManager) -> None:
        """Look after the logs between requests; a failure is logged and the next round comes all the same."""
        interval_s = min(self._config.log_retention_check_interval_ms, MAINTENANCE_INTERVAL_MS_MAX) / 1000
        while True:
            await asyncio.sleep(interval_s)
            try:
                replica_manager.make_missing_logs()
                log_manager.maintain(self._clock.now_ms())
            except OSError as error:
                logger.error("log maintenance failed: %s", error)
            except Exception:
                logger.exception("log maintenance failed")
