"""The connections to other brokers, as configured: to the listener for brokers, at the addresses in the metadata."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.cluster.peer_listeners import PeerListeners
from headwater.logtier.config import BrokerConfig
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.peers.backoff import FailureNotices
from headwater.logtier.peers.controller_channel import ControllerChannel
from headwater.logtier.peers.link import LinkContext
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.outgoing import OutgoingNetwork
from headwater.logtier.runtime.random_bytes import RandomBytes

IDLE_SHARE: Final = 0.9
"""Part of connections.max.idle.ms after which an idle connection is replaced: the other broker must not close it first.
As in Kafka, brokers of a cluster have the same configs."""


class PeerConnections:
    """The connections to the other brokers, and channels to the controller; they follow the metadata.

    Invariant: a connection leads to a broker's present address and epoch in this broker's newest image.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataCache,
        network: OutgoingNetwork,
        clock: Clock,
        draw: Callable[[], float],
        random_bytes: RandomBytes,
    ) -> None:
        """Create the connections, of which each opens on demand; ConfigError for a missing login or key.

        Args:
            draw: Draws a number from [0, 1).
        """
        self._metadata = metadata
        self._listeners = PeerListeners(config)
        context = LinkContext(network, clock, draw, random_bytes, peer_settings(config))
        #: All connections, by broker and purpose.
        self.peers = Peers(self._address, self._security, context)
        self._clock = clock
        self._draw = draw
        self._request_timeout_ms = config.controller_socket_timeout_ms
        self._channels: list[ControllerChannel] = []
        self._refusals = FailureNotices()
        metadata.subscribe(self._metadata_changed)

    def channel(self) -> ControllerChannel:
        """Return another channel to the controller, whichever broker it is.

        The requests of one channel wait for each other, and for those of no other one: proposals of ISRs wait without a
        limit.
        """
        channel = ControllerChannel(
            self._controller,
            self.peers.sender(Purpose.CONTROLLER),
            self._clock,
            self._draw,
            request_timeout_ms=self._request_timeout_ms,
            refusals=self._refusals,
        )
        self._channels.append(channel)
        return channel

    async def aclose(self) -> None:
        """Close all connections for good."""
        await self.peers.aclose()

    def _address(self, broker_id: int) -> BrokerAddress | None:
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None:
            return None
        return BrokerAddress(*broker.reached_by(self._listeners.name(broker)), broker.epoch)

    def _security(self, broker_id: int) -> ClientSecurity:
        return self._listeners.security(self._metadata.image.brokers.get(broker_id))

    def _controller(self) -> int | None:
        controller_id = self._metadata.image.controller_id
        return None if controller_id == NO_BROKER else controller_id

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if delta.new.brokers is not delta.old.brokers:
            self.peers.metadata_changed()
        if delta.new.controller_id != delta.old.controller_id or delta.new.brokers is not delta.old.brokers:
            for channel in self._channels:
                channel.metadata_changed()


def peer_settings(config: BrokerConfig) -> PeerSettings:
    """Return the limits of connections to other brokers.

    >>> settings = peer_settings(BrokerConfig.from_properties({"node.id": 3, "connections.max.idle.ms": 1000}))
    >>> settings.client_id, settings.idle_ms_max
    ('broker-3', 900)
    """
    settings = PeerSettings(
        f"broker-{config.node_id}",
        request_timeout_ms=config.request_timeout_ms,
        setup_timeout_ms=config.socket_connection_setup_timeout_ms,
        receive_buffer_bytes=config.replica_socket_receive_buffer_bytes,
    )
    if config.connections_max_idle_ms > 0:
        return replace(settings, idle_ms_max=int(config.connections_max_idle_ms * IDLE_SHARE))
    return settings
