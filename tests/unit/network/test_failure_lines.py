"""Failed logins and other connections that come to nothing: the log tells of each, but not line by line."""

from __future__ import annotations

import asyncio
import logging
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.handlers.cluster import api_versions
from headwater.logtier.handlers.context import RequestContext
from headwater.logtier.handlers.dispatcher import Dispatcher
from headwater.logtier.handlers.security import (
    sasl_authenticate,
    sasl_handshake,
)
from headwater.logtier.network.server import Server, ServerLimits
from headwater.logtier.protocol.errors import ErrorCode, ProtocolViolationError
from headwater.logtier.quota.client_quotas import ClientQuotas
from headwater.logtier.runtime.metrics import BrokerMetrics
from headwater.logtier.runtime.network import SocketNetwork
from headwater.logtier.security.failure_lines import ADDRESSES_MAX, LINES_MAX, OTHERS, WINDOW_MS, FailureLines
from headwater.logtier.security.listener import ListenerSecurity
from headwater.logtier.security.sasl import PlainServer
from headwater.logtier.security.sasl_session import SaslListener, SaslSession
from tests.manual_clock import ManualClock

LIMITS = ServerLimits(request_bytes_max=1 << 20, connections_max=100, connections_per_host_max=100, idle_ms_max=60_000)
ADDRESS = "192.0.2.1"


def test_an_address_gets_a_few_lines_in_each_window() -> None:
    lines = FailureLines()
    for window in range(3):
        at_ms = window * WINDOW_MS
        lines.due(at_ms)
        assert [lines.admit(ADDRESS, at_ms) for _ in range(LINES_MAX + 2)] == [True] * LINES_MAX + [False] * 2


def test_one_address_does_not_silence_another() -> None:
    lines = FailureLines()
    for _ in range(100):
        lines.admit(ADDRESS, 0)
    assert lines.admit("192.0.2.2", 0)


def test_addresses_without_number_are_counted_as_one() -> None:
    lines = FailureLines()
    admitted = sum(lines.admit(f"2001:db8::{number:x}", 0) for number in range(10 * ADDRESSES_MAX))
    assert admitted == ADDRESSES_MAX + LINES_MAX
    [withheld] = lines.due(WINDOW_MS)
    assert withheld == (OTHERS, 9 * ADDRESSES_MAX - LINES_MAX)
    assert lines.admit(ADDRESS, WINDOW_MS)


@given(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from("abc"), st.booleans()), max_size=300))
def test_every_failure_is_told_once(failures: list[tuple[int, str, bool]]) -> None:
    lines = FailureLines()
    now_ms = told = 0
    for passed_ms, address, is_checked in failures:
        now_ms += passed_ms
        told += lines.admit(address, now_ms)
        if is_checked:
            told += sum(withheld.failures for withheld in lines.due(now_ms))
    told += sum(withheld.failures for withheld in lines.due(now_ms + WINDOW_MS))
    assert told == len(failures)


def test_failed_logins_are_not_logged_without_limit(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0)
    listener = SaslListener({"PLAIN": lambda: PlainServer({"alice": "right"})}, {}, failure_delay_ms=0)

    async def fail() -> None:
        session = SaslSession(listener)
        context = cast(
            "RequestContext",
            SimpleNamespace(
                sasl=session,
                services=SimpleNamespace(clock=clock),
                client_host=ADDRESS,
                api_version=1,
                listener=SimpleNamespace(name="SASL_PLAINTEXT"),
            ),
        )
        handshake: Any = SimpleNamespace(mechanism="PLAIN")
        assert (await sasl_handshake.handle(handshake, context))["error_code"] == 0
        token: Any = SimpleNamespace(auth_bytes=b"\0alice\0wrong")
        assert (await sasl_authenticate.handle(token, context))["error_code"] == 58

    async def main() -> None:
        for _ in range(50):
            await fail()

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_MAX
    assert all(ADDRESS in line and "wrong" not in line for line in lines)
    assert listener.failures.due(WINDOW_MS) == [(ADDRESS, 50 - LINES_MAX)]


def test_what_was_not_logged_is_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = ManualClock(0)

    def refuse(*_: object) -> None:
        raise ProtocolViolationError("this is no Kafka request")

    async def main() -> None:
        server = Server(SocketNetwork(), clock, refuse, LIMITS)
        host, port = server.bind("127.0.0.1", 0)
        server.serve()
        for _ in range(LINES_MAX + 3):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(struct.pack(">i", 20) + bytes(20))
            assert await reader.read() == b""
            writer.close()
        clock.ms = WINDOW_MS
        server._check_idle()
        server.stop()
        await asyncio.sleep(0)

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:-1] == ["closed the connection of 127.0.0.1: this is no Kafka request"] * LINES_MAX
    assert lines[-1] == "3 further failures of connections from 127.0.0.1 were not logged"


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def request(api_key: int, version: int, client_id: str, body: bytes) -> bytes:
    payload = struct.pack(">hhi", api_key, version, 7) + text(client_id) + body
    return struct.pack(">i", len(payload)) + payload


async def exchanged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> bytes:
    writer.write(sent)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def test_refusals_before_authentication_are_not_logged_without_limit_nor_with_all_that_a_client_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    clock = ManualClock(0)
    listener = SaslListener({"PLAIN": lambda: PlainServer({"alice": "right"})}, {})
    handlers = {module.API_KEY: module for module in (api_versions, sasl_handshake)}
    services: Any = SimpleNamespace(clock=clock, quotas=ClientQuotas(), metrics=BrokerMetrics(), session_watch=None)
    client_id = "nobody\n" + "x" * 30_000

    async def main() -> None:
        security = ListenerSecurity("SASL_PLAINTEXT", "SASL_PLAINTEXT", sasl=listener)
        server = Server(SocketNetwork(), clock, Dispatcher(services, handlers).dispatch, LIMITS, security)
        host, port = server.bind("127.0.0.1", 0)
        server.serve()
        for _ in range(LINES_MAX + 3):
            reader, writer = await asyncio.open_connection(host, port)
            handshake = await exchanged(reader, writer, request(sasl_handshake.API_KEY, 1, client_id, text("PLAIN")))
            assert handshake[4:6] == struct.pack(">h", ErrorCode.none)
            refused = await exchanged(reader, writer, request(api_versions.API_KEY, 0, client_id, b""))
            assert refused[4:6] == struct.pack(">h", ErrorCode.illegal_sasl_state)
            writer.close()
            await writer.wait_closed()
        assert listener.failures.due(WINDOW_MS) == [], "failed logins are counted apart"
        clock.ms = WINDOW_MS
        server._check_idle()
        server.stop()
        await asyncio.sleep(0)

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_MAX + 1
    assert all(line.startswith("refused api_versions of client 'nobody\\nxxx") for line in lines[:-1])
    assert all(line.isprintable() and len(line) < 600 for line in lines)
    assert lines[-1] == "3 further refusals of requests from 127.0.0.1 were not logged"


@pytest.mark.parametrize("version", [0, 9_999])
def test_a_client_id_is_cut_where_a_request_is_not_supported(version: int) -> None:
    handlers = {} if version == 0 else {sasl_handshake.API_KEY: sasl_handshake}
    services: Any = SimpleNamespace(session_watch=None)
    frame = memoryview(request(sasl_handshake.API_KEY, version, "\n" * 30_000, b"")[4:])
    with pytest.raises(ProtocolViolationError) as raised:
        Dispatcher(services, handlers).dispatch(frame, cast("Any", SimpleNamespace(sasl=None)))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000
