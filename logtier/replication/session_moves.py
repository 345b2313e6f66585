"""What moves in the partitions of a fetch session: between its fetches, and while one waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.delayed_fetch import DelayedFetch
from headwater.logtier.replication.fetch_session import FetchSession, PartitionKey
from headwater.logtier.replication.partition_reads import Fetched, FetchPartition
from headwater.logtier.replication.purgatory import Purgatory, Watch


class SessionMoves:
    """Makes a partition of a session due when it changes, and wakes the session's fetch if it waits.

    The cost of a fetch is that of the partitions that are due, not of all that the session has.

    Invariant: it listens to each partition of the session, under the name that its request has at present.
    """

    def __init__(self, session: FetchSession[FetchPartition], changes: Purgatory) -> None:
        self._session = session
        self._changes = changes
        self._keys: dict[TopicPartition, PartitionKey] = {}
        self._waiting: tuple[DelayedFetch, Watch] | None = None
        session.moves = self
        self.follow_all()

    def follow_all(self) -> None:
        """Listen to the partitions that the session has now, such as after a change of their names."""
        self.close()
        for key in self._session.partitions:
            self.follow(key)

    def follow(self, key: PartitionKey) -> None:
        """Listen to a partition that the session has."""
        topic_partition = self._session.partitions[key].wanted.topic_partition
        self._keys[topic_partition] = key
        self._changes.listen(topic_partition, self._moved)

    def close(self) -> None:
        """Listen to nothing."""
        for topic_partition in self._keys:
            self._changes.unlisten(topic_partition, self._moved)
        self._keys.clear()

    def wait(self, operation: DelayedFetch, timeout_s: float) -> asyncio.Future[Fetched]:
        """Let a fetch of the partitions that are due wait for one of the session's, or for its timeout."""
        watch = self._changes.hold(operation, timeout_s)
        waiting = self._waiting = operation, watch

        def over(_: asyncio.Future[Fetched]) -> None:
            watch.forget()
            if self._waiting is waiting:
                self._waiting = None

        operation.future.add_done_callback(over)
        return operation.future

    def _moved(self, topic_partition: TopicPartition) -> None:
        key = self._keys[topic_partition]
        known = self._session.partitions.get(key)
        if known is None:  # it has left the session
            del self._keys[topic_partition]
            self._changes.unlisten(topic_partition, self._moved)
            return
        self._session.move(key)
        if self._waiting is not None:
            operation, watch = self._waiting
            if topic_partition in operation.partitions:
                is_over = operation.try_complete(topic_partition)
            else:
                is_over = operation.complete_with(known.wanted)
            if is_over:
                watch.forget()


class DuePartitions:
    """The partitions that one fetch of a session reads: those that are due, at its begin and again when it has waited.

    Attributes:
        keys, wanted: Those of the last read, side by side.
    """

    def __init__(
        self,
        session: FetchSession[FetchPartition],
        moves: SessionMoves,
        permitted: Callable[[list[FetchPartition]], list[FetchPartition]],
    ) -> None:
        """`permitted` replaces what the client may not read by errors."""
        self._session = session
        self._permitted = permitted
        self.wait = moves.wait
        self.keys: list[PartitionKey] = []
        self.wanted: list[FetchPartition] = []
        self.read_again()

    def read_again(self) -> list[FetchPartition]:
        """Return those that are due now."""
        self.keys = list(self._session.due)
        self.wanted = self._permitted(self._session.wanted())
        return self.wanted
