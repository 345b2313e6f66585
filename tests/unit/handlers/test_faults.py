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

from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.protocol import messages
from headwater.logtier.protocol.errors import ErrorCode, KafkaError, ProtocolViolationError
from headwater.logtier.quota.client_quotas import ClientQuotas
from headwater.logtier.runtime.clock import SystemClock
from headwater.logtier.runtime.metrics import BrokerMetrics
from tests.kio_messages import filled, tokens

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, ADD_PARTITIONS_TO_TXN = 0, 1, 3, 8, 24
CORRELATION_ID = 7


def module(api_key: int, version: int, handle: Callable[[Any, Any], Any]) -> ModuleType:
    handler = ModuleType("broken")
    vars(handler).update(API_KEY=api_key, VERSIONS=(version, version), handle=handle)
    return handler


def frame(api_key: int, version: int, **values: Any) -> memoryview:
    flexible = b"\x00" if messages.is_flexible(api_key, version) else b""
    body = b"".join(part.data for part in tokens(filled(load_request_schema(api_key, version), values)))
    return memoryview(struct.pack(">hhih", api_key, version, CORRELATION_ID, 1) + b"c" + flexible + body)


class Asked:
    """One request to a dispatcher whose only handler is `handle`."""

    def __init__(self, api_key: int, version: int, handle: Callable[[Any, Any], Any]) -> None:
        self.api_key, self.version = api_key, version
        self._handler = module(api_key, version, handle)
        self._metrics = BrokerMetrics()

    def answer(self, **values: Any) -> Any:
        """What its client reads."""
        services = SimpleNamespace(
            quotas=ClientQuotas(), metrics=self._metrics, clock=SystemClock(), session_watch=None
        )
        connection = SimpleNamespace(
            sasl=None, peer_host="here", principal="User:a", listener=None, logs_refusal=lambda _: True
        )

        async def main() -> Any:
            dispatcher = Dispatcher(cast(Any, services), {self.api_key: self._handler})
            response = dispatcher.dispatch(frame(self.api_key, self.version, **values), cast(Any, connection))
            return await response if isinstance(response, Awaitable) else response

        header, body = asyncio.run(main())
        assert struct.unpack_from(">ii", header) == (len(header) - 4 + len(body), CORRELATION_ID)
        response, _ = entity_reader(load_response_schema(self.api_key, self.version))(body, 0)
        return response

    @property
    def counted(self) -> dict[int, int]:
        """Answers by error code."""
        return self._metrics.api(self.api_key).errors


def broken(_request: Any, _context: Any) -> Any:
    raise RuntimeError("a fault of ours")


async def broken_later(_request: Any, _context: Any) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("a fault of ours")


def waits_and_breaks(request: Any, context: Any) -> Any:
    """A handler that is no coroutine function and gives something to wait for, as those of records are."""
    return broken_later(request, context)


@pytest.mark.parametrize("handle", [broken, broken_later])
def test_a_fault_is_told_of_each_thing_and_logged_with_its_stack(
    handle: Callable[[Any, Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    asked = Asked(OFFSET_COMMIT, 8, handle)
    with caplog.at_level(logging.WARNING):
        [topic] = asked.answer().topics
    [partition] = topic.partitions
    assert (topic.name, partition.partition_index) == ("text", 1)
    assert partition.error_code == ErrorCode.unknown_server_error
    assert "a fault of ours" in caplog.text
    assert asked.counted == {ErrorCode.unknown_server_error: 1}


def test_an_error_with_a_name_of_its_own_is_counted() -> None:
    asked = Asked(ADD_PARTITIONS_TO_TXN, 3, broken)
    [topic] = asked.answer().results_by_topic_v3_and_below
    assert topic.results_by_partition[0].partition_error_code == ErrorCode.unknown_server_error
    assert asked.counted == {ErrorCode.unknown_server_error: 1}


def test_a_request_with_no_place_for_an_error_ends_its_connection() -> None:
    with pytest.raises(ProtocolViolationError, match="no place for an error"):
        Asked(METADATA, 12, broken).answer(topics=())


@pytest.mark.parametrize(
    ("api_key", "version"), [(PRODUCE, 3), (PRODUCE, 9), (PRODUCE, 13), (FETCH, 4), (FETCH, 11), (FETCH, 18)]
)
def test_a_fault_with_records_ends_the_connection(api_key: int, version: int) -> None:
    with pytest.raises(ProtocolViolationError):
        Asked(api_key, version, broken).answer(acks=1)


def test_a_fault_after_waiting_ends_the_connection_and_is_counted() -> None:
    asked = Asked(FETCH, 12, waits_and_breaks)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        asked.answer()
    assert asked.counted == {ErrorCode.unknown_server_error: 1}


def test_a_refusal_is_logged_as_a_line(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_request: Any, _context: Any) -> Any:
        raise KafkaError(ErrorCode.invalid_request, "not today")

    with caplog.at_level(logging.WARNING):
        [topic] = Asked(METADATA, 9, refuse).answer().topics
    assert (topic.name, topic.error_code) == ("text", ErrorCode.invalid_request)
    [line] = caplog.records
    assert "refused metadata of client c at here: invalid_request: not today" in line.getMessage()
    assert line.exc_info is None
