"""Connections to other brokers on a virtual clock: order, time limits, cancellation, back-off, log lines."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.client.connection import REQUESTS_IN_FLIGHT_MAX, Request
from headwater.logtier.client.errors import (
    BrokerConnectionError,
    ClientError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from headwater.logtier.peers.errors import PeerBusyError, PeersClosedError
from headwater.logtier.peers.peer import WAITING_CALLS_MAX
from headwater.logtier.peers.peers import Purpose
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from tests.memory_network import ECHO, MemoryBroker, MemoryRequest
from tests.peer_connections import HOST, Cluster, echo, error_of, lines, virtually
from tests.simulation.virtual_loop import VirtualLoop
from tests.virtual_time import run_virtually

REQUEST_MS: Final = PeerSettings("test").request_timeout_ms


@virtually
async def test_a_broker_that_nobody_calls_is_not_connected_to() -> None:
    cluster = Cluster()
    await asyncio.sleep(3600)
    assert cluster.network.attempts == []
    assert await cluster.call("hello") == "hello"
    cluster.broker.end_connections()
    await asyncio.sleep(3600)
    assert len(cluster.network.attempts) == 1


@virtually
async def test_requests_are_sent_in_the_order_of_the_calls() -> None:
    """Also those that wait for the connection, and those that are called just as it is there."""
    cluster = Cluster()
    texts = [str(number) for number in range(200)]
    futures = [cluster.send(text) for text in texts[:100]]
    for text in texts[100:]:
        futures.append(cluster.send(text))
        await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == texts
    assert cluster.received() == texts
    assert len(cluster.broker.connections) == 1


@virtually
async def test_requests_beyond_those_in_flight_wait() -> None:
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    futures = [cluster.send(str(number)) for number in range(REQUESTS_IN_FLIGHT_MAX + 10)]
    await asyncio.sleep(1)
    assert len(cluster.broker.requests) == REQUESTS_IN_FLIGHT_MAX
    for number in range(len(futures)):
        request = cluster.broker.requests[number]
        request.answer(request.body)
        await asyncio.sleep(0)
    assert [future.result() for future in futures] == [str(number) for number in range(len(futures))]


@virtually
async def test_a_cancelled_call_costs_no_other_call_its_response() -> None:
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    first, second, third = (asyncio.ensure_future(cluster.call(text)) for text in ("first", "second", "third"))
    await asyncio.sleep(1)
    second.cancel()
    await asyncio.sleep(1)
    for request in cluster.broker.requests:
        request.answer(request.body)
    assert [await first, await third] == ["first", "third"]
    assert second.cancelled()
    assert len(cluster.broker.open_connections) == 1


@virtually
async def test_a_call_that_is_cancelled_before_it_is_sent_is_never_sent() -> None:
    cluster = Cluster()
    first, second = cluster.send("first"), cluster.send("second")
    first.cancel()
    assert await second == "second"
    assert cluster.received() == ["second"]


@virtually
async def test_a_caller_whose_time_is_over_leaves_the_connection_to_the_others() -> None:
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    patient, impatient = cluster.send("patient"), cluster.send("impatient", 100)
    assert str(await error_of(impatient)) == "broker 2 did not answer within 100 ms"
    for request in cluster.broker.requests:
        request.answer(request.body)
    assert await patient == "patient"
    assert len(cluster.broker.connections) == 1


@virtually
async def test_a_broker_that_does_not_answer_is_given_up_after_the_request_timeout() -> None:
    """Even if the caller of the missing response no longer waits, for all later responses wait behind it."""
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    abandoned = cluster.send("abandoned", 100)
    await error_of(abandoned)
    begun_ms = cluster.clock.monotonic_ms()
    failure = await error_of(cluster.send("behind it", 10 * REQUEST_MS))
    assert isinstance(failure, RequestTimeoutError)
    assert str(failure) == f"broker 2 at broker-2:9092 did not answer within {REQUEST_MS} ms"
    assert cluster.clock.monotonic_ms() - begun_ms <= REQUEST_MS
    assert cluster.broker.open_connections == []


@virtually
async def test_a_broker_that_is_stopped_is_given_up_and_found_again() -> None:
    cluster = Cluster()
    assert await cluster.call("before") == "before"
    cluster.broker.is_silent = True
    failure = await error_of(cluster.send("stopped", 2 * REQUEST_MS))
    assert isinstance(failure, RequestTimeoutError)
    assert cluster.broker.open_connections == []
    failure = await error_of(cluster.send("still stopped"))
    assert "no login at broker 2" in str(failure)
    cluster.broker.is_silent = False
    assert await cluster.call("after") == "after"


@virtually
async def test_a_process_that_was_stopped_takes_the_responses_that_came_meanwhile() -> None:
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    calling = cluster.send("hello")
    await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.stand_still(10 * REQUEST_MS / 1000)
    await asyncio.sleep(0.5)
    assert not calling.done()
    cluster.broker.requests[0].answer(b"hello")
    assert await calling == "hello"
    calling = cluster.send("hello")
    await asyncio.sleep(1)
    loop.stand_still(10 * REQUEST_MS / 1000)
    assert isinstance(await error_of(calling), RequestTimeoutError)
    await asyncio.sleep(2)
    assert cluster.broker.open_connections == []


@virtually
async def test_every_call_fails_with_an_error_of_its_own_when_the_connection_ends() -> None:
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    futures = [cluster.send(str(number)) for number in range(REQUESTS_IN_FLIGHT_MAX + 1)]
    await asyncio.sleep(1)
    cluster.broker.end_connections(ConnectionResetError(104, "Connection reset by peer"))
    failures = [await error_of(future) for future in futures]
    assert {type(failure) for failure in failures} == {BrokerConnectionError}
    assert {str(failure) for failure in failures} == {
        "the connection to broker 2 at broker-2:9092 broke: Connection reset by peer"
    }
    assert len(set(map(id, failures))) == len(failures)


@virtually
async def test_attempts_come_at_growing_intervals_while_somebody_calls() -> None:
    cluster = Cluster()
    del cluster.network.brokers[HOST, 9092]
    for _ in range(8):
        assert "Connection refused" in str(await error_of(cluster.send("hello")))
    # 1 ms each for the refusal.
    assert cluster.attempt_gaps_ms == [51, 101, 201, 401, 801, 1001, 1001]
    cluster.network.brokers[HOST, 9092] = cluster.broker
    assert await cluster.call("hello") == "hello"
    cluster.broker.end_connections()
    assert await cluster.call("hello") == "hello"
    assert cluster.attempt_gaps_ms[-1] == 51, "the first delay again"


@virtually
async def test_a_connection_without_a_single_response_is_no_success() -> None:
    """A broker that logs us in and then ends every connection is not called twenty times a second."""
    cluster = Cluster()
    cluster.broker.handler = lambda request: request.connection.stream.end(None)
    for _ in range(6):
        assert "closed the connection" in str(await error_of(cluster.send("hello")))
    assert cluster.attempt_gaps_ms == [51, 101, 201, 401, 801]


@virtually
async def test_no_attempt_is_made_for_callers_that_are_gone() -> None:
    cluster = Cluster()
    del cluster.network.brokers[HOST, 9092]
    for _ in range(5):
        await error_of(cluster.send("hello"))
    cluster.send("gone").cancel()
    await error_of(cluster.send("impatient", 10))
    attempts = len(cluster.network.attempts)
    await asyncio.sleep(60)
    assert len(cluster.network.attempts) == attempts


@virtually
async def test_an_attempt_without_an_answer_is_given_up() -> None:
    cluster = Cluster()
    cluster.network.black_holes.add((HOST, 9092))
    failure = await error_of(cluster.send("hello"))
    assert str(failure) == "no connection to broker 2 at broker-2:9092 within 10000 ms"


@virtually
async def test_a_broker_that_accepts_and_says_nothing_is_given_up() -> None:
    cluster = Cluster()
    cluster.broker.is_silent = True
    assert "no login at broker 2 at broker-2:9092 within 10000 ms" in str(await error_of(cluster.send("hello")))
    assert cluster.broker.open_connections == []


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is outside the limits"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"\0\0\0\x04\0\0\0\x63", "with correlation id 99 where"),
        (b"\0\0\0\x00", "a response of 0 bytes is outside the limits"),
        (b"\0\0\0\x06\0\0\0\x01\xff\xff", None),
        (b"\x0f\xff\xff\xff", "a response of 268435455 bytes is outside the limits"),
    ],
)
def test_garbage_ends_the_connection_with_a_typed_error(garbage: bytes, reason: str | None) -> None:
    async def run() -> None:
        cluster = Cluster(response_bytes_max=1 << 20)
        cluster.broker.handler = lambda request: request.connection.stream.deliver(garbage)
        text = Request(ECHO, 0, False, b"", lambda body: bytes(body).decode(), False)
        failure = await error_of(cluster.peers.send(2, Purpose.OFFSETS, text))
        assert isinstance(failure, InvalidResponseError)
        assert reason is None or reason in str(failure)
        cluster.broker.handler = lambda request: request.answer(request.body)
        assert await cluster.call("hello") == "hello"

    run_virtually(run())


@given(noise=st.binary(min_size=1, max_size=200), cut=st.integers(1, 50))
def test_noise_leads_to_a_typed_error_whatever_it_is(noise: bytes, cut: int) -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.broker.handler = lambda request: None
        futures = [cluster.send(str(number), 1_000) for number in range(3)]
        await asyncio.sleep(0.5)
        stream = cluster.broker.connections[0].stream
        for start in range(0, len(noise), cut):
            stream.deliver(noise[start : start + cut])
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(outcome, str | ClientError) for outcome in outcomes)
        cluster.broker.handler = lambda request: request.answer(request.body)
        cluster.peers.close(2)
        assert await cluster.call("hello") == "hello"

    run_virtually(run(), is_one_of_many=True)


@virtually
async def test_a_response_to_no_request_ends_the_connection() -> None:
    cluster = Cluster()
    assert await cluster.call("hello") == "hello"
    cluster.broker.connections[0].stream.deliver(b"\0\0\0\x04\0\0\0\x63")
    assert cluster.broker.open_connections == []
    assert await cluster.call("hello") == "hello"


@virtually
async def test_a_large_response_before_the_login_is_refused() -> None:
    cluster = Cluster()
    cluster.broker.is_silent = True
    waiting = cluster.send("hello")
    await asyncio.sleep(0.1)
    cluster.broker.connections[0].stream.deliver((1 << 20).to_bytes(4, "big"))
    assert "a response of 1048576 bytes is outside the limits (4 to 524288)" in str(await error_of(waiting))


@virtually
async def test_a_large_response_in_pieces_comes_whole_between_small_ones() -> None:
    cluster = Cluster()
    texts = ["small", "x" * 1_000_000, "", "y" * 20_000, "z"]
    held: list[MemoryRequest] = []
    cluster.broker.handler = held.append
    futures = [cluster.send(text) for text in texts]
    await asyncio.sleep(1)
    data = b"".join(
        (4 + len(each.body)).to_bytes(4, "big") + each.correlation_id.to_bytes(4, "big") + each.body for each in held
    )
    for start in range(0, len(data), 7_777):
        held[0].connection.stream.deliver(data[start : start + 7_777])
    assert await asyncio.gather(*futures) == texts


@virtually
async def test_a_request_that_the_broker_does_not_serve_is_not_sent() -> None:
    cluster = Cluster()
    newer = cluster.peers.send(2, Purpose.OFFSETS, echo("newer", version=14))
    unknown = cluster.peers.send(2, Purpose.OFFSETS, echo("unknown", api_key=2))
    between_brokers = cluster.peers.send(2, Purpose.OFFSETS, echo("between brokers", api_key=56, version=3))
    failure = await error_of(newer)
    assert isinstance(failure, UnsupportedVersionError)
    assert "does not serve Metadata version 14 (versions 0-13)" in str(failure)
    assert isinstance(await error_of(unknown), UnsupportedVersionError)
    assert await between_brokers == "between brokers", "not listed, but served"
    assert len(cluster.broker.open_connections) == 1


@virtually
async def test_a_connection_to_an_old_address_is_dropped() -> None:
    cluster = Cluster()
    moved = cluster.network.brokers["elsewhere", 9093] = MemoryBroker()
    cluster.broker.handler = lambda request: None
    waiting = cluster.send("hello")
    await asyncio.sleep(1)
    cluster.addresses[2] = BrokerAddress("elsewhere", 9093, 8)
    cluster.peers.metadata_changed()
    assert str(await error_of(waiting)) == "broker 2 at broker-2:9092 moved to elsewhere:9093"
    assert cluster.broker.open_connections == []
    assert await cluster.call("hello") == "hello"
    assert len(moved.open_connections) == 1


@virtually
async def test_a_new_registration_at_the_same_address_is_another_broker() -> None:
    cluster = Cluster()
    assert await cluster.call("hello") == "hello"
    cluster.addresses[2] = BrokerAddress(HOST, 9092, 8)
    assert await cluster.call("hello") == "hello", "the change is seen without a notice, too"
    assert [connection.stream.is_closed for connection in cluster.broker.connections] == [True, False]


@virtually
async def test_a_broker_that_is_gone_fails_its_calls_at_once() -> None:
    cluster = Cluster()
    cluster.broker.handler = lambda request: None
    waiting = cluster.send("hello")
    await asyncio.sleep(1)
    del cluster.addresses[2]
    cluster.peers.metadata_changed()
    assert "is no longer registered" in str(await error_of(waiting))
    assert "it is not registered" in str(await error_of(cluster.send("hello")))


@virtually
async def test_a_new_address_ends_the_back_off_of_the_old_one() -> None:
    cluster = Cluster()
    del cluster.network.brokers[HOST, 9092]
    for _ in range(6):
        await error_of(cluster.send("hello"))
    waiting = cluster.send("hello")
    cluster.network.brokers["elsewhere", 9093] = MemoryBroker()
    begun_ms = cluster.clock.monotonic_ms()
    cluster.addresses[2] = BrokerAddress("elsewhere", 9093, 8)
    cluster.peers.metadata_changed()
    assert await waiting == "hello"
    assert cluster.clock.monotonic_ms() - begun_ms < 50


@virtually
async def test_purposes_and_brokers_do_not_wait_for_each_other() -> None:
    cluster = Cluster()
    cluster.addresses[3] = BrokerAddress("broker-3", 9092, 1)
    cluster.network.brokers["broker-3", 9092] = MemoryBroker()
    cluster.broker.handler = lambda request: None if request.body == b"long poll" else request.answer(request.body)
    parked = cluster.peers.send(2, Purpose.FETCH_IN_SYNC, echo("long poll"))
    assert await cluster.peers.call(2, Purpose.FETCH_CATCHING_UP, echo("bulk")) == "bulk"
    assert await cluster.peers.call(3, Purpose.FETCH_IN_SYNC, echo("other")) == "other"
    assert not parked.done()
    cluster.peers.close(2)
    assert str(await error_of(parked)) == "the connections to broker 2 were closed"
    assert cluster.broker.open_connections == []
    assert await cluster.peers.call(3, Purpose.FETCH_IN_SYNC, echo("other")) == "other"
    assert await cluster.peers.call(2, Purpose.FETCH_IN_SYNC, echo("again")) == "again"


@virtually
async def test_after_the_end_every_call_fails_and_nothing_is_left() -> None:
    cluster = Cluster()
    cluster.network.black_holes.add((HOST, 9092))
    connecting = cluster.send("hello")
    await asyncio.sleep(0.1)
    await cluster.peers.aclose()
    assert isinstance(await error_of(connecting), PeersClosedError)
    assert isinstance(await error_of(cluster.send("later")), PeersClosedError)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(cluster.network.attempts) == 1


@virtually
async def test_waiting_calls_are_limited() -> None:
    cluster = Cluster()
    cluster.network.black_holes.add((HOST, 9092))
    futures = [cluster.send(str(number)) for number in range(WAITING_CALLS_MAX)]
    assert isinstance(await error_of(cluster.send("beyond")), PeerBusyError)
    futures[0].cancel()
    there_is_room = cluster.send("room")
    assert not there_is_room.done()
    await cluster.peers.aclose()
    for future in [*futures[1:], there_is_room]:
        await error_of(future)


@virtually
async def test_an_idle_connection_is_replaced_before_the_broker_closes_it() -> None:
    cluster = Cluster(idle_ms_max=60_000)
    assert await cluster.call("hello") == "hello"
    await asyncio.sleep(59)
    assert await cluster.call("hello") == "hello"
    assert len(cluster.broker.connections) == 1
    await asyncio.sleep(61)
    assert await cluster.call("hello") == "hello"
    assert [connection.stream.is_closed for connection in cluster.broker.connections] == [True, False]


def test_a_connection_that_the_broker_closes_because_nobody_uses_it_is_no_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        cluster = Cluster()
        for _ in range(3):
            assert await cluster.call("hello") == "hello"
            await asyncio.sleep(600)
            cluster.broker.end_connections()

    caplog.set_level(logging.INFO)
    run_virtually(run())
    assert lines(caplog) == []


def test_a_broker_that_is_down_is_one_line_and_one_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        cluster = Cluster()
        del cluster.network.brokers[HOST, 9092]
        for _ in range(30):
            await error_of(cluster.send("hello"))
        cluster.network.brokers[HOST, 9092] = cluster.broker
        assert await cluster.call("hello") == "hello"

    caplog.set_level(logging.INFO)
    run_virtually(run())
    assert lines(caplog) == [
        ("WARNING", "no connection to broker 2 at broker-2:9092: Connection refused; the broker tries again"),
        ("INFO", "broker 2 at broker-2:9092 answers"),
    ]
