"""Forwards requests of clients to the controller, in the name of the client (Envelope, KIP-590)."""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import ClientError, error_name
from headwater.logtier.metadata.image import MetadataCache, MetadataDelta
from headwater.logtier.metadata.topic_nodes import NO_BROKER
from headwater.logtier.peers.controller_channel import NOT_CONTROLLER, ControllerChannel
from headwater.logtier.peers.controller_requests import EnvelopeResult, envelope_request
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.runtime.clock import Clock
from headwater.logtier.runtime.fair_turns import FairTurns
from headwater.logtier.security.serialized_principal import serialize_principal

log = logging.getLogger(__name__)

FORWARDED_MAX: Final = 16
"""Requests forwarded at once. The controller executes one change at a time, so more of them would only wait there; each
client may have half of them."""

TIMEOUT_MS: Final = 25_000
"""Time limit of all attempts and of the wait for a turn, less than request.timeout.ms (30 s) of Kafka's clients: they
get an error that they can retry instead of a lost connection."""

_T = TypeVar("_T")

#: The answer of this broker to itself: it has become the controller.
_HERE: Final = EnvelopeResult(ErrorCode.none, None)


class Forwarding:
    """This broker's forwarded requests; used on one event loop, by the dispatcher.

    A request goes to the controller of the newest image, as a whole and with the client's principal and address: the
    controller authorizes it and applies its quotas, and its response is the client's response. Without an answer the
    request is repeated, as Kafka's brokers do: a change that was executed is then answered as one that exists already.
    """

    def __init__(
        self, broker_id: int, peers: Peers, metadata: MetadataCache, clock: Clock, draw: Callable[[], float]
    ) -> None:
        """`draw` draws a number from [0, 1)."""
        self._broker_id = broker_id
        self._metadata = metadata
        self._send_to_peer = peers.sender(Purpose.FORWARDING)
        self._channel = ControllerChannel(self._controller, self._send, clock, draw, turns=FORWARDED_MAX)
        self._clock = clock
        self._turns = FairTurns(FORWARDED_MAX)
        metadata.subscribe(self._metadata_changed)

    @asynccontextmanager
    async def turn(self, owner: Hashable, *, is_urgent: bool) -> AsyncIterator[int]:
        """Wait for a turn of a client and hold it, before the request is copied; yield the deadline of its answer.

        Raises:
            KafkaError: request_timed_out: earlier requests have taken the whole time, as without a controller.
        """
        deadline_ms = self._clock.monotonic_ms() + TIMEOUT_MS
        async with AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(TIMEOUT_MS / 1000):
                    await turn.enter_async_context(self._turns.of(owner, is_urgent=is_urgent))
            except TimeoutError:
                raise KafkaError(
                    ErrorCode.request_timed_out, "The controller did not answer earlier requests."
                ) from None
            yield deadline_ms

    async def forward(
        self, request: bytes, principal: str, client_host: str, is_controller: Callable[[], bool], deadline_ms: int
    ) -> bytes | None:
        """Return the controller's response, with the request's correlation id and without a length.

        Args:
            request: The request with its header, without a length.
            is_controller: Whether this broker is the controller at present.
            deadline_ms: Of the turn that is held.

        Returns:
            None if this broker has become the controller: the request is to be executed here.

        Raises:
            KafkaError: request_timed_out (the request may have been executed), unknown_server_error.
            ProtocolViolationError: The controller cannot read the request.
        """
        sealed = serialize_principal(principal), _packed(client_host)

        def code(result: EnvelopeResult) -> int:
            # Named controller by the image, this broker may have been deposed since, or not be ready yet.
            return NOT_CONTROLLER if result is _HERE and not is_controller() else result.error_code

        try:
            left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            result = await self._channel.call(
                lambda: envelope_request(request, *sealed), code, timeout_ms=left_ms, retriable=(NOT_CONTROLLER,)
            )
        except ClientError as error:
            raise KafkaError(ErrorCode.request_timed_out, f"The controller did not answer: {error}") from error
        if result.error_code in (ErrorCode.invalid_request, ErrorCode.unsupported_version):
            raise ProtocolViolationError("the controller cannot read the forwarded request")
        if result.error_code or (result.data is None and result is not _HERE):
            log.error("the controller refused a forwarded request: %s", error_name(result.error_code))
            raise KafkaError(ErrorCode.unknown_server_error, "The controller refused the request of this broker.")
        return result.data

    def _controller(self) -> int | None:
        controller_id = self._metadata.image.controller_id
        return None if controller_id == NO_BROKER else controller_id

    def _send(self, broker_id: int, request: Request[_T], timeout_ms: int) -> asyncio.Future[_T]:
        if broker_id != self._broker_id:
            return self._send_to_peer(broker_id, request, timeout_ms)
        here: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        here.set_result(_HERE)  # type: ignore[arg-type] # all requests of this channel are envelopes
        return here

    def _metadata_changed(self, _: MetadataDelta) -> None:
        self._channel.metadata_changed()


def _packed(host: str) -> bytes:
    """Return an IP address in 4 or 16 bytes.

    >>> _packed("10.0.0.1"), len(_packed("fe80::1%eth0"))
    (b'\\n\\x00\\x00\\x01', 16)
    """
    return ipaddress.ip_address(host).packed
