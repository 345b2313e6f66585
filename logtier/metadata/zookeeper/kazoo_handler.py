"""What kazoo needs of its surroundings: sockets, locks, threads, and a place for its events: the event loop."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.exceptions import SessionClosedRequireSaslError
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError
from kazoo.handlers.utils import create_socket_pair, selector_select

from headwater.logtier.config import ConfigError

Select = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]


class KazooAnswer(AsyncResult):
    """The answer to a request, and its zxid: of a transaction, the transaction's."""

    def __init__(self, handler: "KazooHandler") -> None:
        super().__init__(handler)
        self._client = handler.client
        self.zxid = 0

    def set(self, value: object = None) -> None:
        """Keep the value; kazoo has just noted the zxid of the answer's header."""
        self.zxid = self._client.last_zxid
        super().set(value)


class KazooHandler:
    """A handler of kazoo's (its interface IHandler) for one client.

    kazoo runs one thread, for its connection. Results and watch events are handed to the event loop from there, in the
    order of the server's answers; no other code of the log tier runs on that thread.

    kazoo reads the attributes that its interface names; `connect_failure` is the last error of a connection, and
    `client` is set by the client's owner.
    """

    name: Final = "headwater"
    timeout_exception: Final = KazooTimeoutError
    sleep_func: Final = staticmethod(time.sleep)
    # Results then call their callbacks at once, on the thread that sets them, instead of on a worker thread.
    running: Final = False

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls_context: Callable[[], ssl.SSLContext | None],
        connect_timeout_s: float,
    ) -> None:
        """`tls_context` is called for each connection: renewed certificates are read without a restart."""
        self._loop = loop
        self._tls_context = tls_context
        self._connect_timeout_s = connect_timeout_s
        self.connect_failure = ""
        self.client: Any = None
        #: Called on the event loop with the client whose wrong password ended its thread.
        self.on_refusal: Callable[[Any], None] = lambda _: None

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the event loop, from any thread."""
        # The loop may have been closed while kazoo's thread ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def dispatch_callback(self, callback: Any) -> None:
        """Hand a watch event to the event loop."""
        self.post(callback.func, *callback.args)

    def start(self) -> None:
        """Start no workers: results and events go to the event loop."""

    def stop(self) -> None:
        """Stop nothing."""

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_tls: object
    ) -> socket.socket:
        """Connect; OSError. kazoo's own function admits the authorities of the system beside the truststore's.

        kazoo would wait a whole session timeout for a host that does not answer, and lose the session with it.
        """
        limit_s = min(timeout or self._connect_timeout_s, self._connect_timeout_s)
        try:
            connection = socket.create_connection(address, limit_s)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                context = self._tls_context()
                if context is not None:
                    return context.wrap_socket(connection, server_hostname=hostname)
            except BaseException:
                connection.close()
                raise
        except ConfigError as error:
            self.connect_failure = str(error)
            raise OSError(str(error)) from None
        except OSError as error:
            self.connect_failure = error.strerror or str(error)
            raise
        return connection

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], errors: Sequence[Any], timeout: float | None = None
    ) -> Select:
        """Wait for sockets. A TLS socket that holds decrypted bytes is ready, though its file descriptor is not."""
        holding = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        if not holding:
            found: Select = selector_select(readers, writers, errors, timeout)
            return found
        others = [reader for reader in readers if reader not in holding]
        ready, writable, failed = selector_select(others, writers, errors, 0)
        return [*holding, *ready], writable, failed

    def create_socket_pair(self) -> Any:
        """Return the sockets by which the event loop wakes kazoo's thread."""
        return create_socket_pair(socket)

    def socket(self) -> socket.socket:
        """Return a TCP socket."""
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def event_object(self) -> threading.Event:
        """Return an event."""
        return threading.Event()

    def lock_object(self) -> Any:
        """Return a lock."""
        return threading.Lock()

    def rlock_object(self) -> Any:
        """Return a reentrant lock."""
        return threading.RLock()

    def async_result(self) -> KazooAnswer:
        """Return an empty result."""
        return KazooAnswer(self)

    def spawn(self, function: Callable[..., object], *arguments: Any, **named: Any) -> threading.Thread:
        """Start a thread, which does not keep the process alive."""
        client = self.client

        def run() -> None:
            try:
                function(*arguments, **named)
            except SessionClosedRequireSaslError:
                # A server that requires a login answers a wrong password so, for which kazoo has no state.
                self.post(self.on_refusal, client)

        thread = threading.Thread(target=run, name="headwater-zookeeper", daemon=True)
        thread.start()
        return thread
