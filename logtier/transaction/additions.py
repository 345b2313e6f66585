"""Collects partitions that records add to a transaction, and writes concurrent additions together."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any

from headwater.logtier.protocol.topic_partition import TopicPartition
from headwater.logtier.runtime.deferred import Deferred
from headwater.logtier.transaction.metadata import ProducerIdAndEpoch
from headwater.logtier.transaction.transaction import Transaction

#: Adds partitions to a transaction, durably.
Write = Callable[[Transaction, ProducerIdAndEpoch, AbstractSet[TopicPartition]], Coroutine[Any, Any, None]]


class _Addition:
    __slots__ = ("partitions", "task")

    def __init__(self) -> None:
        self.partitions: set[TopicPartition] = set()
        self.task: asyncio.Task[None] | None = None


class Additions:
    """Partitions to be added, by transaction and producer.

    A produce request adds each of its partitions. A producer has one write under way at a time; the next write takes
    all partitions that arrive meanwhile.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._collecting: dict[tuple[str, ProducerIdAndEpoch], _Addition] = {}
        self._writing: dict[tuple[str, ProducerIdAndEpoch], asyncio.Task[None]] = {}

    def add(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, topic_partition: TopicPartition
    ) -> Awaitable[None]:
        """Add a partition with the next write. The awaitable raises the KafkaError of the write."""
        key = (transaction.transactional_id, producer)
        addition = self._collecting.get(key)
        if addition is None:
            addition = self._collecting[key] = _Addition()
            before = self._writing.get(key)
            addition.task = asyncio.get_running_loop().create_task(self._run(key, transaction, addition, before))
            addition.task.add_done_callback(_retrieve)
        addition.partitions.add(topic_partition)
        assert addition.task is not None
        # A cancelled request does not cancel the write: other requests wait for the same write.
        return Deferred(functools.partial(asyncio.shield, addition.task))

    async def _run(
        self,
        key: tuple[str, ProducerIdAndEpoch],
        transaction: Transaction,
        addition: _Addition,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        del self._collecting[key]
        assert addition.task is not None
        self._writing[key] = addition.task
        try:
            await self._write(transaction, key[1], addition.partitions)
        finally:
            if self._writing.get(key) is addition.task:
                del self._writing[key]


def _retrieve(task: asyncio.Task[None]) -> None:
    """Mark the error as retrieved: every waiting request may be gone."""
    if not task.cancelled():
        task.exception()
