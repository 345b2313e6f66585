"""Processes a frame into its response: header, version, body, handler, encoding, errors."""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from inspect import iscoroutinefunction
from time import perf_counter, thread_time_ns
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

from headwater.logtier.handlers.cluster import api_versions
from headwater.logtier.handlers.context import EmbeddedContext, EmbeddedRequest, RequestContext, Services
from headwater.logtier.handlers.long_requests import SLICE_RULES, SliceRule, join_answers, slices_of
from headwater.logtier.handlers.loop_time import LoopTime, measured
from headwater.logtier.handlers.records import fetch
from headwater.logtier.network.pending_answers import Response
from headwater.logtier.network.server import ClientConnection
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.protocol.refusals import refusal
from headwater.logtier.runtime.completed import outlasted
from headwater.logtier.runtime.fair_turns import FairTurns
from headwater.logtier.runtime.metrics import error_codes
from headwater.logtier.runtime.network import Part
from headwater.logtier.security.audit_log import shown
from headwater.logtier.security.sasl_session import SaslSession

if TYPE_CHECKING:  # a single node has no session
    from headwater.logtier.cluster.session_watch import SessionWatch

logger = logging.getLogger(__name__)

LONG_REQUEST_BYTES: Final = 64 << 10
"""Larger requests are decoded outside the event loop: a megabyte takes most of a second."""

LONG_REQUESTS_MAX: Final = 4
"""Concurrent long requests: each may use 100 MB until its response is encoded. One client may have half of them."""

FORWARDED_BYTES_MAX: Final = 8 << 20
"""Largest forwarded request: ten thousand topics with their assignments have about 5 MB. Broker and controller hold it
several times."""

_LENGTH: Final = struct.Struct(">i")

Result = TypeVar("Result")


class _Route(NamedTuple):
    """The handler of an API, for versions `first` to `last`."""

    handler: ModuleType
    first: int
    last: int
    is_asynchronous: bool
    slice_rules: tuple[SliceRule, ...]
    #: Whether a broker that is not the controller forwards it.
    is_forwarded: bool
    #: Whether its handler may answer a part of a forwarded request itself (`handle_forwarded`).
    is_divided: bool


def _route(api_key: int, handler: ModuleType) -> _Route:
    first, last = handler.VERSIONS
    rules = SLICE_RULES.get(messages.api_name(api_key), ())
    return _Route(
        handler,
        first,
        last,
        iscoroutinefunction(handler.handle),
        rules,
        getattr(handler, "IS_FORWARDED", False),
        hasattr(handler, "handle_forwarded"),
    )


class _MemoryOwner(Protocol):
    """Who holds the memory of a request until it is read."""

    def release_request_memory(self) -> None: ...


class _ForwardedClient:
    """The client of an embedded request: its memory is that of the envelope, which has been read."""

    def release_request_memory(self) -> None:
        pass


class Dispatcher:
    """Calls the handler of each request.

    Raises (from `dispatch`, or from the future it returns):
        ProtocolViolationError: The connection must be closed; the message is its log line.
    """

    def __init__(
        self,
        services: Services,
        handlers: Mapping[int, ModuleType],
        between_brokers: Mapping[int, ModuleType] = MappingProxyType({}),
    ) -> None:
        """`between_brokers` are the handlers that are served on the inter-broker listener only."""
        self._services = services
        services.answer_embedded = self._answer_embedded
        self._routes = {key: _route(key, handler) for key, handler in handlers.items()}
        self._routes_between_brokers = {key: _route(key, handler) for key, handler in between_brokers.items()}
        self._long_requests = FairTurns(LONG_REQUESTS_MAX)
        #: Long requests share one thread, so that the event loop gets every second turn of Python's lock.
        self._thread_turn = FairTurns(1)
        self._threads: set[asyncio.Future[Any]] = set()

    def dispatch(self, frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        """Answer one frame, at once or later."""
        watch = self._services.session_watch
        if watch is not None and watch.is_in_doubt():
            return self._dispatch_when_decided(frame, connection, watch)
        return self._dispatch(frame, connection)

    async def _dispatch_when_decided(
        self, frame: memoryview, connection: ClientConnection, watch: "SessionWatch"
    ) -> Response:
        """Answer one frame after a pause of the process, when the broker knows whether it is still what it was."""
        connection.keep_request_memory()
        while watch.is_in_doubt():
            await watch.decided()
        connection.release_request_memory()
        response = self._dispatch(frame, connection)
        del frame  # the buffer of the connection
        return await response if isinstance(response, Awaitable) else response

    def _dispatch(self, frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        begun_s = perf_counter()
        sasl = connection.sasl
        if sasl is not None and sasl.takes_raw_tokens:
            return self._raw_token(bytes(frame), sasl)
        header = messages.read_request_header(frame)
        api_key, api_version, correlation_id, client_id, _ = header
        route = self._routes.get(api_key)
        if route is None:
            route = self._route_between_brokers(header, connection)
        handler, first, last, is_asynchronous, slice_rules, is_forwarded, _ = route
        if not first <= api_version <= last:
            return self._unsupported_version(header, handler)
        services = self._services
        context = RequestContext(
            services,
            api_key,
            api_version,
            correlation_id,
            client_id,
            connection.peer_host,
            connection.principal if sasl is None else sasl.principal,
            connection.listener,
            sasl,
            services.metrics.api(api_key),
            begun_s,
        )
        context.reader = connection
        context.api_metrics.request_bytes += len(frame)
        if sasl is not None:
            try:
                sasl.admit(api_key, messages.api_name(api_key), services.clock.monotonic_ms())
            except KafkaError as error:
                return self._refused(context, error)
        if services.quotas.is_active:
            context.request_bytes = len(frame)
            context.mute = connection.mute
            context.loop_time = LoopTime() if services.quotas.meters_time else None
        if is_forwarded and self._services.forwarding is not None and not self._services.controller.is_active:
            return self._forward(route, header, frame, context, connection)
        if (
            len(frame) > LONG_REQUEST_BYTES
            and api_key != messages.PRODUCE_KEY
            and (sasl is None or sasl.is_authenticated)
        ):
            is_urgent = connection.keep_request_memory()
            return self._handle_long(route, header, frame, context, connection, is_urgent)
        request = messages.read_request(header, frame)
        if slice_rules:
            try:
                sliced = slices_of(request, slice_rules)
            except KafkaError as error:
                return self._refused(context, error, request)
            if sliced is not None:
                return self._handle_cut(handler, request, *sliced, context)
        if is_asynchronous:
            return self._handle_later(handler, request, context)
        try:
            result = handler.handle(request, context)
        except KafkaError as error:
            return self._refused(context, error, request)
        except ProtocolViolationError:
            raise
        except Exception as fault:  # noqa: BLE001 (an internal error must not end the broker)
            return self._failed(context, fault, request)
        # The parts of an encoded response, first: isinstance of an abstract class takes longer.
        if result.__class__ is not list:
            if isinstance(result, dict):
                return self._encode(context, result)
            if isinstance(result, Awaitable):
                if context.loop_time is not None:
                    context.loop_time.pause()
                answering = asyncio.ensure_future(result)
                answering.add_done_callback(lambda done: _count(done, context))
                return answering
        context.count_answer(context.answer_errors, perf_counter())
        answer: Response = result
        return answer

    def _route_between_brokers(self, header: messages.RequestHeader, connection: ClientConnection) -> _Route:
        route = self._routes_between_brokers.get(header.api_key)
        if route is None or connection.listener.name != self._services.inter_broker_listener:
            raise ProtocolViolationError(
                f"{messages.api_name(header.api_key)} (client {shown(str(header.client_id))}) is not supported by this "
                "broker"
            )
        return route

    async def _handle_later(
        self, handler: ModuleType, request: Any, context: RequestContext, *, is_long: bool = False
    ) -> Response:
        """Call the handler in a coroutine, so that it does not start if the client disconnects before its turn."""
        try:
            steps = _steps(handler, request, context)
            result = await (steps if context.loop_time is None else measured(steps, context.loop_time))
        except KafkaError as error:
            return self._refused(context, error, request)
        except ProtocolViolationError:
            raise
        except Exception as fault:  # noqa: BLE001 (an internal error must not end the broker)
            return self._failed(context, fault, request)
        if isinstance(result, dict):
            return await self._encode_long(context, lambda: result) if is_long else self._encode(context, result)
        context.count_answer(context.answer_errors, perf_counter())
        return cast("Response", result)

    async def _handle_long(
        self,
        route: _Route,
        header: messages.RequestHeader,
        frame: memoryview,
        context: RequestContext,
        connection: _MemoryOwner,
        is_urgent: bool,
    ) -> Response:
        """Decode a long request outside the event loop; until then it counts as being received.

        An urgent request has the turn for request memory: other clients wait until it is decoded.
        """

        def read() -> tuple[Any, tuple[SliceRule, list[Any]] | KafkaError | None]:
            request = messages.read_request(header, frame)
            try:
                return request, slices_of(request, route.slice_rules)
            except KafkaError as error:
                return request, error

        if context.loop_time is not None:
            context.loop_time.pause()
        async with self._long_requests.of(context.share_owner, is_urgent=is_urgent):
            request, sliced = await self._beside(context, read)
            connection.release_request_memory()
            if isinstance(sliced, KafkaError):
                return await self._refused_long(context, sliced, request)
            if sliced is not None:
                return await self._handle_slices(route.handler, request, *sliced, context)
        # The handler may wait for other clients, as JoinGroup does.
        return await self._handle_later(route.handler, request, context, is_long=True)

    async def _forward(
        self,
        route: _Route,
        header: messages.RequestHeader,
        frame: memoryview,
        context: RequestContext,
        connection: ClientConnection,
    ) -> Response:
        """Let the controller answer; until the request is copied, it counts as being received."""
        forwarding = self._services.forwarding
        assert forwarding is not None
        if len(frame) > FORWARDED_BYTES_MAX:
            raise ProtocolViolationError(
                f"{messages.api_name(header.api_key)} of {len(frame)} bytes is too large to be forwarded to the "
                f"controller ({FORWARDED_BYTES_MAX} at most); split it"
            )
        if context.loop_time is not None:
            context.loop_time.pause()
        is_urgent = len(frame) > LONG_REQUEST_BYTES and connection.keep_request_memory()
        request = b""
        try:
            async with forwarding.turn(context.share_owner, is_urgent=is_urgent) as deadline_ms:
                request = bytes(frame)
                connection.release_request_memory()
                context.mute = connection.mute
                if route.is_divided and (
                    tree := await self._divided(route.handler, header, request, context, deadline_ms)
                ):
                    return self._encode(context, tree)
                answer = await self._from_controller(request, context, deadline_ms)
        except KafkaError as error:
            return await self._refused_long(context, error, messages.read_request(header, request or frame))
        if answer is None:
            return await self._handle_here(route, header, request, context, connection)
        context.throttle(_throttle_ms(header, answer))
        context.count_answer(None, perf_counter())
        return [_LENGTH.pack(len(answer)) + answer]

    async def _from_controller(self, frame: bytes, context: RequestContext, deadline_ms: int) -> bytes | None:
        """Return the controller's response, None if this broker has become the controller."""
        services = self._services
        assert services.forwarding is not None
        return await services.forwarding.forward(
            frame, context.principal, context.client_host, lambda: services.controller.is_active, deadline_ms
        )

    async def _divided(
        self,
        handler: ModuleType,
        header: messages.RequestHeader,
        frame: bytes,
        context: RequestContext,
        deadline_ms: int,
    ) -> dict[str, Any] | None:
        """Let the handler answer what is not the controller's; None if all of the request is."""

        async def send_rest(rest: Any) -> Any:
            answer = await self._from_controller(messages.embedded_frame(header, frame, rest), context, deadline_ms)
            if answer is None:
                raise KafkaError(ErrorCode.not_controller, "This broker has become the controller meanwhile.")
            context.throttle(_throttle_ms(header, answer))
            return messages.read_response(header, answer)

        request = messages.read_request(header, frame)
        return cast("dict[str, Any] | None", await handler.handle_forwarded(request, context, send_rest))

    async def _answer_embedded(self, embedded: EmbeddedRequest) -> tuple[bytes, Sequence[int]]:
        """Answer a request that another broker forwarded.

        Raises:
            ProtocolViolationError: The request cannot be read.
            KafkaError: invalid_request, unsupported_version: the request is not one that is forwarded.
        """
        header = messages.read_request_header(embedded.frame)
        route = self._routes.get(header.api_key)
        if route is None or not route.is_forwarded:
            name = messages.api_name(header.api_key)
            raise KafkaError(ErrorCode.invalid_request, f"{name} is not a request that brokers forward.")
        if not route.first <= header.api_version <= route.last:
            raise KafkaError(
                ErrorCode.unsupported_version, f"Version {header.api_version} of the request is not supported."
            )
        context = EmbeddedContext(
            self._services,
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            embedded.client_host,
            embedded.principal,
            embedded.listener,
        )
        context.reader = embedded.connection
        parts = await self._handle_here(route, header, embedded.frame, context, _ForwardedClient())
        response = b"".join(cast("Sequence[bytes]", parts))
        return response[_LENGTH.size :], context.error_codes

    async def _handle_here(
        self,
        route: _Route,
        header: messages.RequestHeader,
        frame: bytes,
        context: RequestContext,
        owner: _MemoryOwner,
    ) -> Response:
        """Answer a request that could have been forwarded, or has been."""
        if len(frame) > LONG_REQUEST_BYTES:
            return await self._handle_long(route, header, memoryview(frame), context, owner, is_urgent=False)
        request = messages.read_request(header, frame)
        try:
            sliced = slices_of(request, route.slice_rules)
        except KafkaError as error:
            return self._refused(context, error, request)
        if sliced is not None:
            return await self._handle_cut(route.handler, request, *sliced, context)
        return await self._handle_later(route.handler, request, context)

    async def _handle_cut(
        self, handler: ModuleType, request: Any, rule: SliceRule, slices: list[Any], context: RequestContext
    ) -> Response:
        """Answer a small request with many elements within the limit of long requests."""
        if context.loop_time is not None:
            context.loop_time.pause()
        async with self._long_requests.of(context.share_owner):
            return await self._handle_slices(handler, request, rule, slices, context)

    async def _handle_slices(
        self, handler: ModuleType, request: Any, rule: SliceRule, slices: list[Any], context: RequestContext
    ) -> Response:
        """Answer a long request in slices, between which other requests run."""
        context.is_slice = True
        answers = []
        try:
            for each in slices:
                steps = _steps(handler, each, context)
                answers.append(await (steps if context.loop_time is None else measured(steps, context.loop_time)))
                await asyncio.sleep(0)
        except KafkaError as error:
            return await self._refused_long(context, error, request)
        except ProtocolViolationError:
            raise
        except Exception as fault:  # noqa: BLE001 (an internal error must not end the broker)
            return self._failed(context, fault, request)
        return await self._encode_long(context, lambda: join_answers(rule, answers))

    async def _refused_long(self, context: RequestContext, error: KafkaError, request: Any) -> Response:
        """Reject a long request as `_refused`, outside the event loop, since its response lists each element."""
        name = messages.api_name(context.api_key)
        context.log_refusal(name, error)

        def tree() -> Mapping[str, Any]:
            refused = refusal(context.api_key, context.api_version, error.code, error.message, request)
            if refused is None:
                raise ProtocolViolationError(f"{name} has no place for an error: {error}") from error
            return refused

        return await self._encode_long(context, tree)

    async def _encode_long(self, context: RequestContext, make_tree: Callable[[], Mapping[str, Any]]) -> Response:
        """Encode as `_encode`, outside the event loop."""
        throttle_ms = context.finish_throttling()

        def encode() -> tuple[list[int], list[Part]]:
            tree = make_tree()
            if throttle_ms and messages.has_throttle_time(context.api_key):
                tree = {**tree, "throttle_time": throttle_ms}
            return error_codes(tree), _frame(context.api_key, context.api_version, context.correlation_id, tree)

        codes, answer = await self._beside(context, encode)
        context.count_answer(codes, perf_counter())
        return answer

    async def _beside(self, context: RequestContext, work: Callable[[], Result]) -> Result:
        """Run work for a request on another thread, which shares Python's lock with the event loop."""

        def timed() -> tuple[Result, int]:
            begun_ns = thread_time_ns()
            return work(), thread_time_ns() - begun_ns

        async with self._thread_turn.of(context.share_owner):
            # A client that goes away does not end the thread: the turn is held until the thread is free.
            working = asyncio.ensure_future(asyncio.to_thread(timed))
            self._threads.add(working)
            working.add_done_callback(self._threads.discard)
            try:
                result, worked_ns = await outlasted(working)
            finally:
                # Its error refers to this frame, and so to the request: the cycle would keep them in memory.
                del working
        if context.loop_time is not None:
            context.loop_time.count(worked_ns)
        return result

    async def _raw_token(self, token: bytes, sasl: SaslSession) -> Response:
        """Process a frame that is only a token, after a SaslHandshake of version 0; the response has no error field."""
        clock = self._services.clock
        answer = await sasl.authenticate(token, clock.monotonic_ms(), clock.now_ms())
        if answer.error != ErrorCode.none:
            await asyncio.sleep(sasl.listener.failure_delay_ms / 1000)
            raise ProtocolViolationError(f"authentication by {sasl.mechanism} failed: {answer.reason}")
        return [struct.pack(">i", len(answer.token)) + answer.token]

    def _encode(self, context: RequestContext, tree: Mapping[str, Any]) -> list[Part]:
        throttle_ms = context.finish_throttling()
        if throttle_ms and messages.has_throttle_time(context.api_key):
            tree = {**tree, "throttle_time": throttle_ms}
        context.count_answer(error_codes(tree), perf_counter())
        return _frame(context.api_key, context.api_version, context.correlation_id, tree)

    def _unsupported_version(self, header: messages.RequestHeader, handler: ModuleType) -> Response:
        name = messages.api_name(header.api_key)
        first, last = handler.VERSIONS
        if header.api_key == api_versions.API_KEY:
            return _frame(header.api_key, 0, header.correlation_id, api_versions.unsupported_version())
        raise ProtocolViolationError(
            f"{name} version {header.api_version} of client {shown(str(header.client_id))} is not supported; "
            f"supported are {first} to {last}"
        )

    def _refused(self, context: RequestContext, error: KafkaError, request: Any = None) -> Response:
        """Reject a whole request."""
        name = messages.api_name(context.api_key)
        context.log_refusal(name, error)
        tree = refusal(context.api_key, context.api_version, error.code, error.message, request)
        if tree is None:
            raise ProtocolViolationError(f"{name} has no place for an error: {error}") from error
        return self._encode(context, tree)

    def _failed(self, context: RequestContext, fault: Exception, request: Any) -> Response:
        """Handle an internal error: log its stack trace, and report it to the client."""
        name = messages.api_name(context.api_key)
        logger.error("%s version %d failed", name, context.api_version, exc_info=fault)
        if context.api_key == fetch.API_KEY:
            # librdkafka ignores the top-level error of a response without partitions, and retries at once; after a lost
            # connection it waits.
            raise ProtocolViolationError(f"{name} failed, see the broker's log") from fault
        return self._refused(context, KafkaError(ErrorCode.unknown_server_error, "see the broker's log"), request)


def _throttle_ms(header: messages.RequestHeader, response: bytes) -> int:
    """Return the throttle time of a response, which is the first field of its body where there is one."""
    first_field = fields(messages.response_class(header.api_key, header.api_version))[0]
    if first_field.name != "throttle_time":
        return 0
    position = len(messages.response_prefix(header.api_key, header.api_version, 0, 0)) - _LENGTH.size
    (throttle_ms,) = _LENGTH.unpack_from(response, position)
    return cast("int", throttle_ms)


async def _steps(handler: ModuleType, request: Any, context: RequestContext) -> Any:
    """Return the handler's response, synchronous or not."""
    result = handler.handle(request, context)
    return await result if isinstance(result, Awaitable) else result


def _count(answering: "asyncio.Future[Response]", context: RequestContext) -> None:
    """Count a response that was awaited: finished, cancelled by the client, or failed, which ends the connection."""
    errors = context.answer_errors
    if not errors and not answering.cancelled() and answering.exception() is not None:
        errors = [ErrorCode.unknown_server_error]
    context.count_answer(errors, perf_counter())


def _frame(api_key: int, version: int, correlation_id: int, tree: Mapping[str, Any]) -> list[Part]:
    body = messages.encode_response(api_key, version, tree)
    return [messages.response_prefix(api_key, version, correlation_id, len(body)), body]
