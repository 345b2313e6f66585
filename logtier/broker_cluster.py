"""The stages of a broker's start that only a cluster has. A single node does not import this module."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from headwater.logtier.cluster.membership import ClusterMembership
from headwater.logtier.cluster.peer_connections import PeerConnections
from headwater.logtier.config import BrokerConfig
from headwater.logtier.controller.controller import Controller
from headwater.logtier.controller.registration import BrokerAddresses
from headwater.logtier.log.log_manager import LogManager
from headwater.logtier.machine import Machine
from headwater.logtier.metadata.change_list import OrderedMetadataStore
from headwater.logtier.metadata.follower import MetadataFollower
from headwater.logtier.metadata.paths import BrokerProcess
from headwater.logtier.network.listeners import Listeners


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The parts of a broker in a cluster (`zookeeper.connect`)."""

    store: OrderedMetadataStore
    follower: MetadataFollower
    controller: Controller
    connections: PeerConnections

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
        process = BrokerProcess(
            tuple(each.directory_id for each in log_manager.directories if each.is_online),
            machine.boot_id(),
            log_manager.previous_broker_epoch,
        )
        membership = ClusterMembership(
            config,
            self.store,
            self.follower,
            self.controller,
            BrokerAddresses(inside.host, inside.port, config.broker_rack, listeners.advertised),
            process,
            on_failure,
        )
        log_manager.broker_epoch = lambda: membership.epoch_at_close
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
    return ClusterParts(store, follower, controller, connections)
