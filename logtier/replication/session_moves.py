"""What moves in the partitions of a fetch session: between its fetches, and while one waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headwater.logtier.protocol.fetch_response import FetchedPartition
from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.replication.delayed_fetch import DelayedFetch
from headwater.logtier.replication.fetch_session import FetchSession, PartitionKey
from headwater.logtier.replication.partition_reads import Fetched, FetchPartition, PartitionReads
from headwater.logtier.replication.purgatory import Purgatory, Watch


class SessionMoves:
    """Makes a partition of a session due when it changes, and wakes the session's fetch if it waits.

    The cost of a fetch is that of the partitions that are due, not of all that the session has. That of an append is
    one call for each session in which its partition stands: it is due from then on, and is not listened to any more,
    so that the sessions of clients that are gone cost nothing.

    Invariant: it listens to each partition that stands, under the name that its request has at present.
    """

    def __init__(self, session: FetchSession[FetchPartition], reads: PartitionReads, changes: Purgatory) -> None:
        self._session = session
        self._reads = reads
        self._changes = changes
        self._keys: dict[TopicPartition, PartitionKey] = {}
        self._waiting: tuple[DelayedFetch, Watch] | None = None
        self._is_over = False
        self._listener = self._moved
        session.moves = self

    def begins_to_stand(
        self, key: PartitionKey, wanted: FetchPartition, answer: FetchedPartition, follower_id: int | None
    ) -> bool:
        """Listen to a partition, if it need not be read before it moves; return whether that is so.

        Args:
            answer: What the session is told of it now.
            follower_id: The broker of a follower's session, None for a consumer's.
        """
        if not self._reads.stands(wanted, answer, follower_id):
            return False
        self._keys[wanted.topic_partition] = key
        self._changes.listen(wanted.topic_partition, self._listener)
        return True

    def leave(self, key: PartitionKey) -> None:
        """Listen no longer to a partition that is due, or leaves the session."""
        known = self._session.partitions.get(key)
        if known is not None and self._keys.get(known.wanted.topic_partition) == key:
            self._forget(known.wanted.topic_partition)

    def leave_all(self) -> None:
        """Listen to nothing: all partitions are due, perhaps under other names."""
        for topic_partition in list(self._keys):
            self._forget(topic_partition)

    def close(self) -> None:
        """End the session: a fetch that waits is answered with what there is."""
        self._is_over = True
        self.leave_all()
        if self._waiting is not None:
            operation, watch = self._waiting
            watch.forget()
            operation.expire()

    def wait(self, operation: DelayedFetch, timeout_s: float) -> asyncio.Future[Fetched]:
        """Let a fetch of the partitions that are due wait for one of the session's, or for its timeout."""
        if self._is_over:
            operation.expire()
            return operation.future
        watch = self._changes.watch(operation, operation.partitions, timeout_s)
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
        if known is None or self._waiting is None:
            self._forget(topic_partition)
        self._session.move(key)
        if known is not None and self._waiting is not None:
            # It may move again before the fetch is answered, which does not watch it.
            operation, watch = self._waiting
            if operation.complete_with(known.wanted):
                watch.forget()

    def _forget(self, topic_partition: TopicPartition) -> None:
        del self._keys[topic_partition]
        self._changes.unlisten(topic_partition, self._listener)


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
