"""The stages of a broker's start that only a cluster has. A single node does not import this module."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from headwater.logtier.cluster.controlled_shutdown import shut_down_in_control
from headwater.logtier.cluster.forwarding import Forwarding
from headwater.logtier.cluster.isr_proposals import IsrProposals
from headwater.logtier.cluster.membership import ClusterMembership
from headwater.logtier.cluster.peer_connections import PeerConnections
from headwater.logtier.cluster.remote_changes import RemoteChanges
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.registration import BrokerAddresses
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.network.listeners import Listeners
from headwater.logtier.replication.fetching.replica_fetchers import ReplicaFetchers
from headwater.logtier.replication.replica_manager import ReplicaManager
from headwater.logtier.runtime.clock import Clock

NO_BROKER_EPOCH: Final = -1


@dataclass(slots=True)
class ClusterParts:
    """The parts of a broker in a cluster (`zookeeper.connect`)."""

    broker_id: int
    clock: Clock
    store: OrderedMetadataStore
    follower: MetadataFollower
    controller: Controller
    connections: PeerConnections
    #: Set once, by `make_membership`.
    membership: ClusterMembership | None = None
    #: Set once, when the replicas are open.
    fetchers: ReplicaFetchers | None = None

    def broker_epoch(self) -> int:
        """Return the epoch of this process's last registration, -1 before the first.

        The image may still have that of the process before, for which this one must not speak (KIP-903).
        """
        return NO_BROKER_EPOCH if self.membership is None else self.membership.broker_epoch

    async def shut_down(self) -> None:
        """Let other brokers lead this broker's partitions, as far as they can; while it serves."""
        connections = self.connections
        await shut_down_in_control(
            self.broker_id,
            connections.channel_beside(),
            self.clock,
            self.broker_epoch,
            lambda: self.store.end_offset,
        )

    def begin_replication(self) -> None:
        """Follow the leaders of the image: only now is this process registered, under an epoch of its own."""
        assert self.fetchers is not None
        self.fetchers.start()

    def make_membership(
        self,
        config: BrokerConfig,
        machine: Machine,
        log_manager: LogManager,
        listeners: Listeners,
        closing: AsyncExitStack,
        on_failure: Callable[[str], None],
    ) -> ClusterMembership:
        """Prepare the registration of this broker, with its locked folders and the addresses of its open listeners."""
        inside = listeners.inside
        process = BrokerProcess(log_manager.online_directory_ids, machine.boot_id(), log_manager.previous_broker_epoch)
        membership = self.membership = ClusterMembership(
            config,
            self.store,
            self.follower,
            self.controller,
            BrokerAddresses(inside.host, inside.port, config.broker_rack, listeners.advertised),
            process,
            on_failure,
        )
        log_manager.broker_epoch = lambda: membership.epoch_at_close
        log_manager.on_failed_directory = lambda: membership.folder_failed(log_manager.online_directory_ids)
        # Also if the start fails from now on.
        closing.push_async_callback(membership.leave)
        return membership


def open_cluster(
    config: BrokerConfig,
    machine: Machine,
    store: OrderedMetadataStore,
    follower: MetadataFollower,
    controller: Controller,
    closing: AsyncExitStack,
) -> ClusterParts:
    """Prepare the connections to other brokers, which follow the metadata from now on; ConfigError."""
    connections = PeerConnections(
        config, follower.cache, machine.outgoing, machine.clock, machine.prng.random, machine.random_bytes
    )
    closing.push_async_callback(connections.aclose)
    return ClusterParts(config.node_id, machine.clock, store, follower, controller, connections)


def open_proposals(
    config: BrokerConfig, machine: Machine, cluster: ClusterParts, closing: AsyncExitStack
) -> IsrProposals:
    """Prepare the proposals of ISRs; `decided` is to be set before the first one."""
    proposals = IsrProposals(
        config.node_id, cluster.connections.channel, cluster.follower.cache, machine.clock, cluster.broker_epoch
    )
    closing.push_async_callback(proposals.aclose)
    return proposals


def open_fetchers(
    config: BrokerConfig,
    machine: Machine,
    cluster: ClusterParts,
    replica_manager: ReplicaManager,
    closing: AsyncExitStack,
) -> ReplicaFetchers:
    """Prepare the fetches of followers, which `begin_replication` starts."""
    metadata = cluster.follower.cache
    fetchers = ReplicaFetchers(
        config.node_id,
        cluster.connections.peers,
        replica_manager,
        metadata,
        machine.clock,
        cluster.broker_epoch,
        lambda: metadata.config,
    )
    metadata.subscribe(fetchers.metadata_changed)
    closing.push_async_callback(fetchers.aclose)
    return fetchers


def open_remote_changes(config: BrokerConfig, cluster: ClusterParts) -> RemoteChanges:
    """Prepare what this broker asks of the controller for itself."""
    # Apart from the proposals of ISRs, which wait without a limit.
    channel = cluster.connections.channel_beside()
    return RemoteChanges(config.node_id, channel, cluster.follower, cluster.broker_epoch)


def open_forwarding(config: BrokerConfig, machine: Machine, cluster: ClusterParts) -> Forwarding:
    """Prepare the forwarding of requests to the controller."""
    return Forwarding(
        config.node_id, cluster.connections.peers, cluster.follower.cache, machine.clock, machine.prng.random
    )
