"""Producer ids: each is used once in the life of a cluster (blocks as of Kafka's ProducerIdManager)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from headwater.logtier.config.definition import LONG_MAX
from headwater.logtier.metadata.paths import PRODUCER_ID_BLOCK, decode_producer_id_block, encode_producer_id_block
from headwater.logtier.metadata.store import Create, Operation, SetData, StoredNode
from headwater.logtier.protocol.errors import ErrorCode, KafkaError

PRODUCER_IDS_PER_BLOCK: Final = 1000
"""Ids reserved by one write to the metadata store; a crashed broker wastes at most this number."""


class ProducerIds:
    """The broker's block of producer ids, used one after the other.

    Invariant: ids come only from a durably allocated block, so that no crash repeats an id.
    """

    def __init__(self, allocate: Callable[[int], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._block = iter(range(0))
        self._allocating = asyncio.Lock()

    async def next(self) -> int:
        """Return an unused id; StoreUnavailableError if no block can be reserved."""
        producer_id = next(self._block, None)
        if producer_id is not None:
            return producer_id
        async with self._allocating:
            producer_id = next(self._block, None)  # another request may have allocated a block meanwhile
            if producer_id is None:
                self._block = iter(await self._allocate(PRODUCER_IDS_PER_BLOCK))
                producer_id = next(self._block)
            return producer_id


def next_block(last: range, count: int) -> range:
    """Return the block of ids after the last one; KafkaError (unknown_server_error) if there are no more, as in Kafka.

    >>> next_block(range(0, 1000), 1000)
    range(1000, 2000)
    """
    if last.stop > LONG_MAX - count:
        raise KafkaError(
            ErrorCode.unknown_server_error,
            f"all producer ids are used up: {last.stop} is the next in {PRODUCER_ID_BLOCK}",
        )
    return range(last.stop, last.stop + count)


def plan_block(node: StoredNode | None, count: int, broker_id: int) -> tuple[range, Operation]:
    """Return the next block of ids, for a broker, and the operation that allocates it.

    Args:
        node: The node of the last block, None before the first.

    Raises:
        CorruptNodeError: The node cannot be read.
        KafkaError: unknown_server_error: all ids are used up.
    """
    if node is None:
        first = range(count)
        return first, Create(PRODUCER_ID_BLOCK, encode_producer_id_block(broker_id, first))
    block = next_block(decode_producer_id_block(node.data), count)
    return block, SetData(PRODUCER_ID_BLOCK, encode_producer_id_block(broker_id, block), node.version)
