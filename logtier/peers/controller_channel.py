"""Requests to the controller, whichever broker it is, repeated until it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import (
    ClientError,
    RequestTimeoutError,
    UnsupportedVersionError,
    error_name,
)
from headwater.logtier.peers.backoff import ExponentialBackoff, FailureNotices
from headwater.logtier.peers.errors import PeersClosedError
from headwater.logtier.peers.peers import SendToBroker
from headwater.logtier.peers.remedies import UNAUTHORIZED_REMEDY
from headwater.logtier.runtime.clock import Clock

__all__ = ["CLUSTER_AUTHORIZATION_FAILED", "NOT_CONTROLLER", "STALE_BROKER_EPOCH", "ControllerChannel"]

logger = logging.getLogger(__name__)

NOT_CONTROLLER: Final = 41
STALE_BROKER_EPOCH: Final = 77
CLUSTER_AUTHORIZATION_FAILED: Final = 31

#: Delays between attempts, as `retry.backoff.ms` and `retry.backoff.max.ms` of Kafka's clients. A change of the
#: metadata ends a delay.
RETRY_BACKOFF_MS: Final = 100
RETRY_BACKOFF_MAX_MS: Final = 1_000
#: Time without success after which the cause is logged.
LOGGED_AFTER_MS: Final = 5_000

_T = TypeVar("_T")


class ControllerChannel:
    """Finds the controller for each attempt and repeats a request until the controller decides; on one event loop.

    An attempt that ends without a decision is repeated: no controller is known, the broker is no longer the controller,
    it cannot be reached, its response does not come or cannot be read. The controller may have executed such a request,
    so requests must be safe to repeat: compare-and-set on an epoch, or a change whose repetition is recognized.

    Calls have turns, in their order. With one turn the next request is sent after the decision about the previous one;
    a cancelled call gives its turn back at once, while its request may still be executed.

    Args:
        controller: Returns the controller in the newest metadata, None if there is none.
        send: Sends a request to a broker: `Peers.sender`, or the local controller for this broker's own id.
        turns: Number of concurrent calls.
        draw: Draws a number from [0, 1).
        refusals: Shared by the channels of a broker: one log line about a controller that does not authorize it.
    """

    def __init__(
        self,
        controller: Callable[[], int | None],
        send: SendToBroker,
        clock: Clock,
        draw: Callable[[], float],
        *,
        turns: int = 1,
        request_timeout_ms: int = 30_000,
        refusals: FailureNotices | None = None,
    ) -> None:
        self._controller = controller
        self._send = send
        self._clock = clock
        self._draw = draw
        self._turns = asyncio.Semaphore(turns)
        self._request_timeout_ms = request_timeout_ms
        self._notices = FailureNotices()
        self._refusals = refusals or FailureNotices()
        #: Ordered, unlike a set: the order of events is the same in every run of a simulation.
        self._pauses: dict[asyncio.Future[None], None] = {}

    async def call(
        self,
        request: Callable[[], Request[_T]],
        error_code: Callable[[_T], int],
        *,
        timeout_ms: int | None = None,
        retriable: Collection[int] = (NOT_CONTROLLER,),
    ) -> _T:
        """Return the controller's response, which may hold an error code that is not retriable.

        Args:
            request: Builds the request of each attempt: epochs may have changed since the previous one.
            error_code: Returns the error code of a response as a whole.
            timeout_ms: Time limit of all attempts and of the wait for a turn, None for no limit.
            retriable: Error codes upon which the controller is looked up again.

        Raises:
            RequestTimeoutError: The time limit passed; the message states the last failure.
            UnsupportedVersionError: The controller does not serve the request.
            PeersClosedError: The connections are closed for good.
        """
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        await self._take_turn(timeout_ms)
        try:
            return await self._repeat(request, error_code, retriable, deadline_ms)
        finally:
            self._turns.release()

    def metadata_changed(self) -> None:
        """End the delays between attempts: another controller may be known now."""
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

    async def _take_turn(self, timeout_ms: int | None) -> None:
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._turns.acquire()
        except TimeoutError:
            raise RequestTimeoutError(f"earlier requests to the controller took {timeout_ms} ms") from None

    async def _repeat(
        self,
        request: Callable[[], Request[_T]],
        error_code: Callable[[_T], int],
        retriable: Collection[int],
        deadline_ms: int | None,
    ) -> _T:
        backoff = ExponentialBackoff(RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS, self._draw)
        begun_ms = self._clock.monotonic_ms()
        while True:
            try:
                response = await self._attempt(request, deadline_ms)
                code = error_code(response)
                if code not in retriable:
                    if code == CLUSTER_AUTHORIZATION_FAILED:
                        self._not_authorized()
                    else:
                        self._decided()
                    return response
                failure = f"the controller answered {error_name(code)}"
            except (UnsupportedVersionError, PeersClosedError):
                raise
            except ClientError as error:
                failure = str(error)
            now_ms = self._clock.monotonic_ms()
            delay_ms = backoff.next_delay_ms()
            if deadline_ms is not None and now_ms + delay_ms >= deadline_ms:
                waited_ms = now_ms - begun_ms
                raise RequestTimeoutError(f"no decision of the controller within {waited_ms} ms: {failure}")
            if now_ms - begun_ms >= LOGGED_AFTER_MS and self._notices.is_due(failure, now_ms):
                logger.warning("no decision of the controller: %s; the broker tries again", failure)
            await self._pause(delay_ms)

    async def _attempt(self, request: Callable[[], Request[_T]], deadline_ms: int | None) -> _T:
        broker_id = self._controller()
        if broker_id is None:
            raise ClientError("no controller is known")
        timeout_ms = self._request_timeout_ms
        if deadline_ms is not None:
            timeout_ms = max(1, min(timeout_ms, deadline_ms - self._clock.monotonic_ms()))
        return await self._send(broker_id, request(), timeout_ms)

    def _decided(self) -> None:
        was_refused = self._refusals.forget()
        if self._notices.forget() or was_refused:
            logger.info("the controller answers")

    def _not_authorized(self) -> None:
        """Log that the controller refuses this broker as a whole; every request of every channel has that answer."""
        if self._refusals.is_due("not authorized", self._clock.monotonic_ms()):
            logger.error(
                "the controller refuses requests of this broker: %s; %s",
                error_name(CLUSTER_AUTHORIZATION_FAILED),
                UNAUTHORIZED_REMEDY,
            )

    async def _pause(self, delay_ms: int) -> None:
        loop = asyncio.get_running_loop()
        pause: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(delay_ms / 1000, _end, pause)
        self._pauses[pause] = None
        try:
            await pause
        finally:
            timer.cancel()
            del self._pauses[pause]


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
