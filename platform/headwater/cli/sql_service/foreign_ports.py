"""The ports on which clients of JDBC, ODBC and Spark Connect reach the service's JVM, which they keep open.

The JVM comes with the first client and goes when there was none for a while, so this process listens, and passes on the
bytes of each connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from headwater.pipelines.sql.loopback import CONNECTIONS_MAX, LOCALHOST

__all__ = ["ClientGoneError", "ForeignPort"]

PIECE_BYTES: Final = 65_536
PAUSE_S: Final = 1.0

Check = Callable[[], None]


class ClientGoneError(Exception):
    """A client closed its connection before it was served."""


class ForeignPort:
    """Connects the clients of one port with a server that is opened for them."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        opened: Callable[[Check], AbstractContextManager[int]],
        report: Callable[[str], None],
    ) -> None:
        """`opened` gives the server's port on 127.0.0.1, and holds it open; it calls its argument meanwhile.

        A client for whom `opened` fails is disconnected, and `report` is called with a line.
        """
        self._name = name
        self._listener = listener
        self._opened = opened
        self._report = report
        self._free = threading.Semaphore(CONNECTIONS_MAX)

    @property
    def address(self) -> tuple[str, int]:
        """Where the port is."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Accept clients until the listener is closed; returns at once."""
        threading.Thread(target=self._accept, name=f"{self._name}-port", daemon=True).start()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if self._listener.fileno() < 0:
                    return
                # Too many open files, or a client that is gone already: others come.
                self._report(f"a client of {self._name} could not be accepted: {error.strerror}")
                self._free.release()
                time.sleep(PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(client,), name=f"{self._name}-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, self._opened(lambda: _require_client(client)) as port:
                self._pass_on(client, port)
        except ClientGoneError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever kept the JVM from being opened is told here
            self._report(f"a client of {self._name} was disconnected: {' '.join(str(error).split())[:500]}")
        finally:
            self._free.release()

    def _pass_on(self, client: socket.socket, port: int) -> None:
        """Pass on the bytes of a connection, both ways, until one side has closed it."""
        with socket.create_connection((LOCALHOST, port)) as server:
            with contextlib.suppress(OSError):  # of a client that is gone already
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_copy_back, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, and end the target. An error ends both: neither can be used any more."""
    try:
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _copy_back(server: socket.socket, client: socket.socket) -> None:
    """Copy until the server has ended. Then nobody reads what the client sends: its connection ends, too."""
    _copy(server, client)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _require_client(client: socket.socket) -> None:
    """Raise ClientGoneError if a client has closed its connection."""
    try:
        if client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
            raise ClientGoneError
    except BlockingIOError:
        pass
    except OSError:
        raise ClientGoneError from None
