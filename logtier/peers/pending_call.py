"""One request to another broker, from the call to its response."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.client.errors import ClientError, RequestTimeoutError

__all__ = ["PendingCall"]

_T = TypeVar("_T")


class PendingCall(Generic[_T]):
    """A request and the future of its caller, with the caller's time limit.

    Invariant: the future ends once, by the response, an error, the time limit or the caller's cancellation. A response
    that arrives after that is dropped.
    """

    __slots__ = ("_name", "_timer", "future", "request", "sent_ms", "timeout_ms")

    def __init__(self, request: Request[_T], timeout_ms: int, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.timeout_ms = timeout_ms
        self.future: asyncio.Future[_T] = loop.create_future()
        #: Monotonic time at which the request was written to the connection.
        self.sent_ms = -1
        self._name = name
        self._timer = loop.call_later(timeout_ms / 1000, self._timed_out)

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

    def _timed_out(self) -> None:
        if not self.future.done():
            waited = "did not answer" if self.sent_ms >= 0 else "could not be sent the request"
            self.future.set_exception(RequestTimeoutError(f"{self._name} {waited} within {self.timeout_ms} ms"))
