"""Awaits work of other threads on the event loop."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from headwater.logtier.runtime.disk import Completion

Result = TypeVar("Result")


async def outlasted(working: asyncio.Future[Result]) -> Result:
    """Await a thread's work to its end, even if the task is cancelled, once or several times.

    What the task holds for the thread (a turn, memory) it holds as long as the thread works.

    Raises:
        CancelledError: the task was cancelled; the work has ended.
    """
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((working,))
        if not working.cancelled():
            working.exception()  # Seen: asyncio would log an error that nobody awaits.
        raise
    finally:
        del working  # An error of the work refers to this frame: both would stay in memory.


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
