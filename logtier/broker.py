"""One broker: creates and connects its components."""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib import import_module

from headwater.logtier.config import BrokerConfig, ConfigError, Endpoint
from headwater.logtier.controller.controller import Controller
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.handlers.context import Services
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.quotas.configured_quotas import configured_quotas
from headwater.logtier.handlers.records import produce
from headwater.logtier.handlers.registry import HANDLERS, advertised_versions
from headwater.logtier.log.cleaning.cleaner import LogCleaner
from headwater.logtier.log.durability import Post
from headwater.logtier.log.log_manager import LogDirError, LogManager
from headwater.logtier.metadata.acl_follower import configured_authorizer
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.metadata.local import LocalMetadataStore
from headwater.logtier.metadata.paths import CorruptNodeError
from headwater.logtier.metadata.store import MetadataStoreError
from headwater.logtier.network.listeners import ListenError, Listeners
from headwater.logtier.replication.fetch_session import FetchSessionCache
from headwater.logtier.replication.log_dirs import LogDirs
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock, SystemClock
from headwater.logtier.runtime.cold_sender import ColdReadPace, ColdSender
from headwater.logtier.runtime.disk import Disk, RealDisk
from headwater.logtier.runtime.loop_lag import measure_loop_lag
from headwater.logtier.runtime.metrics import BrokerMetrics
from headwater.logtier.runtime.network import Network, SocketNetwork
from headwater.logtier.runtime.read_ahead import ReadAhead
from headwater.logtier.runtime.spawned_tasks import SpawnedTasks
from headwater.logtier.security.scram import ScramUsers
from headwater.logtier.transaction.coordinator import TransactionCoordinator

logger = logging.getLogger(__name__)

#: Longest interval of log maintenance, for deletions whose delay has passed.
MAINTENANCE_INTERVAL_MS_MAX = 30_000
#: Shortest interval of log maintenance, which runs on the event loop, for any configs.
MAINTENANCE_INTERVAL_MS_MIN = 10
#: Interval of the check for much unflushed data.
FLUSH_CHECK_INTERVAL_S = 1.0
#: First and longest delay before another attempt to create missing logs after a disk error, for which clients that
#: created the topic wait; the delay doubles each time.
MISSING_LOGS_INTERVAL_S_MIN = 1.0
MISSING_LOGS_INTERVAL_S_MAX = 30.0
#: Folder of the embedded metadata store in the first of `log.dirs`; its name is not that of a partition.
METADATA_DIRECTORY = "__cluster_metadata"


class BrokerStartError(OSError):
    """The broker cannot start; the message gives the reason in one line."""

    def __str__(self) -> str:
        return str(self.args[0])


class Broker:
    """The broker of a single-node cluster, with its metadata in a local store.

    `start` returns when clients are served; `stop` shuts down cleanly. Each may be called once.
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
        self._network = network
        self._parts = AsyncExitStack()
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
        """Recover the logs, become controller, open the listeners, and serve clients.

        Raises:
            BrokerStartError: A log folder or a port is not available, or data is damaged; everything is closed again.
        """
        try:
            await self._start()
        except (LogDirError, MetadataStoreError, CorruptNodeError) as error:
            await self._parts.aclose()
            raise BrokerStartError(str(error)) from error
        except BaseException:
            await self._parts.aclose()
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
        await self._parts.aclose()
        logger.info("broker %d stopped", self._config.node_id)

    async def _start(self) -> None:
        config, clock, prng = self._config, self._clock, self._prng
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        store = LocalMetadataStore(
            os.path.join(config.log_dirs[0], METADATA_DIRECTORY), self._disk, on_failure=self._fail
        )
        await store.start()
        self._parts.push_async_callback(store.close)
        metadata = MetadataCache(config)
        follower = MetadataFollower(store, metadata, on_failure=self._fail)
        controller = Controller(config, clock, prng, store, follower)
        await controller.start()
        await follower.start()
        self._parts.push_async_callback(follower.stop)
        self._parts.push_async_callback(controller.stop)

        image = metadata.image
        log_manager = LogManager(
            config,
            self._disk,
            clock,
            prng,
            cluster_id=image.cluster_id,
            topic_configs={topic.name: metadata.topic_config(topic) for topic in image.topics.values()},
            topic_ids={topic.name: topic.topic_id for topic in image.topics.values()},
            post=_poster(loop),
            on_fatal=self._fail,
        )
        log_manager.start()
        self._parts.callback(log_manager.close)
        read_ahead = ReadAhead()
        self._parts.callback(read_ahead.close)
        replica_manager = ReplicaManager(
            config.node_id, metadata.topic_config, log_manager, clock, loop.call_later, read_ahead
        )
        replica_manager.start(image)
        _limit_moves(replica_manager.log_dirs, metadata)
        replica_manager.log_dirs.resume()
        self._parts.push_async_callback(replica_manager.log_dirs.stop)
        metadata.prepare_with(replica_manager.prepare)
        metadata.subscribe(replica_manager.apply)
        cleaner = LogCleaner(
            lambda: metadata.config,
            self._disk,
            clock,
            log_manager.logs,
            lambda topic_partition: replica_manager.partition(topic_partition).last_stable_offset,
        )
        cleaner.start()
        self._parts.push_async_callback(cleaner.stop)

        groups = GroupCoordinator(config, clock, prng, replica_manager, controller, metadata)
        transactions = TransactionCoordinator(
            config,
            clock,
            replica_manager,
            controller,
            metadata,
            controller.producer_ids.next,
            groups.transactional.marker_written,
        )
        services = Services(
            clock,
            prng,
            metadata,
            controller,
            replica_manager,
            groups,
            transactions,
            advertised_versions(),
            authorizer=configured_authorizer(metadata),
            fetch_sessions=FetchSessionCache(config.max_incremental_fetch_session_cache_slots, prng),
            read_ahead=read_ahead,
            quotas=configured_quotas(metadata),
        )
        network = self._network or SocketNetwork(self._cold_sender(services.metrics, metadata))
        listeners = self._listen(network, Dispatcher(services, HANDLERS), metadata)
        listeners.limit_hosts(services.quotas.record_connection)
        listeners.report_unreadable(replica_manager.cannot_read)
        await controller.register_broker(
            config.node_id, self._inside.host, self._inside.port, config.broker_rack, self.advertised
        )
        await groups.start()
        self._parts.push_async_callback(groups.stop)
        await transactions.start()
        self._parts.push_async_callback(transactions.stop)
        self._parts.callback(asyncio.create_task(self._maintain(log_manager)).cancel)
        self._parts.callback(
            asyncio.create_task(self._make_missing_logs(replica_manager, (groups, transactions))).cancel
        )
        self._parts.callback(asyncio.create_task(self._flush_what_came(log_manager)).cancel)
        self._parts.callback(asyncio.create_task(measure_loop_lag(services.metrics)).cancel)
        metadata.subscribe(_forgetter(services.metrics))
        await self._follow_configs(metadata, log_manager, listeners)
        listeners.serve()
        if config.prometheus_port >= 0:
            await self._tell_prometheus(services, cleaner, listeners)
        logger.info(
            "broker %d of cluster %s serves %s with %d topics and %d logs",
            config.node_id,
            metadata.image.cluster_id,
            ", ".join(map(str, self.advertised)),
            len(metadata.image.topics),
            len(log_manager.logs),
        )

    async def _follow_configs(self, metadata: MetadataCache, log_manager: LogManager, listeners: Listeners) -> None:
        """Apply altered configs to components that do not read them at each use.

        Configs altered before the start are applied at once, later ones at each change.
        """
        tasks = SpawnedTasks("broker")
        self._parts.push_async_callback(tasks.cancel)
        told = metadata.static_config

        async def tell() -> None:
            nonlocal told
            told = metadata.config
            log_manager.configure(told)
            await listeners.limit_connections(told)

        def follow(_: MetadataDelta) -> None:
            if metadata.config is not told:
                tasks.spawn(tell())

        metadata.subscribe(follow)
        if metadata.config is not told:
            # An error is logged: the broker starts with any altered config, so that the config can be corrected.
            await asyncio.wait((tasks.spawn(tell()),))

    def _cold_sender(self, metrics: BrokerMetrics, metadata: MetadataCache) -> ColdSender:
        """Create the sender of cold data with the configured rate."""
        produced = metrics.api(produce.API_KEY)
        cores = os.cpu_count() or 1
        pace = ColdReadPace(
            self._clock,
            lambda: cores * metadata.config.cold_read_max_bytes_per_second_per_core,
            lambda: produced.request_bytes,
        )
        sender = ColdSender(self._clock, pace.bytes_per_s)
        self._parts.callback(sender.close)
        return sender

    def _listen(self, network: Network, dispatcher: Dispatcher, metadata: MetadataCache) -> Listeners:
        """Open every listener."""
        users = ScramUsers(lambda: metadata.image.scram_credentials, lambda: metadata.image.unknown_users_key)
        listeners = Listeners(self._config, network, self._clock, dispatcher.dispatch, users)
        self._parts.callback(listeners.stop)
        try:
            listeners.open()
        except (ListenError, ConfigError) as error:
            raise BrokerStartError(str(error)) from error
        self.advertised = listeners.advertised
        self._inside = listeners.inside
        return listeners

    async def _tell_prometheus(self, services: Services, cleaner: LogCleaner, listeners: Listeners) -> None:
        """Open the Prometheus endpoint; its library is imported only now, while clients are already served."""
        config = self._config
        endpoint_module = await asyncio.to_thread(import_module, "headwater.logtier.metrics.endpoint")
        collector = endpoint_module.BrokerCollector(
            asyncio.get_running_loop(), services, services.metrics, cleaner.counters, listeners.connections
        )
        endpoint = endpoint_module.MetricsEndpoint(collector)
        try:
            self.metrics_port = endpoint.start(config.prometheus_host, config.prometheus_port)
        except OSError as error:
            raise BrokerStartError(
                f"cannot serve metrics at {config.prometheus_host}:{config.prometheus_port}: "
                f"{error.strerror or error}; stop the process that uses the port or choose another port "
                "(prometheus.port; 0 takes any free port)"
            ) from error
        self._parts.push_async_callback(asyncio.to_thread, endpoint.stop)

    async def _make_missing_logs(
        self, replica_manager: ReplicaManager, coordinators: Sequence[GroupCoordinator | TransactionCoordinator]
    ) -> None:
        """Create the logs that failed with a disk error (full disk, no file descriptor), with growing delays."""
        pause_s = MISSING_LOGS_INTERVAL_S_MIN
        while True:
            await asyncio.sleep(pause_s)
            had_missing = replica_manager.has_missing
            try:
                are_all_there = await replica_manager.make_missing_logs()
                if had_missing:
                    # A created log may belong to a coordinator, which looked for it when its topic was created.
                    for coordinator in coordinators:
                        coordinator.leadership_changed()
            except Exception:
                logger.exception("creating the missing logs failed")
                are_all_there = False
            pause_s = MISSING_LOGS_INTERVAL_S_MIN if are_all_there else min(2 * pause_s, MISSING_LOGS_INTERVAL_S_MAX)

    async def _maintain(self, log_manager: LogManager) -> None:
        """Maintain the logs between requests; a failure is logged, and the next round follows."""
        interval_s = _maintenance_interval_ms(self._config) / 1000
        while True:
            await asyncio.sleep(interval_s)
            try:
                log_manager.maintain(self._clock.now_ms())
            except OSError as error:
                logger.error("log maintenance failed: %s", error)
            except Exception:
                logger.exception("log maintenance failed")

    async def _flush_what_came(self, log_manager: LogManager) -> None:
        """Flush before the interval ends if much data is unflushed, so that a start after a crash checks little."""
        while True:
            await asyncio.sleep(FLUSH_CHECK_INTERVAL_S)
            try:
                log_manager.flusher.flush_if_much_came()
            except Exception:
                logger.exception("flushing the logs failed")


def _maintenance_interval_ms(config: BrokerConfig) -> int:
    """Interval of log maintenance: that of its most frequent task, within the limits.

    >>> properties = {"log.dirs": "d", "log.flush.scheduler.interval.ms": 250}
    >>> _maintenance_interval_ms(BrokerConfig.from_properties(properties))
    250
    """
    wanted_ms = min(config.log_retention_check_interval_ms, config.log_flush_scheduler_interval_ms)
    return min(max(wanted_ms, MAINTENANCE_INTERVAL_MS_MIN), MAINTENANCE_INTERVAL_MS_MAX)


def _limit_moves(log_dirs: LogDirs, metadata: MetadataCache) -> None:
    """Apply the configured rate of replica moves, now and after each change."""

    def limit(_: object = None) -> None:
        log_dirs.limit_moves(metadata.config.replica_alter_log_dirs_io_max_bytes_per_second)

    limit()
    metadata.subscribe(limit)


def _forgetter(metrics: BrokerMetrics) -> Callable[[MetadataDelta], None]:
    """Return a subscriber that removes the traffic counters of deleted topics."""

    def forget(delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            metrics.topics.pop(topic.name, None)

    return forget


def _poster(loop: asyncio.AbstractEventLoop) -> Post:
    """Return a function that runs calls of other threads on the loop's thread, and drops them after the loop closed."""

    def post(call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return post
