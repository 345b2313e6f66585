"""Requests that wait for a change of a partition or for their timeout.

An operation is watched under each partition that can complete it. A change of a partition calls `check`, and each
operation watched there is checked for that partition alone: the cost must not depend on the number of partitions of the
operation, since producers pay for it. Each operation ends exactly once: by a check, by its timeout or by `forget`.

A standing listener hears of each change of a partition, such as a fetch session between its fetches.

Each kind of operation has its own purgatory: fetches (`delayed_fetch`), appends with acks=all, which wait for the high
watermark, and DeleteRecords, which wait for the low watermark (both: `delayed_replication`).
"""

from collections.abc import Callable, Collection
from typing import Protocol

from headwater.logtier.protocol.topic_partition import TopicPartition


class DelayedOperation(Protocol):
    """An operation that waits."""

    def try_complete(self, moved: TopicPartition) -> bool:
        """Complete if the change of a partition permits it; return whether the operation is complete.

        Called in the course of the change; must be cheap while the operation waits, and must not raise.
        """

    def expire(self) -> None:
        """Complete with the present data after the timeout."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


#: Hears of each change of a partition, in the course of it; must be cheap, and must not raise.
Listener = Callable[[TopicPartition], None]

#: Schedules a call: (delay in seconds, callback).
CallLater = Callable[[float, Callable[[], None]], Timer]


class Watch:
    """One operation in the purgatory."""

    __slots__ = ("_is_over", "_keys", "_operation", "_purgatory", "_timer")

    def __init__(self, purgatory: "Purgatory", operation: DelayedOperation, keys: tuple[TopicPartition, ...]) -> None:
        self._purgatory = purgatory
        self._operation = operation
        self._keys = keys
        self._is_over = False
        self._timer: Timer | None = None

    def arm(self, call_later: CallLater, timeout_s: float) -> None:
        """Start the timeout."""
        self._timer = call_later(timeout_s, self._expire)

    def check(self, moved: TopicPartition) -> None:
        """Check the operation after a change of a partition."""
        if self._operation.try_complete(moved):
            self.forget()

    def forget(self) -> None:
        """Remove the operation, complete or not; further calls have no effect."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_over:
            self._is_over = True
            self._purgatory.remove(self, self._keys)

    def _expire(self) -> None:
        self._timer = None
        self.forget()
        self._operation.expire()


class Purgatory:
    """All waiting operations of one kind, by partition.

    Invariant: an operation is listed under all of its partitions or under none, and no list is empty.
    """

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._count = 0
        self._watches: dict[TopicPartition, dict[Watch, None]] = {}
        self._listeners: dict[TopicPartition, dict[Listener, None]] = {}

    def __len__(self) -> int:
        """Number of waiting operations."""
        return self._count

    @property
    def watched_partitions(self) -> int:
        """Number of partitions with waiting operations."""
        return len(self._watches)

    def watch(self, operation: DelayedOperation, keys: Collection[TopicPartition], timeout_s: float | None) -> Watch:
        """Add an operation until it completes; the caller has checked that it cannot complete yet.

        Args:
            keys: The partitions of the operation, each once; none if a listener checks it, which hears of all of them.
            timeout_s: None for no timeout.
        """
        assert keys or timeout_s is not None
        watch = Watch(self, operation, tuple(keys))
        self._count += 1
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None
        if timeout_s is not None:
            watch.arm(self._call_later, timeout_s)
        return watch

    def listen(self, key: TopicPartition, listener: Listener) -> None:
        """Call a listener at each change of a partition, before waiting operations are checked."""
        self._listeners.setdefault(key, {})[listener] = None

    def unlisten(self, key: TopicPartition, listener: Listener) -> None:
        """Call a listener no longer."""
        listeners = self._listeners.get(key)
        if listeners is not None:
            listeners.pop(listener, None)
            if not listeners:
                del self._listeners[key]

    def check(self, key: TopicPartition) -> None:
        """Tell the listeners of a change of the partition, and complete the operations that it permits."""
        listeners = self._listeners.get(key)
        if listeners:
            for listener in list(listeners):
                listener(key)
        watches = self._watches.get(key)
        if watches:
            for watch in list(watches):
                watch.check(key)

    def check_soon(self, key: TopicPartition) -> None:
        """Check in a later turn of the event loop, since the caller may be part of a waiting operation."""
        if key in self._watches or key in self._listeners:
            self._call_later(0.0, lambda: self.check(key))

    def remove(self, watch: Watch, keys: tuple[TopicPartition, ...]) -> None:
        """Remove a watch listed under `keys`."""
        self._count -= 1
        for key in keys:
            watches = self._watches[key]
            del watches[watch]
            if not watches:
                del self._watches[key]
