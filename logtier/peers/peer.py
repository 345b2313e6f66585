"""Another broker, for one purpose: a link that is opened on demand, with back-off after failures."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import AuthenticationError, BrokerConnectionError, ClientError
from headwater.logtier.client.security import ClientSecurity
from headwater.logtier.peers.backoff import ExponentialBackoff, FailureNotices
from headwater.logtier.peers.errors import PeerBusyError
from headwater.logtier.peers.link import LinkContext, PeerLink
from headwater.logtier.peers.pending_call import PendingCall
from headwater.logtier.peers.remedies import remedy
from headwater.logtier.peers.settings import BrokerAddress

__all__ = ["Peer"]

logger = logging.getLogger(__name__)

#: Calls that wait for a connection, or for room among the requests in flight. A request waits in memory; who has this
#: many to one broker has no use for further ones before it answers.
WAITING_CALLS_MAX: Final = 1_024

_T = TypeVar("_T")


class Peer:
    """Requests to one broker, in the order of the calls; used on one event loop, by `Peers`.

    A link is opened for a waiting call only: a broker that nobody calls is not connected to. If the link cannot be
    opened, or ends, all its calls fail, and the calls after that wait for the end of the back-off. A caller that
    repeats its call therefore needs no delay of its own.

    Invariant: at most one link is open, to the broker's present address; calls wait here only without a link.

    Args:
        address: Returns the broker's present address, None if it has none.
        security: Returns the present settings of TLS and SASL.
        notices: Shared by the connections to this broker: one log line for one cause.
    """

    def __init__(
        self,
        broker_id: int,
        address: Callable[[], BrokerAddress | None],
        security: Callable[[], ClientSecurity],
        notices: FailureNotices,
        context: LinkContext,
    ) -> None:
        self._name = f"broker {broker_id}"
        self._address = address
        self._security = security
        self._notices = notices
        self._context = context
        settings = context.settings
        self._backoff = ExponentialBackoff(
            settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, context.draw
        )
        self._next_attempt_ms = 0
        self._failed_address: BrokerAddress | None = None
        self._link: PeerLink | None = None
        self._waiting: deque[PendingCall[Any]] = deque()
        self._attempt: asyncio.TimerHandle | None = None
        self._closed_by: ClientError | None = None

    def send(self, request: Request[_T], timeout_ms: int | None = None) -> asyncio.Future[_T]:
        """Send a request after those of earlier calls.

        Args:
            timeout_ms: Time limit from now to the response, also for the connection; by default `request.timeout.ms`.

        Returns:
            The response. The future's exception is a ClientError: BrokerConnectionError (the broker cannot be reached,
            or the connection ended before the response: the request may have been executed), RequestTimeoutError,
            AuthenticationError, InvalidResponseError, UnsupportedVersionError, PeerBusyError, PeersClosedError.
        """
        limit_ms = self._context.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        call = PendingCall(request, limit_ms, self._name)
        if self._closed_by is not None:
            call.failed(self._closed_by)
            return call.future
        address = self.drop_if_moved()
        if address is None:
            call.failed(BrokerConnectionError(f"{self._name} has no address: it is not registered"))
        elif self._is_full():
            call.failed(PeerBusyError(f"{WAITING_CALLS_MAX} requests to {self._name} wait already"))
        elif self._link is not None:
            self._link.send(call)
        else:
            self._waiting.append(call)
            self._schedule()
        return call.future

    def drop_if_moved(self) -> BrokerAddress | None:
        """Close the link if the broker has another address or epoch now, or none; return the address."""
        address = self._address()
        if self._link is not None and (self._link.address != address or self._link.is_stale):
            self._drop(self._link, address)
        if address is None:
            self._fail_waiting(BrokerConnectionError(f"{self._name} is no longer registered"))
        elif self._failed_address is not None and self._failed_address != address:
            self._begin_again()
        return address

    def _drop(self, link: PeerLink, address: BrokerAddress | None) -> None:
        if link.address == address:
            reason = "was idle for too long"
        elif address is None:
            reason = "is no longer registered"
        else:
            reason = f"moved to {address}"
        # First: what follows is no failure of the link.
        self._link = None
        link.close(BrokerConnectionError(f"{link.name} {reason}"))
        self._begin_again()

    def _begin_again(self) -> None:
        """Forget failures: those of another address say nothing about this one."""
        self._backoff.reset()
        self._next_attempt_ms = 0
        self._failed_address = None
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._waiting:
            self._schedule()

    def _is_full(self) -> bool:
        link = self._link
        if link is not None:
            if link.waiting_calls >= WAITING_CALLS_MAX:
                link.drop_unwanted()
            return link.waiting_calls >= WAITING_CALLS_MAX
        if len(self._waiting) >= WAITING_CALLS_MAX:
            self._waiting = deque(call for call in self._waiting if call.is_wanted)
        return len(self._waiting) >= WAITING_CALLS_MAX

    def _schedule(self) -> None:
        """Open a link now, or at the end of the back-off."""
        if self._attempt is not None:
            return
        delay_ms = self._next_attempt_ms - self._context.clock.monotonic_ms()
        if delay_ms <= 0:
            self._open()
        else:
            self._attempt = asyncio.get_running_loop().call_later(delay_ms / 1000, self._open)

    def _open(self) -> None:
        """Open a link for the waiting calls, unless none is left."""
        self._attempt = None
        waiting = [call for call in self._waiting if call.is_wanted]
        self._waiting.clear()
        address = self._address() if waiting else None
        if address is None:
            for call in waiting:
                call.failed(BrokerConnectionError(f"{self._name} is no longer registered"))
            return
        security = self._security()
        self._notices.use(security)
        link = self._link = PeerLink(self._name, address, security, self._context, self)
        for call in waiting:
            link.send(call)

    def link_answered(self) -> None:
        """Handle the first response on a link."""
        self._backoff.reset()
        self._failed_address = None
        if self._notices.forget() and self._link is not None:
            logger.info("%s answers", self._link.name)

    def link_closed(self, link: PeerLink, failure: ClientError, *, was_idle: bool) -> None:
        """Handle the end of a link: begin the back-off, and log the reason if it is new and a call failed by it."""
        if link is not self._link:
            return
        self._link = None
        settings = self._context.settings
        refusal = failure if isinstance(failure, AuthenticationError) else None
        now_ms = self._context.clock.monotonic_ms()
        delay_ms = self._backoff.next_delay_ms(None if refusal is None else settings.refused_backoff_max_ms)
        self._next_attempt_ms = now_ms + delay_ms
        self._failed_address = link.address
        if was_idle or not self._notices.is_due(str(failure), now_ms):
            return
        if refusal is not None:
            logger.error("%s; %s; the broker tries again", refusal, remedy(refusal, link.security))
        elif link.was_ready:
            logger.info("%s", failure)
        else:
            logger.warning("%s; the broker tries again", failure)

    def _fail_waiting(self, failure: ClientError) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        for call in waiting:
            call.failed(failure)

    def close(self, failure: ClientError) -> PeerLink | None:
        """Close the link and fail the calls, now and later; return the link, if one was open."""
        self._closed_by = failure
        if self._attempt is not None:
            self._attempt.cancel()
        self._fail_waiting(failure)
        link, self._link = self._link, None
        if link is not None:
            link.close(failure)
        return link
