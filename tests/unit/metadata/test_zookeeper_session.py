"""What kazoo is told, and what it is given: waits, hosts, sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
from kazoo.handlers.utils import selector_select
from kazoo.retry import ForceRetryError, RetryFailedError

from headwater.logtier.metadata.zookeeper.kazoo_handler import KazooHandler
from headwater.logtier.metadata.zookeeper.session import RECONNECT_S_MAX, host_list, reconnecting
from headwater.logtier.metadata.zookeeper.settings import ZooKeeperSettings
from tests.conftest import Certificates


@pytest.mark.parametrize("seed", range(3))
def test_waits_between_attempts_to_connect_neither_vanish_nor_grow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
