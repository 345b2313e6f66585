"""The bytes of requests that are being received, in all (`queued.max.request.bytes`); pure."""

from collections import deque
from collections.abc import Callable


class RequestMemory:
    """A budget that many connections share.

    A request is admitted as a whole before its buffer is made, so what is admitted can always be received to its end
    and the budget comes back: requests never wait for each other in a circle. One request is admitted whatever its size
    (`socket.request.max.bytes` bounds it), else one larger than the budget would wait for ever.

    Args:
        bytes_max: The budget; -1 for none.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def used_bytes(self) -> int:
        """What is admitted and not yet released."""
        return self._used_bytes

    @property
    def is_waited_for(self) -> bool:
        """Whether requests wait for others to be received."""
        return bool(self._waiting)

    def admit(self, size: int, when_admitted: Callable[[], None]) -> bool:
        """Admit a request now, or call back when its turn has come; those who wait are served in their order."""
        if not self._waiting and self._fits(size):
            self._used_bytes += size
            return True
        self._waiting.append((size, when_admitted))
        return False

    def withdraw(self, when_admitted: Callable[[], None]) -> None:
        """Wait no more: the connection is gone."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] != when_admitted)
        self._admit_waiting()

    def release(self, size: int) -> None:
        """A request was handed out, or its connection is gone."""
        assert 0 <= size <= self._used_bytes
        self._used_bytes -= size
        self._admit_waiting()

    def _fits(self, size: int) -> bool:
        return self._bytes_max < 0 or not self._used_bytes or self._used_bytes + size <= self._bytes_max

    def _admit_waiting(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, when_admitted = self._waiting.popleft()
            self._used_bytes += size
            when_admitted()
