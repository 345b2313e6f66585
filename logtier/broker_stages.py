"""The stages of a broker's start: each takes the parts it needs, returns its own, and registers what closes them."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from headwater.logtier.config import BrokerConfig, ConfigError
from headwater.logtier.controller.bootstrap import bootstrap, bootstrap_cluster
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.metadata_changes import MetadataChanges
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.hold_offsets import HoldOffsets
from headwater.logtier.handlers.context import Services
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.quotas.configured_quotas import configured_quotas
from headwater.logtier.handlers.records import produce
from headwater.logtier.handlers.registry import BETWEEN_BROKERS, HANDLERS, advertised_versions
from headwater.logtier.log.cleaning.cleaner import LogCleaner
from headwater.logtier.log.durability import Post
from headwater.logtier.log.folders.log_directory import stored_cluster_ids
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.log.retention_holds import RetentionHolds
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.acl_follower import configured_authorizer
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.image import MetadataCache
from headwater.logtier.metadata.stored_levels import check_stored_levels
from headwater.logtier.network.listeners import ListenError, Listeners
from headwater.logtier.replication.fetch_session import FetchSessionCache
from headwater.logtier.replication.log_assignment import directories_of, is_held_elsewhere
from headwater.logtier.replication.partition_replication import no_followers
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.cold_sender import ColdReadPace, ColdSender
from headwater.logtier.runtime.metrics import BrokerMetrics
from headwater.logtier.runtime.read_ahead import ReadAhead
from headwater.logtier.security.scram import ScramUsers
from headwater.logtier.transaction.coordinator import TransactionCoordinator
from headwater.logtier.transaction.markers import MarkerWriter
from headwater.logtier.transaction.verifier import ClusterVerifier, TransactionVerifier

if TYPE_CHECKING:
    from headwater.logtier.broker_cluster import ClusterParts

OnFailure = Callable[[str], None]
"""Called with the reason when the broker must be stopped."""


class BrokerStartError(OSError):
    """The broker cannot start; the message gives the reason in one line."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class MetadataParts:
    """The metadata of the cluster as this broker has it, and the controller, active or not."""

    store: OrderedMetadataStore
    follower: MetadataFollower
    cache: MetadataCache
    controller: Controller


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of a started broker. `cluster` is None on a single node."""

    metadata: MetadataCache
    controller: Controller
    cluster: "ClusterParts | None"
    log_manager: LogManager
    replica_manager: ReplicaManager
    cleaner: LogCleaner
    holds: RetentionHolds
    services: Services
    listeners: Listeners


async def open_parts(
    config: BrokerConfig, machine: Machine, closing: AsyncExitStack, on_failure: OnFailure
) -> BrokerParts:
    """Open all parts, in the order of their dependence. Ports are bound, and clients wait until the listeners serve.

    Args:
        closing: Closes the opened parts in reverse order, also if a later part cannot be opened.

    Raises:
        BrokerStartError: A port is not available.
        ConfigError: A login or a key for ZooKeeper or for other brokers is missing or cannot be read.
        LogDirError, MetadataStoreError, CorruptNodeError: A folder is not available, or data is damaged.
        UnsupportedFeaturesError: The cluster has feature levels of another release.
    """
    opened = await _open_metadata(config, machine, closing, on_failure)
    metadata, controller = opened.cache, opened.controller
    log_manager = _open_logs(config, machine, metadata, closing, on_failure)
    cluster = None if config.zookeeper_connect is None else _open_cluster(config, machine, opened, closing)
    if cluster is not None:
        await cluster.check_store(log_manager)
    read_ahead = machine.read_ahead()
    closing.callback(read_ahead.close)
    replica_manager = _open_replicas(config, machine, metadata, log_manager, read_ahead, cluster, closing)
    holds = RetentionHolds(machine.clock)
    cleaner = _start_cleaner(machine, metadata, log_manager, replica_manager, holds, closing)
    remote = None if cluster is None else cluster.open_remote_changes()
    changes: MetadataChanges = controller if remote is None else remote
    groups = GroupCoordinator(config, machine.clock, machine.prng, replica_manager, changes, metadata)
    others = None if cluster is None else cluster.open_remote_transactions()
    markers = MarkerWriter(config.node_id, replica_manager, metadata, groups.transactional.marker_written, others)
    closing.push_async_callback(markers.aclose)
    transactions = TransactionCoordinator(
        config, machine.clock, replica_manager, changes, metadata, changes.producer_ids.next, markers
    )
    verifier = transactions if others is None else ClusterVerifier(config.node_id, transactions, others)
    services = _make_services(
        config,
        machine,
        metadata,
        controller,
        replica_manager,
        groups,
        transactions,
        verifier,
        markers,
        read_ahead,
        closing,
    )
    if cluster is not None:
        services.remote_changes = remote
        cluster.check_leaderships(services)
        cluster.serve_brokers(services)
    holds.groups = (
        HoldOffsets(config.node_id, groups, lambda: metadata.image)
        if cluster is None
        else cluster.hold_offsets(services)
    )
    listeners = _open_listeners(config, machine, services, closing)
    return BrokerParts(metadata, controller, cluster, log_manager, replica_manager, cleaner, holds, services, listeners)


async def _open_metadata(
    config: BrokerConfig, machine: Machine, closing: AsyncExitStack, on_failure: OnFailure
) -> MetadataParts:
    """Open the metadata store and read it; become controller, unless other brokers share the store."""
    store = machine.metadata_store(config, machine.disk, on_failure)
    await store.start()
    closing.push_async_callback(store.close)
    # Before anything is decoded, or written.
    await check_stored_levels(store)
    metadata = MetadataCache(config)
    follower = MetadataFollower(store, metadata, on_failure)
    controller = Controller(config, machine.clock, machine.prng, store, follower)
    if config.zookeeper_connect is None:
        await bootstrap(store, machine.prng, machine.random_bytes)
    else:
        folders = stored_cluster_ids(machine.disk, config.log_dirs)
        await bootstrap_cluster(store, machine.prng, machine.random_bytes, folders)
    await follower.start()
    closing.push_async_callback(follower.stop)
    if config.zookeeper_connect is None:
        await controller.start()
        closing.push_async_callback(controller.stop)
    return MetadataParts(store, follower, metadata, controller)


def _open_cluster(
    config: BrokerConfig, machine: Machine, opened: MetadataParts, closing: AsyncExitStack
) -> "ClusterParts":
    """Prepare the connections to other brokers, which follow the metadata from now on."""
    # Only here: a single node has no use for what it imports, 1.4 MiB.
    from headwater.logtier.broker_cluster import ClusterParts

    return ClusterParts(config, machine, opened.store, opened.follower, opened.controller, closing)


def _open_logs(
    config: BrokerConfig, machine: Machine, metadata: MetadataCache, closing: AsyncExitStack, on_failure: OnFailure
) -> LogManager:
    """Lock the log folders and recover their logs."""
    image = metadata.image
    log_manager = LogManager(
        config,
        machine.disk,
        machine.clock,
        machine.prng,
        cluster_id=image.cluster_id,
        topic_configs={topic.name: metadata.topic_config(topic) for topic in image.topics.values()},
        topic_ids={topic.name: topic.topic_id for topic in image.topics.values()},
        replica_directories=directories_of(config.node_id, image),
        is_held_elsewhere=functools.partial(is_held_elsewhere, config.node_id, image),
        post=_poster(asyncio.get_running_loop()),
        on_fatal=on_failure,
    )
    log_manager.start()
    closing.callback(log_manager.close)
    return log_manager


def _open_replicas(
    config: BrokerConfig,
    machine: Machine,
    metadata: MetadataCache,
    log_manager: LogManager,
    read_ahead: ReadAhead,
    cluster: "ClusterParts | None",
    closing: AsyncExitStack,
) -> ReplicaManager:
    """Take over the logs of the image, and follow its changes."""
    call_later = asyncio.get_running_loop().call_later
    proposals = None if cluster is None else cluster.open_proposals()
    replica_manager = ReplicaManager(
        config.node_id,
        metadata.topic_config,
        log_manager,
        machine.clock,
        call_later,
        read_ahead,
        no_followers if proposals is None else proposals.propose,
    )
    if proposals is not None:
        proposals.decided = replica_manager.partition_replication.isr_decided
    replica_manager.start(metadata.image)
    closing.callback(replica_manager.partition_replication.stop)
    _limit_replication(replica_manager, metadata, machine.clock)
    replica_manager.log_dirs.resume()
    closing.push_async_callback(replica_manager.log_dirs.stop)
    # Only now: the logs of the first image are opened with the image itself, before there is a change to follow.
    metadata.prepare_with(replica_manager.prepare)
    metadata.subscribe(replica_manager.apply)
    if cluster is not None:
        cluster.open_fetchers(replica_manager)
    return replica_manager


def _start_cleaner(
    machine: Machine,
    metadata: MetadataCache,
    log_manager: LogManager,
    replica_manager: ReplicaManager,
    holds: RetentionHolds,
    closing: AsyncExitStack,
) -> LogCleaner:
    cleaner = LogCleaner(
        lambda: metadata.config,
        machine.disk,
        machine.clock,
        log_manager.logs,
        lambda topic_partition: replica_manager.partition(topic_partition).last_stable_offset,
        holds=holds,
        new_worker=machine.cleaner_worker,
    )
    cleaner.start()
    closing.push_async_callback(cleaner.stop)
    return cleaner


def _make_services(
    config: BrokerConfig,
    machine: Machine,
    metadata: MetadataCache,
    controller: Controller,
    replica_manager: ReplicaManager,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    verifier: TransactionVerifier,
    markers: MarkerWriter,
    read_ahead: ReadAhead,
    closing: AsyncExitStack,
) -> Services:
    """Gather the components that handlers use."""
    services = Services(
        machine.clock,
        machine.prng,
        metadata,
        controller,
        replica_manager,
        groups,
        transactions,
        verifier,
        markers,
        advertised_versions(),
        authorizer=configured_authorizer(metadata),
        fetch_sessions=FetchSessionCache(config.max_incremental_fetch_session_cache_slots, machine.prng),
        read_ahead=read_ahead,
        quotas=configured_quotas(metadata),
    )
    closing.callback(services.record_work.close)
    return services


def _open_listeners(config: BrokerConfig, machine: Machine, services: Services, closing: AsyncExitStack) -> Listeners:
    """Open every port."""
    metadata = services.metadata
    cold_sender = _cold_sender(machine.clock, services.metrics, metadata)
    closing.callback(cold_sender.close)
    users = ScramUsers(
        lambda: metadata.image.scram_credentials, lambda: metadata.image.unknown_users_key, machine.random_bytes
    )
    listeners = Listeners(
        config,
        machine.network(cold_sender),
        machine.clock,
        Dispatcher(services, HANDLERS, BETWEEN_BROKERS).dispatch,
        users,
        host_wait_ms=services.quotas.record_connection,
        cannot_read=services.replica_manager.cannot_read,
    )
    closing.callback(listeners.stop)
    try:
        listeners.open()
    except (ListenError, ConfigError) as error:
        raise BrokerStartError(str(error)) from error
    return listeners


def _cold_sender(clock: Clock, metrics: BrokerMetrics, metadata: MetadataCache) -> ColdSender:
    """Create the sender of cold data with the configured rate."""
    produced = metrics.api(produce.API_KEY)
    cores = os.cpu_count() or 1
    pace = ColdReadPace(
        clock,
        lambda: cores * metadata.config.cold_read_max_bytes_per_second_per_core,
        lambda: produced.request_bytes,
    )
    return ColdSender(clock, pace.bytes_per_s)


async def serve_metrics(config: BrokerConfig, parts: BrokerParts, closing: AsyncExitStack) -> int:
    """Open the Prometheus endpoint and return its port; its library is imported only now, while clients are served."""
    services = parts.services
    endpoint_module = await asyncio.to_thread(import_module, "headwater.logtier.metrics.endpoint")
    cluster = parts.cluster
    remote_end = _no_remote_end if cluster is None else cluster.open_group_ends(services.groups).end_offset
    collector = endpoint_module.BrokerCollector(
        asyncio.get_running_loop(),
        services,
        services.metrics,
        parts.cleaner.counters,
        parts.holds.states,
        parts.listeners.connections,
        lambda: None if cluster is None else cluster.store.state,
        remote_end,
    )
    endpoint = endpoint_module.MetricsEndpoint(collector)
    try:
        port: int = endpoint.start(config.prometheus_host, config.prometheus_port)
    except OSError as error:
        raise BrokerStartError(
            f"cannot serve metrics at {config.prometheus_host}:{config.prometheus_port}: "
            f"{error.strerror or error}; stop the process that uses the port or choose another port "
            "(prometheus.port; 0 takes any free port)"
        ) from error
    closing.push_async_callback(asyncio.to_thread, endpoint.stop)
    return port


def _no_remote_end(_: object, __: object) -> None:
    """Return the end offset of a partition that another broker leads: there is none on a single node."""


def _limit_replication(replica_manager: ReplicaManager, metadata: MetadataCache, clock: Clock) -> None:
    """Apply the configured rates of replica moves and of throttled replicas, now and after each change."""

    def limit(_: object = None) -> None:
        config = metadata.config
        replica_manager.log_dirs.limit_moves(config.replica_alter_log_dirs_io_max_bytes_per_second)
        replica_manager.throttles.change_rates(
            config.leader_replication_throttled_rate, config.follower_replication_throttled_rate, clock.monotonic_ms()
        )

    limit()
    metadata.subscribe(limit)


def _poster(loop: asyncio.AbstractEventLoop) -> Post:
    """Return a function that runs calls of other threads on the loop's thread, and drops them after the loop closed."""

    def post(call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call)

    return post
