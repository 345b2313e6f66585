"""The raw client's deadlines, by a clock of the test's own; the sockets are real."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from headwater.logtier.client import blocking
from headwater.logtier.client.blocking import BlockingConnection
from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import RequestTimeoutError

REQUEST_TIMEOUT_S = 30
PAUSE_S = 100
NO_APIS = struct.pack(">hi", 0, 0)


class Peer:
    """Answers ApiVersions, and, if it is told to, the request that follows."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            self._answer(client, NO_APIS)
            if self._answers:
                self._answer(client, b"answer")
            self._done.wait()

    @staticmethod
    def _answer(client: socket.socket, body: bytes) -> None:
        frame = client.recv(1 << 16)
        client.sendall(struct.pack(">i", 4 + len(body)) + frame[8:12] + body)

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def start_peer() -> Iterator[Callable[[bool], Peer]]:
    made: list[Peer] = []

    def start(answers: bool) -> Peer:
        made.append(Peer(answers=answers))
        return made[-1]

    yield start
    for peer in made:
        peer.close()


def asked(peer: Peer) -> BlockingConnection:
    """A connection that waits for an answer."""
    connection = BlockingConnection(
        "127.0.0.1",
        peer.port,
        client_id="test",
        connect_timeout_ms=5_000,
        request_timeout_ms=REQUEST_TIMEOUT_S * 1000,
        receive_buffer_bytes=0,
    )
    connection.send(Request(3, 0, False, b"", bytes, False))
    return connection


def stand_still(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """After so many looks at the clock this process stands still, as when it is stopped or its machine sleeps."""
    begun_s = time.monotonic()
    looks = iter([begun_s] * after)
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=lambda: next(looks, begun_s + PAUSE_S)))


def test_a_response_that_came_while_this_process_stood_still_is_read(
    start_peer: Callable[[bool], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = asked(start_peer(True))
    # The length is read, the pause begins, the rest follows.
    stand_still(monkeypatch, after=2)
    assert connection.receive().value == b"answer"
    connection.close()


def test_a_response_that_is_not_there_after_the_request_timeout_is_given_up(
    start_peer: Callable[[bool], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = asked(start_peer(False))
    stand_still(monkeypatch, after=1)
    with pytest.raises(RequestTimeoutError, match="did not answer within 30 s"):
        connection.receive()
    assert connection.closed
