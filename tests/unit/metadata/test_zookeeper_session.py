"""What kazoo is told, and what it is given: waits, hosts, sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from kazoo import exceptions
from kazoo.handlers.utils import selector_select
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.retry import ForceRetryError, RetryFailedError

from headwater.logtier.metadata.store import SessionState, StoreUnavailableError
from headwater.logtier.metadata.zookeeper import session as session_module
from headwater.logtier.metadata.zookeeper.kazoo_handler import KazooHandler
from headwater.logtier.metadata.zookeeper.session import (
    IN_FLIGHT_MAX,
    RECONNECT_S_MAX,
    ZooKeeperSession,
    host_list,
    reconnecting,
)
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from tests.conftest import Certificates


@pytest.mark.parametrize("seed", range(3))
def test_waits_between_attempts_to_connect_neither_vanish_nor_grow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kazoo's back-off grows, and a session is lost while ZooKeeper is back already."""
    monkeypatch.setattr(random, "uniform", random.Random(seed).uniform)
    waits: list[float] = []
    retry = reconnecting()
    retry.max_tries = 2000
    retry.sleep_func = waits.append

    def fail() -> None:
        raise ForceRetryError

    with pytest.raises(RetryFailedError):
        retry(fail)
    assert max(waits) < 2 * RECONNECT_S_MAX
    assert min(waits[10:]) > RECONNECT_S_MAX / 2


@pytest.mark.parametrize(
    ("connect", "session_timeout_ms", "hosts"),
    [
        ("zk", 18_000, ["zk:2181"] * 6),
        ("a:1,b:2", 18_000, ["a:1", "b:2"] * 3),
        ("a:1,b:2,c:3,d:4", 18_000, ["a:1", "b:2", "c:3", "d:4"] * 2),
        ("[::1]:2182", 9_000, ["[::1]:2182"] * 6),
        # The handshake keeps a second.
        ("zk", 2_000, ["zk:2181"] * 2),
        ("a:1,b:2", 500, ["a:1", "b:2"]),
    ],
)
def test_hosts_are_named_so_often_that_a_handshake_does_not_outlast_the_session(
    connect: str, session_timeout_ms: int, hosts: list[str]
) -> None:
    """Kazoo waits a session time, divided by the hosts in its list, for a server that listens only."""
    assert host_list(ZooKeeperSettings(connect, session_timeout_ms)) == hosts


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_decrypted_bytes_make_a_tls_socket_ready(loop: asyncio.AbstractEventLoop, certificates: Certificates) -> None:
    """Two answers in one TLS record: with kazoo's own select, the second waits for the next traffic."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificates.server)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server_context.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.sendall(b"onetwo")
            connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    settings = ZooKeeperSettings("localhost", tls=True, truststore=str(certificates.ca))
    given = KazooHandler(loop, settings.tls_context, connect_timeout_s=30)
    with given.create_connection(listening.getsockname(), hostname="localhost") as connection:
        assert connection.recv(3) == b"one"
        assert selector_select([connection], [], [], 0)[0] == []
        assert given.select([connection], [], [], 30)[0] == [connection]
        assert connection.recv(3) == b"two"
        assert given.select([connection], [], [], 0)[0] == []
        connection.sendall(b"!")
    thread.join()
    listening.close()


def test_a_host_that_accepts_and_says_nothing_does_not_hold_up_the_session(
    loop: asyncio.AbstractEventLoop, certificates: Certificates
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = ZooKeeperSettings("localhost", tls=True, truststore=str(certificates.ca))
        given = KazooHandler(loop, settings.tls_context, connect_timeout_s=0.2)
        with pytest.raises(TimeoutError):
            given.create_connection(listening.getsockname(), hostname="localhost", timeout=3600)
        assert "timed out" in given.connect_failure


def test_a_file_of_tls_that_goes_away_is_a_connection_that_fails(loop: asyncio.AbstractEventLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        settings = ZooKeeperSettings("localhost", tls=True, truststore="/none.pem")
        given = KazooHandler(loop, settings.tls_context, connect_timeout_s=0.2)
        with pytest.raises(OSError, match="truststore"):
            given.create_connection(listening.getsockname(), hostname="localhost")


def test_events_for_a_loop_that_is_closed_are_dropped(loop: asyncio.AbstractEventLoop) -> None:
    given = KazooHandler(loop, lambda: None, 1)
    loop.close()
    given.post(print)


class ScriptedClient:
    """A client of kazoo's whose answers the test gives, from another thread as kazoo does."""

    made: ClassVar[list[ScriptedClient]] = []

    def __init__(self, **named: Any) -> None:
        self.named = named
        self.handler: KazooHandler = named["handler"]
        self.client_id = (7, b"")
        self.client_state = KeeperState.CONNECTED
        self.last_zxid = 0
        self.answers: list[Any] = []
        self.made.append(self)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self.listener = listener

    def start_async(self) -> None:
        self.listener(KazooState.CONNECTED)

    def get_async(self, path: str) -> Any:
        self.answers.append(self.handler.async_result())
        return self.answers[-1]

    def stop(self) -> None: ...

    def close(self) -> None: ...


async def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[ZooKeeperSession, ScriptedClient]:
    monkeypatch.setattr(session_module, "KazooClient", ScriptedClient)
    session = ZooKeeperSession(ZooKeeperSettings("zk"), lambda state: None)
    session.begin()
    await session.connected()
    return session, ScriptedClient.made[-1]


def test_kazoo_gets_the_repeated_hosts_and_the_waits_that_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kazoo's defaults a session was lost after 25 s without ZooKeeper."""

    async def scenario() -> None:
        session, client = await begun(monkeypatch)
        wanted, given = reconnecting(), client.named["connection_retry"]
        assert client.named["hosts"] == ",".join(host_list(ZooKeeperSettings("zk"))) == ",".join(["zk:2181"] * 6)
        for name in ("max_tries", "delay", "backoff", "max_delay", "sleep_func"):
            assert getattr(given, name) == getattr(wanted, name), name
        await session.end()

    asyncio.run(scenario())


def test_a_request_whose_connection_is_lost_finds_the_session_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo fails its requests before it says why: who tried again at once would fail again."""

    async def scenario() -> None:
        session, client = await begun(monkeypatch)
        request = asyncio.ensure_future(session.get("/a"))
        await asyncio.sleep(0)
        client.answers[0].set_exception(exceptions.ConnectionLoss())
        with pytest.raises(StoreUnavailableError):
            await request
        assert session.state is SessionState.SUSPENDED
        client.listener(KazooState.SUSPENDED)
        client.listener(KazooState.CONNECTED)
        await session.connected()
        await session.end()

    asyncio.run(scenario())


def test_requests_beyond_the_limit_wait_for_answers_in_the_order_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        session, client = await begun(monkeypatch)
        requests = [asyncio.ensure_future(session.get(f"/{number}")) for number in range(IN_FLIGHT_MAX + 10)]
        await asyncio.sleep(0)
        assert len(client.answers) == IN_FLIGHT_MAX
        # One that waits is given up, and takes nobody's turn.
        requests[IN_FLIGHT_MAX].cancel()
        stat = ZnodeStat(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        for count in range(1, IN_FLIGHT_MAX + 10):
            answer = client.answers[count - 1]
            answer.set((b"%d" % count, stat))
            # kazoo sets some twice.
            answer.set((b"again", stat))
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(client.answers) == min(IN_FLIGHT_MAX + count, IN_FLIGHT_MAX + 9)
        del requests[IN_FLIGHT_MAX]
        assert [(await request).data for request in requests] == [
            b"%d" % count for count in range(1, len(requests) + 1)
        ]
        await session.end()

    asyncio.run(scenario())


def test_requests_that_wait_for_their_turn_fail_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        session, client = await begun(monkeypatch)
        requests = [asyncio.ensure_future(session.get(f"/{number}")) for number in range(2 * IN_FLIGHT_MAX)]
        await asyncio.sleep(0)
        client.listener(KazooState.SUSPENDED)
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailableError}
        assert len(client.answers) == IN_FLIGHT_MAX
        # Those that were sent keep their places until kazoo says what became of them.
        client.listener(KazooState.CONNECTED)
        await session.connected()
        late = asyncio.ensure_future(session.get("/late"))
        await asyncio.sleep(0)
        assert len(client.answers) == IN_FLIGHT_MAX
        client.answers[0].set((b"", ZnodeStat(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(client.answers) == IN_FLIGHT_MAX + 1
        client.answers[-1].set((b"late", ZnodeStat(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)))
        assert (await late).data == b"late"
        await session.end()

    asyncio.run(scenario())
