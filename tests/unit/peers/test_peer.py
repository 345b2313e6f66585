"""Connections to other brokers on a virtual clock: order, time limits, cancellation, back-off, log lines."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from headwater.logtier.client.connection import REQUESTS_IN_FLIGHT_MAX, Request
from headwater.logtier.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ClientError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from headwater.logtier.client.security import PLAINTEXT, ClientSecurity
from headwater.logtier.peers.errors import PeerBusyError, PeersClosedError
from headwater.logtier.peers.link import LinkContext
from headwater.logtier.peers.peer import WAITING_CALLS_MAX
from headwater.logtier.peers.peers import Peers, Purpose
from headwater.logtier.peers.settings import BrokerAddress, PeerSettings
from headwater.logtier.protocol.errors import ErrorCode
from tests.memory_network import ECHO, MemoryBroker, MemoryNetwork, MemoryRequest
from tests.virtual_time import LoopClock, run_virtually

HOST: Final = "broker-2"
ALICE = ClientSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="alice-secret")
REQUEST_MS: Final = PeerSettings("test").request_timeout_ms


def echo(text: str, api_key: int = ECHO, version: int = 0) -> Request[str]:
    """A request whose response is its own text."""
    return Request(api_key, version, False, text.encode(), lambda body: bytes(body).decode(), False)


class Cluster:
    """This broker's connections to broker 2, which is there unless a test removes it."""

    def __init__(self, security: ClientSecurity = PLAINTEXT, **settings: Any) -> None:
        self.network = MemoryNetwork()
        self.broker = self.network.brokers[HOST, 9092] = MemoryBroker()
        self.addresses: dict[int, BrokerAddress] = {2: BrokerAddress(HOST, 9092, 7)}
        self.security = security
        self.clock = LoopClock()
        context = LinkContext(self.network, self.clock, lambda: 0.5, lambda: "nonce", PeerSettings("test", **settings))
        self.peers = Peers(self.addresses.get, lambda: self.security, context)

    def send(self, text: str, timeout_ms: int | None = None) -> asyncio.Future[str]:
        return self.peers.send(2, Purpose.OFFSETS, echo(text), timeout_ms)

    async def call(self, text: str, timeout_ms: int | None = None) -> str:
        return await self.peers.call(2, Purpose.OFFSETS, echo(text), timeout_ms)

    @property
    def attempt_gaps_ms(self) -> list[int]:
        """Times between the attempts to connect."""
        times = [round(at_s * 1000) for at_s, _, _ in self.network.attempts]
        return [after - before for before, after in itertools.pairwise(times)]

    def received(self) -> list[str]:
        return [request.body.decode() for request in self.broker.requests]


async def error_of(future: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        await future
    return caught.value


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test on a virtual clock."""

    @functools.wraps(test)
    def run() -> None:
        run_virtually(test())

    return run


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
    assert isinstance(await error_of(parked), PeersClosedError)
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


class Sasl:
    """The SASL side of a broker: one user, sessions of a limited time."""

    def __init__(self, cluster: Cluster, lifetime_ms: int = 0) -> None:
        self.password = "alice-secret"
        self.lifetime_ms = lifetime_ms
        self.logins = 0
        self.held: list[MemoryRequest] = []
        #: APIs whose requests are held back.
        self.holds: set[int] = set()
        cluster.broker.handler = self.handle

    def handle(self, request: MemoryRequest) -> None:
        if request.api_key in self.holds:
            self.held.append(request)
        else:
            self.answer(request)

    def answer(self, request: MemoryRequest) -> None:
        if request.api_key == 17:
            request.answer_tree({"error_code": ErrorCode.none, "mechanisms": ["PLAIN"]})
        elif request.api_key == 36:
            self.logins += 1
            if self.password.encode() in request.body:
                tree: dict[str, Any] = {"error_message": None, "auth_bytes": b"", "session_lifetime": self.lifetime_ms}
            else:
                message = "Authentication failed: Invalid username or password"
                tree = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": message, "auth_bytes": b""}
            # Version 2 has tagged fields in the header of its response.
            request.answer(b"\0" * (request.api_version == 2) + _encoded(request, tree))
        else:
            request.answer(request.body)


def _encoded(request: MemoryRequest, tree: dict[str, Any]) -> bytes:
    from headwater.logtier.protocol.messages import encode_response

    return encode_response(request.api_key, request.api_version, tree)


@virtually
async def test_a_session_is_renewed_between_two_requests() -> None:
    """Requests in flight are answered before, later ones after the renewal, all on one connection."""
    cluster = Cluster(ALICE)
    sasl = Sasl(cluster, lifetime_ms=10_000)
    assert await cluster.call("first") == "first"
    await asyncio.sleep(8)
    sasl.holds = {ECHO, 17}
    in_flight = cluster.send("in flight")
    await asyncio.sleep(1.5)
    later = [cluster.send("later"), cluster.send("last")]
    await asyncio.sleep(0.1)
    assert [request.api_key for request in cluster.broker.requests[-2:]] == [ECHO, 17]
    assert sasl.logins == 1
    sasl.holds = set()
    for request in sasl.held:
        sasl.answer(request)
    assert await asyncio.gather(in_flight, *later) == ["in flight", "later", "last"]
    assert sasl.logins == 2
    assert len(cluster.broker.connections) == 1


@virtually
async def test_an_unused_session_is_not_renewed() -> None:
    cluster = Cluster(ALICE)
    sasl = Sasl(cluster, lifetime_ms=10_000)
    assert await cluster.call("first") == "first"
    await asyncio.sleep(400)
    assert sasl.logins == 1
    assert await cluster.call("second") == "second"
    assert sasl.logins == 2


@virtually
async def test_a_password_that_is_wrong_at_the_renewal_fails_the_waiting_calls() -> None:
    cluster = Cluster(ALICE)
    sasl = Sasl(cluster, lifetime_ms=10_000)
    assert await cluster.call("first") == "first"
    sasl.password = "other-secret"
    await asyncio.sleep(9.5)
    assert isinstance(await error_of(cluster.send("second")), AuthenticationError)
    assert cluster.broker.open_connections == []


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if "peers" in record.name]


def test_a_wrong_password_is_one_line_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        cluster = Cluster(ALICE)
        sasl = Sasl(cluster)
        sasl.password = "other-secret"
        for _ in range(20):
            for purpose in (Purpose.FETCH_IN_SYNC, Purpose.CONTROLLER):
                failure = await error_of(cluster.peers.send(2, purpose, echo("hello"), 3_600_000))
                assert isinstance(failure, AuthenticationError)
        [(level, line)] = lines(caplog)
        assert level == "ERROR"
        assert line == (
            "broker 2 at broker-2:9092 refuses user 'alice': Authentication failed: Invalid username or password; "
            "the broker tries again"
        )
        gaps = cluster.attempt_gaps_ms
        assert max(gaps) > 5_000, "a refused credential is tried less often than a broker that is down"
        changed = ClientSecurity(
            protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="third-secret"
        )
        cluster.security = changed
        await error_of(cluster.peers.send(2, Purpose.CONTROLLER, echo("hello"), 3_600_000))
        assert len(lines(caplog)) == 2
        sasl.password = "third-secret"
        assert await cluster.peers.call(2, Purpose.CONTROLLER, echo("hello"), 3_600_000) == "hello"
        assert lines(caplog)[2:] == [("INFO", "broker 2 at broker-2:9092 answers")]
        assert "secret" not in caplog.text

    caplog.set_level(logging.INFO)
    run_virtually(run())


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
