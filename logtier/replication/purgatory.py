"""Requests that wait for a partition to move on, or for their time to run out.

An operation is watched under each partition that can complete it. Whoever moves a partition calls `check`, and each
operation watched there is asked about that partition alone: its answer has to cost the same however many partitions
the operation waits for, since producers pay for it. Each operation ends exactly once: by a check, by its timeout or by
being forgotten.

Fetches wait here (`delayed_fetch`). Produce requests with acks=all, which wait for the high watermark, and
DeleteRecords, which wait for the low watermark, are operations of the same shape; each kind has a purgatory of its own.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from headwater.logtier.protocol.topic_partition import TopicPartition


class DelayedOperation(Protocol):
    """Something that waits."""

    def try_complete(self, moved: TopicPartition) -> bool:
        """Complete if what a partition's move changed allows it; whether the operation is complete now.

        Called by whoever moved the partition, hence cheap as long as the operation goes on waiting, and without errors.
        """

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

    def check(self, moved: TopicPartition) -> None:
        """One of its partitions moved."""
        if self._operation.try_complete(moved):
            self.forget()

    def forget(self) -> None:
        """Take the operation out, complete or not; once is enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        keys, self._keys = self._keys, ()
        if keys:
            self._purgatory.remove(self, keys)

    def _expire(self) -> None:
        self._timer = None
        self.forget()
        self._operation.expire()


class Purgatory:
    """All operations of one kind that wait, by partition.

    Invariant: an operation is listed under all of its partitions or under none, and no list is empty.
    """

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._count = 0
        self._watches: dict[TopicPartition, dict[Watch, None]] = {}

    def __len__(self) -> int:
        """Number of operations that wait."""
        return self._count

    @property
    def watched_partitions(self) -> int:
        """Number of partitions that an operation waits for."""
        return len(self._watches)

    def watch(self, operation: DelayedOperation, keys: Collection[TopicPartition], timeout_s: float) -> Watch:
        """Keep an operation until it completes; the caller has found that it cannot complete yet.

        Args:
            keys: Its partitions, each once.
        """
        assert keys
        watch = Watch(self, operation, tuple(keys))
        self._count += 1
        for key in keys:
            self._watches.setdefault(key, {})[watch] = None
        watch.arm(self._call_later, timeout_s)
        return watch

    def check(self, key: TopicPartition) -> None:
        """A partition moved: complete what that allows."""
        watches = self._watches.get(key)
        if watches:
            for watch in list(watches):
                watch.check(key)

    def check_soon(self, key: TopicPartition) -> None:
        """As `check`, but not before the caller is done: it may be inside of an operation that waits here."""
        if key in self._watches:
            self._call_later(0.0, lambda: self.check(key))

    def remove(self, watch: Watch, keys: tuple[TopicPartition, ...]) -> None:
        """Forget a watch, which is listed under these keys."""
        self._count -= 1
        for key in keys:
            watches = self._watches[key]
            del watches[watch]
            if not watches:
                del self._watches[key]
