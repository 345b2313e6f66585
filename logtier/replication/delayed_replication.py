"""Requests that wait until other replicas have followed: produces with acks=all, and DeleteRecords."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.topic_partition import TopicPartition

Outcome: TypeAlias = Callable[[], ErrorCode | None]
"""Returns the error code with which the wait for a partition ends, none among them; None while it goes on."""


class DelayedReplication:
    """Completes when the wait for each of its partitions has ended (Kafka's DelayedProduce and DelayedDeleteRecords).

    - Case A: the broker leads the partition no longer, or in another epoch: an error.
    - Case B: enough replicas followed; or, for a produce, the ISR is below its minimum: an error.
    - Case C: the time is over: REQUEST_TIMED_OUT for each partition that still waits.

    Invariant: an outcome, once known, is final: a later change of the partition concerns later requests.
    """

    __slots__ = ("_outcomes", "_waiting", "future")

    def __init__(self, waits: Sequence[tuple[TopicPartition, Outcome]]) -> None:
        """Begin to wait where it is needed; see `is_complete`."""
        self._outcomes: list[ErrorCode | None] = [outcome() for _, outcome in waits]
        self._waiting: dict[TopicPartition, list[tuple[int, Outcome]]] = {}
        for place, (key, outcome) in enumerate(waits):
            if self._outcomes[place] is None:
                self._waiting.setdefault(key, []).append((place, outcome))
        #: Its result has the error codes in the order of the waits.
        self.future: asyncio.Future[list[ErrorCode]] = asyncio.get_running_loop().create_future()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions that are waited for."""
        return self._waiting

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to wait for."""
        return not self._waiting

    @property
    def outcomes(self) -> list[ErrorCode]:
        """The error codes in the order of the waits; REQUEST_TIMED_OUT where the wait goes on."""
        return [ErrorCode.request_timed_out if code is None else code for code in self._outcomes]

    def try_complete(self, moved: TopicPartition) -> bool:
        """Complete in case A or B."""
        if self.future.done():
            return True
        left = []
        for place, outcome in self._waiting.pop(moved, ()):
            code = outcome()
            if code is None:
                left.append((place, outcome))
            else:
                self._outcomes[place] = code
        if left:
            self._waiting[moved] = left
        if self._waiting:
            return False
        self.future.set_result(self.outcomes)
        return True

    def expire(self) -> None:
        """Complete in case C."""
        if not self.future.done():
            self.future.set_result(self.outcomes)
