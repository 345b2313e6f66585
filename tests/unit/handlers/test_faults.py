"""A fault of ours in a handler: the client is told in the answer that it expects, and its connection goes on."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from logtier.handlers.dispatcher import Dispatcher
from logtier.protocol import messages
from logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from logtier.quota.client_quotas import ClientQuotas
from logtier.runtime.clock import SystemClock
from logtier.runtime.metrics import BrokerMetrics
from tests.kio_messages import filled, tokens

METADATA, OFFSET_COMMIT = 3, 8
CORRELATION_ID = 7


def module(api_key: int, version: int, handle: Callable[[Any, Any], Any]) -> ModuleType:
    handler = ModuleType("broken")
    vars(handler).update(API_KEY=api_key, VERSIONS=(version, version), handle=handle)
    return handler


def frame(api_key: int, version: int, **values: Any) -> memoryview:
    flexible = b"\x00" if messages.is_flexible(api_key, version) else b""
    body = b"".join(part.data for part in tokens(filled(load_request_schema(api_key, version), values)))
    return memoryview(struct.pack(">hhih", api_key, version, CORRELATION_ID, 1) + b"c" + flexible + body)


def ask(api_key: int, version: int, handle: Callable[[Any, Any], Any], **values: Any) -> Any:
    """The answer to one request whose handler is `handle`, as its client reads it."""
    services = SimpleNamespace(quotas=ClientQuotas(), metrics=BrokerMetrics(), clock=SystemClock())
    connection = SimpleNamespace(
        sasl=None, peer_host="here", principal="User:a", listener=None, logs_refusal=lambda: True
    )

    async def main() -> Any:
        dispatcher = Dispatcher(cast(Any, services), {api_key: module(api_key, version, handle)})
        response = dispatcher.dispatch(frame(api_key, version, **values), cast(Any, connection))
        return await response if isinstance(response, Awaitable) else response

    header, body = asyncio.run(main())
    assert struct.unpack_from(">ii", header) == (len(header) - 4 + len(body), CORRELATION_ID)
    response, _ = entity_reader(load_response_schema(api_key, version))(body, 0)
    assert services.metrics.api(api_key).errors == {ErrorCode.unknown_server_error: 1}
    return response


def broken(_request: Any, _context: Any) -> Any:
    raise RuntimeError("a fault of ours")


async def broken_later(_request: Any, _context: Any) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("handle", [broken, broken_later])
def test_a_fault_is_told_of_each_thing_and_logged_with_its_stack(
    handle: Callable[[Any, Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        response = ask(OFFSET_COMMIT, 8, handle)
    [topic] = response.topics
    [partition] = topic.partitions
    assert (topic.name, partition.partition_index) == ("text", 1)
    assert partition.error_code == ErrorCode.unknown_server_error
    assert "a fault of ours" in caplog.text


def test_a_request_with_no_place_for_an_error_ends_its_connection() -> None:
    with pytest.raises(ProtocolViolationError, match="no place for an error"):
        ask(METADATA, 12, broken, topics=())


def test_a_refusal_is_logged_as_a_line() -> None:
    def refuse(_request: Any, _context: Any) -> Any:
        raise KafkaError(ErrorCode.unknown_server_error, "not today")

    [topic] = ask(METADATA, 9, refuse).topics
    assert (topic.name, topic.error_code) == ("text", ErrorCode.unknown_server_error)
