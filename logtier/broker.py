"""One broker: makes the parts and puts them together; decides nothing."""

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

#: Logs are looked after at least this often, for deletions whose delay is over.
MAINTENANCE_INTERVAL_MS_MAX = 30_000
#: And no more often than this, whatever the configs say: it is the event loop that does it.
MAINTENANCE_INTERVAL_MS_MIN = 10
#: How often it is asked how much has come since the logs were last flushed: what comes meanwhile is to be checked, too.
FLUSH_CHECK_INTERVAL_S = 1.0
#: How soon it is tried again to make a log that the disk did not take, which whoever created the topic waits for; twice
#: as long each time, up to the second.
MISSING_LOGS_INTERVAL_S_MIN = 1.0
MISSING_LOGS_INTERVAL_S_MAX = 30.0
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
        self._network = network
        self._parts = AsyncExitStack()
        #: The addresses that clients are told, known once it is started.
        self.advertised: tuple[Endpoint, ...] = ()
        #: Port of Prometheus' endpoint, None without one; known once it is started.
        self.metrics_port: int | None = None
        self._inside = Endpoint("PLAINTEXT", "", 0)
        self._failure: asyncio.Future[str] | None = None

    @property
    def bootstrap_address(self) -> str:
        """Where this node's own processes reach the broker, as `host:port`; known once it is started."""
        return self._inside.address

    @property
    def bootstrap_protocol(self) -> str:
        """The security protocol of that address."""
        return self._inside.protocol

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus asks, None without an endpoint."""
        return (
            None if self.metrics_port is None else f"http://{self._config.prometheus_host}:{self.metrics_port}/metrics"
        )

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

    async def failed(self) -> str:
        """Wait until the broker cannot go on, and say why; it has been started, and is to be stopped then."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    def _fail(self, reason: str) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)

    async def stop(self) -> None:
        """Close the port, finish writes, mark the logs as cleanly shut down."""
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
        """Tell those who do not ask for a config each time: of what was altered before this start, and then always."""
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
            # A fault is logged: whatever was altered, the broker starts, so that it can be altered back.
            await asyncio.wait((tasks.spawn(tell()),))

    def _cold_sender(self, metrics: BrokerMetrics, metadata: MetadataCache) -> ColdSender:
        """Who sends old data, at the pace that the config says."""
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
        """Open Prometheus' endpoint; its library is imported only now, while clients are served already."""
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
                f"{error.strerror or error}; stop what uses the port or choose another one "
                "(prometheus.port; 0 takes any free port)"
            ) from error
        self._parts.push_async_callback(asyncio.to_thread, endpoint.stop)

    async def _make_missing_logs(
        self, replica_manager: ReplicaManager, coordinators: Sequence[GroupCoordinator | TransactionCoordinator]
    ) -> None:
        """Make the logs that the disk did not take, at growing pauses: it was full, or there was no file descriptor."""
        pause_s = MISSING_LOGS_INTERVAL_S_MIN
        while True:
            await asyncio.sleep(pause_s)
            had_missing = replica_manager.has_missing
            try:
                are_all_there = await replica_manager.make_missing_logs()
                if had_missing:
                    # A log that came may be one of theirs: they looked for it when its topic was made.
                    for coordinator in coordinators:
                        coordinator.leadership_changed()
            except Exception:
                logger.exception("making the logs that are missing failed")
                are_all_there = False
            pause_s = MISSING_LOGS_INTERVAL_S_MIN if are_all_there else min(2 * pause_s, MISSING_LOGS_INTERVAL_S_MAX)

    async def _maintain(self, log_manager: LogManager) -> None:
        """Look after the logs between requests; a failure is logged and the next round comes all the same."""
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
        """Flush sooner than the interval says when much has come: a start after a crash is to find little to check."""
        while True:
            await asyncio.sleep(FLUSH_CHECK_INTERVAL_S)
            try:
                log_manager.flusher.flush_if_much_came()
            except Exception:
                logger.exception("flushing the logs failed")


def _maintenance_interval_ms(config: BrokerConfig) -> int:
    """How often logs are looked after: as often as anything that is done then is to be done.

    >>> properties = {"log.dirs": "d", "log.flush.scheduler.interval.ms": 250}
    >>> _maintenance_interval_ms(BrokerConfig.from_properties(properties))
    250
    """
    wanted_ms = min(config.log_retention_check_interval_ms, config.log_flush_scheduler_interval_ms)
    return min(max(wanted_ms, MAINTENANCE_INTERVAL_MS_MIN), MAINTENANCE_INTERVAL_MS_MAX)


def _limit_moves(log_dirs: LogDirs, metadata: MetadataCache) -> None:
    """Have replicas copied no faster than the config says, now and after each change of it."""

    def limit(_: object = None) -> None:
        log_dirs.limit_moves(metadata.config.replica_alter_log_dirs_io_max_bytes_per_second)

    limit()
    metadata.subscribe(limit)


def _forgetter(metrics: BrokerMetrics) -> Callable[[MetadataDelta], None]:
    """Forget the traffic of topics that are gone."""

    def forget(delta: MetadataDelta) -> None:
        for topic in delta.deleted:
            metrics.topics.pop(topic.name, None)

    return forget


def _poster(loop: asyncio.AbstractEventLoop) -> Post:
    """Have other threads call on the loop's thread; once the loop is closed, nobody is left to be told."""

    def post(call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return post
