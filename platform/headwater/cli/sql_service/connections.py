"""The service's side of the socket: each connection is one query."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headwater.api.sql_gateway import (
    TIMEOUT_MAX_MS,
    QueryColumns,
    QueryEnd,
    QueryEvent,
    SqlFailure,
    SqlFailureCode,
    SqlQuery,
)
from headwater.cli.sql.statement_run import Cancelled
from headwater.cli.sql_service.admission import Admission
from headwater.sql_socket.frames import (
    CANCEL,
    QUERY,
    FrameError,
    FrameReader,
    encode_event,
    encode_failure,
    query_of,
)

__all__ = ["QueryRunner", "Service", "ServiceLimits"]

PIECE_BYTES: Final = 1 << 20  # of rows in one frame
READ_BYTES: Final = 65_536
FIRST_FRAME_S: Final = 10.0
LAST_FRAME_S: Final = 5.0  # for a client that does not read; then its connection is closed
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Bounds of the service: queries at once, of one session, and the bytes of one answer."""

    queries_max: int = 8
    session_queries_max: int = 4
    bytes_max: int = 32 << 20  # the JVM holds an answer about three times


class QueryRunner(Protocol):
    """Runs a query in the calling thread."""

    def __call__(self, query: SqlQuery, pool: int, send: Callable[[QueryEvent], None], watch: QueryWatch) -> None:
        """Send the events of a query's answer. Raises SqlFailure, and Cancelled once `watch` was cancelled."""


class QueryWatch:
    """Ends one query: at its time limit, which counts from `began`, or when it is cancelled. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_cancel: Callable[[], None] | None = None
        self.failure: SqlFailure | None = None
        self.has_begun = False

    def cancel(self, failure: SqlFailure) -> None:
        """Cancel; the first reason stays."""
        with self._lock:
            self.failure = self.failure or failure
            on_cancel = self._on_cancel
        if on_cancel is not None:
            on_cancel()

    def check(self) -> None:
        """Raise Cancelled if it is cancelled."""
        if self.failure is not None:
            raise Cancelled

    def began(self, on_cancel: Callable[[], None]) -> None:
        """Something runs that `on_cancel` cancels."""
        with self._lock:
            self._on_cancel, self.has_begun = on_cancel, True
            is_cancelled = self.failure is not None
        if is_cancelled:
            on_cancel()


class Service:
    """Accepts connections on a Unix socket, and answers the query of each in a thread of its own."""

    def __init__(self, run: QueryRunner, limits: ServiceLimits) -> None:
        self._run = run
        self._limits = limits
        self._admission = Admission(limits.queries_max, limits.session_queries_max)
        self._lock = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            frames = FrameReader()
            try:
                query = _first_query(connection, frames)
            except (FrameError, OSError):
                return  # none of the API's
            answer = _Answer(connection)
            try:
                with self._lock:
                    pool = self._admission.admit(query.query_id, query.session)
            except SqlFailure as failure:
                answer.fail(failure)
                return
            try:
                last = self._answer_query(query, pool, connection, frames, answer)
            finally:
                with self._lock:
                    self._admission.release(query.query_id)
            # Who asks again behind the end of an answer finds its place free.
            answer.end(last)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # the reading thread ends with the connection

    def _answer_query(
        self, query: SqlQuery, pool: int, connection: socket.socket, frames: FrameReader, answer: _Answer
    ) -> QueryEnd | SqlFailure:
        """Send all of an answer but its end, which is returned."""
        ends: list[QueryEnd] = []

        def send(event: QueryEvent) -> None:
            if isinstance(event, QueryEnd):
                ends.append(event)
            else:
                answer.send(event)

        watch = QueryWatch()
        done = threading.Event()
        threading.Thread(target=_await_cancel, args=(connection, frames, watch, answer), daemon=True).start()
        threading.Thread(target=_await_deadline, args=(query, watch, answer, done), daemon=True).start()
        try:
            self._run(query, pool, send, watch)
        except SqlFailure as failure:
            return watch.failure or failure
        except Cancelled:
            return watch.failure or _cancelled()
        except Exception as error:  # noqa: BLE001 - the JVM may end at any moment, and the client must learn of it
            line = " ".join(str(error).split())[:500]
            return watch.failure or SqlFailure(SqlFailureCode.FAILED, f"the service failed: {line}")
        finally:
            done.set()
        return ends[0]


def _first_query(connection: socket.socket, frames: FrameReader) -> SqlQuery:
    connection.settimeout(FIRST_FRAME_S)
    while True:
        received = connection.recv(READ_BYTES)
        if not received:
            raise FrameError("no query")
        for kind, payload in frames.feed(received):
            if kind != QUERY:
                raise FrameError("no query")
            connection.settimeout(None)
            return query_of(payload)


def _await_cancel(connection: socket.socket, frames: FrameReader, watch: QueryWatch, answer: _Answer) -> None:
    """Cancel when the API says so, or is gone."""
    received = b""  # CANCEL may have come with the query, and is then among the frames already
    with contextlib.suppress(OSError, FrameError):
        while not any(kind == CANCEL for kind, _ in frames.feed(received)):
            received = connection.recv(READ_BYTES)
            if not received:
                break
    watch.cancel(_cancelled())
    answer.fail(_cancelled())


def _await_deadline(query: SqlQuery, watch: QueryWatch, answer: _Answer, done: threading.Event) -> None:
    timeout_ms = max(1, min(query.timeout_ms, TIMEOUT_MAX_MS))
    began: float | None = None
    while not done.wait(LOOK_S):
        if began is None and watch.has_begun:
            began = time.monotonic()
        if began is not None and time.monotonic() - began >= timeout_ms / 1000:
            failure = SqlFailure(SqlFailureCode.TIMED_OUT, f"the query ran for longer than {timeout_ms} ms")
            watch.cancel(failure)
            answer.fail(failure)
            return


def _cancelled() -> SqlFailure:
    return SqlFailure(SqlFailureCode.CANCELLED, "the query was cancelled")


class _Answer:
    """Sends the frames of one answer. Nothing follows its end: what is sent then raises Cancelled. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._is_over = False

    def end(self, last: QueryEnd | SqlFailure) -> None:
        """End the answer; without effect on one that has ended."""
        if isinstance(last, SqlFailure):
            self.fail(last)
        else:
            with contextlib.suppress(Cancelled):
                self.send(last)

    def send(self, event: QueryEvent) -> None:
        """Send an event; waits for a client that does not read. Raises Cancelled if it is gone."""
        if isinstance(event, bytes):
            for start in range(0, len(event), PIECE_BYTES):
                self._send(encode_event(event[start : start + PIECE_BYTES]), is_last=False)
        else:
            self._send(encode_event(event), is_last=not isinstance(event, QueryColumns))

    def fail(self, failure: SqlFailure) -> None:
        """End the answer; without effect on one that has ended. A client that does not read is cut off."""
        if not self._lock.acquire(timeout=LAST_FRAME_S):
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            if not self._is_over:
                self._is_over = True
                with contextlib.suppress(OSError):
                    self._connection.settimeout(LAST_FRAME_S)
                    self._connection.sendall(encode_failure(failure))
        finally:
            self._lock.release()

    def _send(self, frame: bytes, *, is_last: bool) -> None:
        with self._lock:
            if self._is_over:
                raise Cancelled
            self._is_over = is_last
            try:
                self._connection.sendall(frame)
            except OSError:
                self._is_over = True
                raise Cancelled from None
