"""Clients of other protocols, and a server that is opened for them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from headwater.cli.sql_service.foreign_ports import ForeignPort
from headwater.pipelines.sql.loopback import CONNECTIONS_MAX
from tests.waiting import until

pytestmark = pytest.mark.slow

WAIT_S = 30.0


class Lab:
    """A server that sends back what it receives, and the port in front of it."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.users = 0
        self.is_open = threading.Event()
        self.failure: Exception | None = None
        self._echo = socket.create_server(("127.0.0.1", 0))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2 * CONNECTIONS_MAX)
        self.port = ForeignPort("JDBC", self._listener, self._opened, self.reports.append)
        threading.Thread(target=self._serve, daemon=True).start()
        self.port.start()

    @contextlib.contextmanager
    def _opened(self, check: Callable[[], None]) -> Iterator[int]:
        self.users += 1
        try:
            while not self.is_open.wait(0.05):
                check()
            if self.failure is not None:
                raise self.failure
            yield self._echo.getsockname()[1]
        finally:
            self.users -= 1

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._echo.accept()
            except OSError:
                return
            threading.Thread(target=self._echo_back, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo_back(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while (piece := connection.recv(1 << 16)) and piece != b"end":
                connection.sendall(piece)

    def client(self) -> socket.socket:
        return socket.create_connection(self.port.address, timeout=WAIT_S)

    def close(self) -> None:
        for each in (self._echo, self._listener):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def received(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := client.recv(1 << 16)):
        found += piece
    return found


def test_bytes_go_both_ways_and_a_connection_holds_the_server(lab: Lab) -> None:
    sent = bytes(range(256)) * 40_000
    with lab.client() as client:
        threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
        until(lambda: lab.users == 1)
        lab.is_open.set()
        assert received(client, len(sent)) == sent
        assert lab.users == 1
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    until(lambda: lab.users == 0)
    assert lab.reports == []


def test_a_client_is_disconnected_when_the_server_ends(lab: Lab) -> None:
    lab.is_open.set()
    with lab.client() as client:
        client.sendall(b"end")
        assert client.recv(1) == b""
        until(lambda: lab.users == 0)


def test_a_client_that_goes_while_the_server_opens_holds_it_no_longer(lab: Lab) -> None:
    with lab.client():
        until(lambda: lab.users == 1)
    until(lambda: lab.users == 0)
    assert lab.reports == []


def test_a_server_that_does_not_open_is_reported_in_a_line(lab: Lab) -> None:
    lab.failure = ConnectionRefusedError("Spark did not start:\nno Java")
    lab.is_open.set()
    with lab.client() as client:
        assert client.recv(1) == b""
    until(lambda: lab.reports == ["a client of JDBC was disconnected: Spark did not start: no Java"])
    assert lab.users == 0


def test_clients_over_the_limit_wait(lab: Lab) -> None:
    lab.is_open.set()
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(lab.client()) for _ in range(CONNECTIONS_MAX + 1)]
        for client in clients:
            client.sendall(b"x")
        assert [client.recv(1) for client in clients[:-1]] == [b"x"] * CONNECTIONS_MAX
        assert lab.users == CONNECTIONS_MAX
        clients[0].close()
        assert clients[-1].recv(1) == b"x"
