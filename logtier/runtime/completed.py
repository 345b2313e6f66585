"""Waiting on the event loop for what other threads do."""

import asyncio
from collections.abc import Awaitable

from headwater.logtier.runtime.disk import Completion


def completed(completion: Completion) -> Awaitable[None]:
    """A future that ends as the completion does, with its error if it has one."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if future.done():
            return
        try:
            completion.result()
        except Exception as error:  # noqa: BLE001 (belongs to whoever waits)
            future.set_exception(error)
        else:
            future.set_result(None)

    completion.add_done_callback(lambda _: loop.call_soon_threadsafe(finish))
    return future
