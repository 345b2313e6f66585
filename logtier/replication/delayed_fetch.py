"""A fetch that waits for more records (`min_bytes`) until its time is over (`max_wait`)."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from logtier.protocol.errors import ErrorCode
from logtier.protocol.fetch_response import FetchedPartition
from logtier.protocol.topic_partition import TopicPartition


class FetchPartition(NamedTuple):
    """What a client asks of one partition.

    Attributes:
        topic_id: The id the client asked by, None where it asked by name.
        bytes_max: What it takes of this partition; one whole batch comes even if it is larger (KIP-74).
        leader_epoch: The epoch the client believes in, -1 if it does not say (KIP-320).
        error_code: A refusal found before reading, such as an unknown topic id.
        is_read_committed: Whether it wants what is below the last stable offset only, and is told what was aborted.
    """

    topic_partition: TopicPartition
    topic_id: UUID | None
    offset: int
    bytes_max: int
    leader_epoch: int = -1
    error_code: ErrorCode = ErrorCode.none
    is_read_committed: bool = False


Fetched = list[FetchedPartition]


class DelayedFetch:
    """Completes when one of these holds (as Kafka's DelayedFetch):

    Case A: a partition answers with an error.
    Case B: the records that are there reach `bytes_min`.
    Case C: the time is over.

    Args:
        read: Reads all partitions afresh.
        future: Gets the partitions in the order of the request.
        fetched: What was read before the wait.
    """

    def __init__(
        self, read: Callable[[], Fetched], bytes_min: int, future: asyncio.Future[Fetched], fetched: Fetched
    ) -> None:
        self._read = read
        self._fetched = fetched
        self._bytes_min = bytes_min
        self._future = future

    def try_complete(self) -> bool:
        """Complete in case A or B."""
        if self._future.done():
            return True
        self._fetched = self._read()
        if not is_satisfied(self._fetched, self._bytes_min):
            return False
        self._future.set_result(self._fetched)
        return True

    def expire(self) -> None:
        """Complete in case C."""
        if not self._future.done():
            # Whatever changed since was read then: every change of a partition makes `try_complete` be called.
            self._future.set_result(self._fetched)


def is_satisfied(fetched: Sequence[FetchedPartition], bytes_min: int) -> bool:
    """Whether a fetch need not wait: case A or B."""
    size = 0
    for partition in fetched:
        if partition.error_code:
            return True
        size += partition.size
    return size >= bytes_min
