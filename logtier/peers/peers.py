"""All connections of this broker to other brokers."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import BrokerConnectionError
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.peers.backoff import FailureNotices
from headwater.logtier.peers.errors import PeersClosedError
from headwater.logtier.peers.link import LinkContext
from headwater.logtier.peers.peer import Peer
from headwater.logtier.peers.settings import BrokerAddress

__all__ = ["Peers", "Purpose", "SendToBroker"]

ALL_CLOSED: Final = "the connections to other brokers are closed"

_T = TypeVar("_T")


class Purpose(enum.Enum):
    """What a connection is for.

    A request waits for the earlier ones of its connection, so long polls, bulk data and short requests have
    connections of their own.
    """

    FETCH_IN_SYNC = "fetches of replicas in the ISR"
    FETCH_CATCHING_UP = "fetches of replicas that catch up"
    OFFSETS = "look-ups of epochs and offsets at leaders"
    CONTROLLER = "requests of this broker to the controller"
    FORWARDING = "requests of clients, forwarded to the controller"
    MARKERS = "markers of transactions"
    VERIFICATIONS = "verifications of transactions"
    LEADERSHIPS = "checks that no other replica leads in a newer epoch"
    GROUP_ENDS = "look-ups of the ends of groups' partitions, for metrics"
    GROUP_OFFSETS = "look-ups of groups' offsets, for holds of retention"


class SendToBroker(Protocol):
    """Sends requests for one purpose."""

    def __call__(self, broker_id: int, request: Request[_T], timeout_ms: int) -> asyncio.Future[_T]:
        """Send the request; the future's exception is a ClientError."""


class Peers:
    """One `Peer` for each broker and purpose, made on demand; used on one event loop.

    Args:
        address: Returns a broker's address for brokers in the newest metadata, None if the broker is not registered.
        security: Returns the present settings of TLS and SASL of connections to a broker.
    """

    def __init__(
        self,
        address: Callable[[int], BrokerAddress | None],
        security: Callable[[int], ClientSecurity],
        context: LinkContext,
    ) -> None:
        self._address = address
        self._security = security
        self._context = context
        self._peers: dict[tuple[int, Purpose], Peer] = {}
        self._notices: dict[int, FailureNotices] = {}
        self._is_closed = False

    def send(
        self, broker_id: int, purpose: Purpose, request: Request[_T], timeout_ms: int | None = None
    ) -> asyncio.Future[_T]:
        """Send a request after the earlier ones of its purpose to the broker; see `Peer.send`."""
        peer = self._peers.get((broker_id, purpose))
        if peer is None:
            peer = self._add(broker_id, purpose)
        return peer.send(request, timeout_ms)

    async def call(self, broker_id: int, purpose: Purpose, request: Request[_T], timeout_ms: int | None = None) -> _T:
        """Send a request and wait for its response; raises the errors of `Peer.send`.

        A cancelled call does not end the request at the broker.
        """
        return await self.send(broker_id, purpose, request, timeout_ms)

    def sender(self, purpose: Purpose) -> SendToBroker:
        """Return `send` for one purpose."""

        def send(broker_id: int, request: Request[_T], timeout_ms: int) -> asyncio.Future[_T]:
            return self.send(broker_id, purpose, request, timeout_ms)

        return send

    def _add(self, broker_id: int, purpose: Purpose) -> Peer:
        notices = self._notices.setdefault(broker_id, FailureNotices())
        peer = Peer(
            broker_id,
            lambda: self._address(broker_id),
            lambda: self._security(broker_id),
            notices,
            self._context,
        )
        if self._is_closed:
            peer.close(PeersClosedError(ALL_CLOSED))
        else:
            self._peers[broker_id, purpose] = peer
        return peer

    def metadata_changed(self) -> None:
        """Close the connections to brokers that moved, registered again, or are gone; for each new image."""
        for (broker_id, purpose), peer in list(self._peers.items()):
            if peer.drop_if_moved() is None:
                del self._peers[broker_id, purpose]
                self._notices.pop(broker_id, None)
                peer.close(BrokerConnectionError(f"broker {broker_id} is no longer registered"))

    def close(self, broker_id: int) -> None:
        """Close the connections to one broker; their calls fail. A later call connects again."""
        self._notices.pop(broker_id, None)
        for key in [key for key in self._peers if key[0] == broker_id]:
            self._peers.pop(key).close(BrokerConnectionError(f"the connections to broker {broker_id} were closed"))

    async def aclose(self) -> None:
        """Close all connections for good, and wait for the attempts to connect."""
        self._is_closed = True
        peers = list(self._peers.values())
        self._peers.clear()
        for link in [peer.close(PeersClosedError(ALL_CLOSED)) for peer in peers]:
            if link is not None:
                await link.ended()
