"""Requests that wait for a partition to move on, or for their time to run out.

An operation is watched under the partitions that can complete it. Whoever changes one of them calls `check`; the
operation then says whether it is complete. Each is completed exactly once: by a check, by its timeout or by cancelling.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from logtier.protocol.topic_partition import TopicPartition


class DelayedOperation(Protocol):
    """Something that waits."""

    def try_complete(self) -> bool:
        """Complete if it can be; whether it is complete now."""

    def expire(self) -> None:
        """The time is over: complete with what there is."""


class Timer(Protocol):
    """A call that was scheduled."""

    def cancel(self) -> None:
        """Forget it."""


#: Seconds from now, what to call.
CallLater = Callable[[float, Callable[[], None]], Timer]


class Watch:
    """One operation's stay in the purgatory."""

    __slots__ = ("_keys", "_operation", "_purgatory", "_timer")

    def __init__(self, purgatory: "Purgatory", operation: DelayedOperation, keys: tuple[TopicPartition, ...]) -> None:
        self._purgatory = purgatory
        self._operation = operation
        self._keys = keys
        self._timer: Timer | None = None

    def arm(self, call_later: CallLater, timeout_s: float) -> None:
        """Start the clock."""
        self._timer = call_later(timeout_s, self._expire)

    def check(self) -> None:
        """Something moved."""
        if self._operation.try_complete():
            self.forget()

    def forget(self) -> None:
        """Take the operation out, complete or not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._purgatory.remove(self, self._keys)

    def _expire(self) -> None:
        self._timer = None
        self._purgatory.remove(self, self._keys)
        self._operation.expire()


class Purgatory:
    """All that wait, by partition."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._watches: dict[TopicPartition, dict[Watch, None]] = {}

    def __len__(self) -> int:
        """How many distinct operations wait."""
        return len({watch for watches in self._watches.values() for watch in watches})

    def watch(self, operation: DelayedOperation, keys: Iterable[TopicPartition], timeout_s: float) -> Watch:
        """Keep an operation until it completes; the caller has tried it once."""
        watch = Watch(self, operation, tuple(keys))
        for key in watch._keys:
            self._watches.setdefault(key, {})[watch] = None
        watch.arm(self._call_later, timeout_s)
        return watch

    def check(self, key: TopicPartition) -> None:
        """A partition moved: complete what that allows."""
        watches = self._watches.get(key)
        if watches:
            for watch in list(watches):
                watch.check()

    def check_soon(self, key: TopicPartition) -> None:
        """As `check`, but not before the caller is done: it may be inside of an operation that waits here."""
        if key in self._watches:
            self._call_later(0.0, lambda: self.check(key))

    def remove(self, watch: Watch, keys: tuple[TopicPartition, ...]) -> None:
        """Forget a watch."""
        for key in keys:
            watches = self._watches.get(key)
            if watches is not None:
                watches.pop(watch, None)
                if not watches:
                    del self._watches[key]
