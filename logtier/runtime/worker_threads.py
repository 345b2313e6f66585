"""Threads for work of clients that would occupy the event loop; each client has its turn."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headwater.logtier.runtime.completed import outlasted
from headwater.logtier.runtime.fair_turns import FairTurns

Result = TypeVar("Result")


class ClientWork:
    """Runs work of clients on at most `threads_max` threads, started on demand; used on one event loop.

    A turn is one piece of work: a single client has all threads, and a client waits for at most one piece of each other
    client. The event loop's executor runs the work, so that a simulated loop can run it itself.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix=name)
        self._turns = FairTurns(threads_max, threads_max)

    async def run(self, owner: Hashable, work: Callable[[], Result]) -> Result:
        """Run work for a client; it must not access state that other code changes."""
        async with self._turns.of(owner):
            # A client that goes away does not end the thread: the turn is held until the thread is free.
            return await outlasted(asyncio.get_running_loop().run_in_executor(self._threads, work))

    def close(self) -> None:
        """End the threads after their present work."""
        self._threads.shutdown(wait=False)
