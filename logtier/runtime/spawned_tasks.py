"""Background tasks on the event loop that no code awaits."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class SpawnedTasks:
    """Tasks that no code awaits. References are held until the tasks end, and failures are logged.

    Without a reference the loop may drop a task before its end, and its failure would be lost.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        #: In the order of their start, in which they are cancelled.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks and wait for their end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the %s failed", self._owner, exc_info=task.exception())
