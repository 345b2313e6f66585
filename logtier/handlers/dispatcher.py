"""From a frame to its response: header, version, body, handler, encoding, and what becomes of errors."""

import logging
from collections.abc import Awaitable, Mapping
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any, cast

from logtier.handlers import api_versions
from logtier.handlers.context import RequestContext, Services
from logtier.network.server import ClientConnection, Response
from logtier.protocol import messages
from logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from logtier.runtime.network import Part

logger = logging.getLogger(__name__)

#: Everybody, as long as no listener authenticates.
ANONYMOUS = "User:ANONYMOUS"


class Dispatcher:
    """Calls the handler of each request.

    Raises (from `dispatch`, or from the future it gives):
        ProtocolViolationError: the connection is to be closed; the message is its one log line.
    """

    def __init__(self, services: Services, handlers: Mapping[int, ModuleType]) -> None:
        self._services = services
        self._handlers = handlers
        self._asynchronous = {key for key, handler in handlers.items() if iscoroutinefunction(handler.handle)}

    def dispatch(self, frame: memoryview, connection: ClientConnection) -> Response | Awaitable[Response]:
        """Answer one frame, at once or later."""
        header = messages.read_request_header(frame)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise ProtocolViolationError(
                f"{messages.api_name(header.api_key)} (client {header.client_id}) is not supported by this broker"
            )
        first, last = handler.VERSIONS
        if not first <= header.api_version <= last:
            return self._unsupported_version(header, handler)
        context = RequestContext(
            self._services,
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            connection.peer_host,
            ANONYMOUS,
        )
        request = messages.read_request(header, frame)
        if header.api_key in self._asynchronous:
            return self._handle_later(handler, request, context)
        try:
            result = handler.handle(request, context)
        except KafkaError as error:
            return self._refused(context, error)
        except ProtocolViolationError:
            raise
        except Exception as fault:  # noqa: BLE001 (a fault of ours must not end the broker)
            return self._failed(context, fault)
        return self._encode(context, result) if isinstance(result, dict) else result

    async def _handle_later(self, handler: ModuleType, request: Any, context: RequestContext) -> Response:
        """The handler is called in here, so that it never starts if the client is gone before its turn."""
        try:
            result = await handler.handle(request, context)
        except KafkaError as error:
            return self._refused(context, error)
        except ProtocolViolationError:
            raise
        except Exception as fault:  # noqa: BLE001 (a fault of ours must not end the broker)
            return self._failed(context, fault)
        return self._encode(context, result) if isinstance(result, dict) else cast("Response", result)

    def _encode(self, context: RequestContext, tree: Mapping[str, Any]) -> list[Part]:
        return _frame(context.api_key, context.api_version, context.correlation_id, tree)

    def _unsupported_version(self, header: messages.RequestHeader, handler: ModuleType) -> Response:
        name = messages.api_name(header.api_key)
        first, last = handler.VERSIONS
        if header.api_key == api_versions.API_KEY:
            return _frame(header.api_key, 0, header.correlation_id, api_versions.unsupported_version())
        raise ProtocolViolationError(
            f"{name} version {header.api_version} of client {header.client_id} is not supported: {first} to {last} are"
        )

    def _refused(self, context: RequestContext, error: KafkaError) -> Response:
        """A refusal of the whole request."""
        name = messages.api_name(context.api_key)
        logger.warning("refused %s of client %s at %s: %s", name, context.client_id, context.client_host, error)
        if not messages.has_top_level_error(context.api_key, context.api_version):
            raise ProtocolViolationError(f"{name} has no place for an error: {error}") from error
        tree: dict[str, Any] = {"error_code": error.code}
        try:
            return self._encode(context, tree)
        except TypeError:
            raise ProtocolViolationError(f"{name} failed: {error}") from error

    def _failed(self, context: RequestContext, fault: Exception) -> Response:
        """A fault of ours: the one place where a stack trace is logged; the client is told, others go on."""
        name = messages.api_name(context.api_key)
        logger.error("%s version %d failed", name, context.api_version, exc_info=fault)
        return self._refused(context, KafkaError(ErrorCode.unknown_server_error, "see the broker's log"))


def _frame(api_key: int, version: int, correlation_id: int, tree: Mapping[str, Any]) -> list[Part]:
    body = messages.encode_response(api_key, version, tree)
    return [messages.response_prefix(api_key, version, correlation_id, len(body)), body]
