"""Waits for the device before an append is acknowledged (flush.messages)."""

import asyncio

from headwater.logtier.log.durability import FlushRound
from headwater.logtier.protocol.errors import KafkaError


async def wait_flushed(flush: FlushRound) -> KafkaError | None:
    """Wait until the append is on the device; return the error if the sync failed."""
    future: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

    def done(error: KafkaError | None) -> None:
        if not future.done():  # the client may have disconnected
            future.set_result(error)

    flush.add_done_callback(done)
    return await future
