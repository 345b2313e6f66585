"""The stages of a broker's start that only a cluster has. A single node does not import this module."""

from collections.abc import Callable
from contextlib import AsyncExitStack

from headwater.logtier.cluster.applied_changes import AppliedChanges, read_applied_changes
from headwater.logtier.cluster.controlled_shutdown import shut_down_in_control
from headwater.logtier.cluster.forwarding import Forwarding
from headwater.logtier.cluster.group_ends import GroupEnds
from headwater.logtier.cluster.isr_proposals import IsrProposals
from headwater.logtier.cluster.leadership_checks import LeadershipChecks
from headwater.logtier.cluster.log_dir_reports import LogDirReports
from headwater.logtier.cluster.membership import ClusterMembership
from headwater.logtier.cluster.peer_connections import PeerConnections
from headwater.logtier.cluster.remote_changes import RemoteChanges
from headwater.logtier.cluster.remote_group_offsets import RemoteGroupOffsets
from headwater.logtier.cluster.remote_transactions import RemoteTransactions
from headwater.logtier.cluster.restored_store import check_applied_changes, check_logs_not_ahead
from headwater.logtier.cluster.session_watch import SessionWatch
from headwater.logtier.config import BrokerConfig
from headwater.logtier.config.cluster import inter_broker_listener
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.registration import BrokerAddresses
from headwater.logtier.group.coordinator import GroupCoordinator
from headwater.logtier.group.hold_offsets import HoldOffsets
from headwater.logtier.handlers.context import Services
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.peers.peers import Purpose
from headwater.logtier.protocol.features import SUPPORTED_FEATURES, stated_ranges
from headwater.logtier.replication.fetching.replica_fetchers import ReplicaFetchers
from headwater.logtier.replication.follower_state import UNKNOWN_BROKER_EPOCH
from headwater.logtier.replication.replica_manager import ReplicaManager


class ClusterParts:
    """The parts of a broker in a cluster (`zookeeper.connect`), created one by one by the stages of its start.

    Each method registers what closes its part, so that parts close in reverse order.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        store: OrderedMetadataStore,
        follower: MetadataFollower,
        controller: Controller,
        closing: AsyncExitStack,
    ) -> None:
        """Prepare the connections to other brokers, which follow the metadata from now on; ConfigError."""
        self._config = config
        self._machine = machine
        self._follower = follower
        self._controller = controller
        self._closing = closing
        self._membership: ClusterMembership | None = None
        self._fetchers: ReplicaFetchers | None = None
        self._reports: LogDirReports | None = None
        self.store = store
        self._connections = PeerConnections(
            config, follower.cache, machine.outgoing, machine.clock, machine.prng.random, machine.random_bytes
        )
        closing.push_async_callback(self._connections.aclose)

    def _broker_epoch(self) -> int:
        """Return the epoch of this process's last registration, -1 before the first.

        The image may still have that of the process before, for which this one must not speak (KIP-903).
        """
        return UNKNOWN_BROKER_EPOCH if self._membership is None else self._membership.broker_epoch

    # -- the stages of the start

    async def check_store(self, log_manager: LogManager) -> None:
        """Check that ZooKeeper is not older than the logs; StoreBehindError, CorruptNodeError."""
        await check_applied_changes(self.store, read_applied_changes(log_manager))
        await check_logs_not_ahead(self.store, self._follower.image, log_manager.logs.values())

    def open_proposals(self) -> IsrProposals:
        """Prepare the proposals of ISRs; `decided` is to be set before the first one."""
        proposals = IsrProposals(
            self._config.node_id,
            self._connections.channel(),
            self._follower.cache,
            self._machine.clock,
            self._broker_epoch,
        )
        self._closing.push_async_callback(proposals.aclose)
        return proposals

    def open_fetchers(self, replica_manager: ReplicaManager) -> None:
        """Prepare the fetches of followers, which `join` starts. The replica manager follows the metadata already."""
        metadata = self._follower.cache
        fetchers = self._fetchers = ReplicaFetchers(
            self._config.node_id,
            self._connections.peers,
            replica_manager,
            metadata,
            self._machine.clock,
            self._broker_epoch,
            lambda: metadata.config,
        )
        metadata.subscribe(fetchers.metadata_changed)
        self._closing.push_async_callback(fetchers.aclose)

    def open_remote_changes(self) -> RemoteChanges:
        """Prepare what this broker asks of the controller for itself."""
        return RemoteChanges(self._config.node_id, self._connections.channel(), self._follower, self._broker_epoch)

    def open_remote_transactions(self) -> RemoteTransactions:
        """Prepare what this broker asks of others for transactions."""
        transactions = RemoteTransactions(self._connections.peers)
        self._closing.push_async_callback(transactions.aclose)
        return transactions

    def check_leaderships(self, services: Services) -> None:
        """Answer from memory only what no other broker can know better, from now on."""
        services.leadership_checks = LeadershipChecks(
            self._config.node_id,
            self._connections.peers,
            self.store,
            services.replica_manager.partition,
            lambda: self._follower.image,
        )
        self._closing.push_async_callback(services.leadership_checks.aclose)

    def serve_brokers(self, services: Services) -> None:
        """Serve the requests of other brokers, and forward those of clients that the controller executes."""
        services.inter_broker_listener = inter_broker_listener(self._config).name
        services.forwarding = Forwarding(
            self._config.node_id,
            self._connections.peers,
            self._follower.cache,
            self._machine.clock,
            self._machine.prng.random,
        )

    async def join(self, log_manager: LogManager, listeners: Listeners, on_failure: Callable[[str], None]) -> None:
        """Register this broker, with its locked folders and the addresses of its open listeners; then replicate.

        Raises:
            BrokerIdInUseError: Another broker has the id.
            MetadataStoreError: The store is not available.
        """
        inside = listeners.inside
        process = BrokerProcess(
            log_manager.online_folders,
            self._machine.boot_id(),
            log_manager.previous_broker_epoch,
            features=stated_ranges(SUPPORTED_FEATURES),
        )
        membership = self._membership = ClusterMembership(
            self._config,
            self.store,
            self._follower,
            self._controller,
            BrokerAddresses(inside.host, inside.port, self._config.broker_rack, listeners.advertised),
            process,
            on_failure,
        )
        log_manager.broker_epoch = lambda: membership.epoch_at_close
        applied_changes = AppliedChanges(log_manager, lambda: self._follower.applied)
        self._closing.callback(applied_changes.close)
        # Also if the start fails from now on.
        self._closing.push_async_callback(membership.leave)
        reports = self._reports = LogDirReports(
            self._config.node_id,
            self._connections.channel(),
            log_manager,
            self._follower,
            membership.update_folders,
            self._broker_epoch,
        )
        self._closing.push_async_callback(reports.aclose)
        await membership.join()
        assert self._fetchers is not None
        # Only now is this process registered, under an epoch of its own.
        self._fetchers.start()
        reports.start()
        applied_changes.start()

    def watch_session(self, services: Services) -> None:
        """Lead, coordinate and answer only while the session goes on; `join` has registered this broker.

        The coordinators have started, and the listeners do not serve yet.
        """
        membership = self._membership
        assert membership is not None
        replication = services.replica_manager.partition_replication
        watch = services.session_watch = SessionWatch(
            self.store,
            self._follower.cache,
            self._config.node_id,
            membership,
            replication,
            self._machine.clock,
            self._config.zookeeper_session_timeout_ms,
        )
        self._closing.push_async_callback(watch.aclose)

        def fenced() -> None:
            try:
                services.groups.leadership_changed()
            finally:
                services.transactions.leadership_changed()

        replication.on_fenced = fenced
        replication.is_store_silent = watch.is_store_silent
        replication.is_in_doubt = watch.is_in_doubt
        membership.on_registration(watch.registered, watch.cluster_gone)
        watch.start()

    def open_group_ends(self, groups: GroupCoordinator) -> GroupEnds:
        """Request the ends of the groups' partitions from their leaders from now on; only the metrics need them."""
        send = self._connections.peers.sender(Purpose.GROUP_ENDS)
        ends = GroupEnds(self._config.node_id, send, groups, self._follower.cache, self._machine.clock)
        self._closing.push_async_callback(ends.aclose)
        ends.start()
        return ends

    def hold_offsets(self, services: Services) -> HoldOffsets:
        """Return what asks all coordinators for the offsets of groups that hold back retention."""
        checks = services.leadership_checks
        assert checks is not None
        return HoldOffsets(
            self._config.node_id,
            services.groups,
            lambda: self._follower.image,
            checks.check,
            RemoteGroupOffsets(self._connections.peers.sender(Purpose.GROUP_OFFSETS)).committed,
        )

    async def leave(self) -> None:
        """Let other brokers lead this broker's partitions, as far as they can, then leave the cluster.

        To be called while this broker serves.
        """
        assert self._membership is not None
        assert self._reports is not None
        await self._reports.conclude()  # The controller would take a later report for a change of mind.
        await shut_down_in_control(
            self._config.node_id,
            self._connections.channel(),
            self._machine.clock,
            self._broker_epoch,
            lambda: self.store.end_offset,
        )
        await self._membership.leave()
