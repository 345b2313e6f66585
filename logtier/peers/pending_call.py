"""One request to another broker, from the call to its response."""

from __future__ import annotations

import asyncio
from typing import Final, Generic, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import ClientError, RequestTimeoutError

__all__ = ["GRACE_MS", "STALL_MS", "PendingCall"]

#: Beyond this lateness of a timer the process was stopped. Responses may have arrived since: they get GRACE_MS.
STALL_MS: Final = 1_000
GRACE_MS: Final = 1_000

_T = TypeVar("_T")


class PendingCall(Generic[_T]):
    """A request and the future of its caller, with the caller's time limit.

    Invariant: the future ends once, by the response, an error, the time limit or the caller's cancellation. A response
    that arrives after that is dropped.
    """

    __slots__ = ("_loop", "_name", "_timer", "future", "request", "sent_ms", "timeout_ms")

    def __init__(self, request: Request[_T], timeout_ms: int, name: str) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.request = request
        self.timeout_ms = timeout_ms
        self.future: asyncio.Future[_T] = loop.create_future()
        #: Monotonic time at which the request was written to the connection.
        self.sent_ms = -1
        self._name = name
        due_s = loop.time() + timeout_ms / 1000
        self._timer = loop.call_at(due_s, self._timed_out, due_s)

    @property
    def is_wanted(self) -> bool:
        """Whether the caller still waits."""
        return not self.future.done()

    def answered(self, value: _T) -> None:
        """Deliver the response."""
        self._timer.cancel()
        if not self.future.done():
            self.future.set_result(value)

    def failed(self, failure: ClientError) -> None:
        """Deliver an error: an error of its own, since several callers share the failure of a connection."""
        self._timer.cancel()
        if not self.future.done():
            error = type(failure)(*failure.args)
            error.__cause__ = failure.__cause__
            self.future.set_exception(error)

    def _timed_out(self, due_s: float) -> None:
        if self.future.done():
            return
        now_s = self._loop.time()
        if now_s - due_s >= STALL_MS / 1000:
            due_s = now_s + GRACE_MS / 1000
            self._timer = self._loop.call_at(due_s, self._timed_out, due_s)
        else:
            waited = "did not answer" if self.sent_ms >= 0 else "could not be sent the request"
            self.future.set_exception(RequestTimeoutError(f"{self._name} {waited} within {self.timeout_ms} ms"))
