"""Awaits work of other threads on the event loop."""

import asyncio
from collections.abc import Awaitable

from headwater.logtier.runtime.disk import Completion


def completed(completion: Completion) -> Awaitable[None]:
    """Return a future that ends with the completion, with its error if any."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if future.done():
            return
        try:
            completion.result()
        except Exception as error:  # noqa: BLE001 (belongs to the awaiting task)
            future.set_exception(error)
        else:
            future.set_result(None)

    completion.add_done_callback(lambda _: loop.call_soon_threadsafe(finish))
    return future
