"""Batches of what is asked of other brokers: one request to a broker at a time, with all that came meanwhile."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from headwater.logtier.runtime.spawned_tasks import SpawnedTasks

#: Items of one request: who answers appends them in one turn of its event loop.
ITEMS_MAX: Final = 500

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class RequestBatches(Generic[Item, Answer]):
    """What waits to be asked of each broker; on one event loop.

    Args:
        exchange: Sends the items of one request to a broker, and returns their answers in the same order.
        slot: Names what an item is about. The items of a request that share a slot are equal in `group`; others wait
            for the next request.
    """

    def __init__(
        self,
        exchange: Callable[[int, list[Item]], Awaitable[list[Answer]]],
        slot: Callable[[Item], Hashable],
        group: Callable[[Item], Hashable],
        tasks: SpawnedTasks,
    ) -> None:
        self._exchange = exchange
        self._slot = slot
        self._group = group
        self._tasks = tasks
        #: What waits, by broker; a broker is absent without a request under way.
        self._waiting: dict[int, list[tuple[Item, asyncio.Future[Answer]]]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}

    def ask(self, broker_id: int, item: Item) -> asyncio.Future[Answer]:
        """Ask with the next request; the future's exception is that of `exchange`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(broker_id)
        if waiting is None:
            waiting = self._waiting[broker_id] = []
            self._running[broker_id] = task = self._tasks.spawn(self._run(broker_id))
            task.add_done_callback(functools.partial(self._ended, broker_id))
        waiting.append((item, future))
        return future

    async def _run(self, broker_id: int) -> None:
        while self._waiting[broker_id]:
            # What is asked in the same turn of the event loop goes into the same request.
            await asyncio.sleep(0)
            await self._send(broker_id)
        del self._waiting[broker_id], self._running[broker_id]

    def _ended(self, broker_id: int, task: asyncio.Task[None]) -> None:
        """Cancel what waits for a task that was cancelled, perhaps before it began."""
        if self._running.get(broker_id) is task:
            del self._running[broker_id]
            for _, future in self._waiting.pop(broker_id):
                future.cancel()

    async def _send(self, broker_id: int) -> None:
        batch, self._waiting[broker_id] = self._split(self._waiting[broker_id])
        if not batch:
            return
        futures = [future for _, future in batch]
        try:
            answers = await self._exchange(broker_id, [item for item, _ in batch])
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (of whatever kind: those who asked have to know)
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # Marked as retrieved: the caller may have gone.
            return
        for future, answer in zip(futures, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def _split(
        self, waiting: list[tuple[Item, asyncio.Future[Answer]]]
    ) -> tuple[list[tuple[Item, asyncio.Future[Answer]]], list[tuple[Item, asyncio.Future[Answer]]]]:
        groups: dict[Hashable, Hashable] = {}
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        rest: list[tuple[Item, asyncio.Future[Answer]]] = []
        for each in waiting:
            item, future = each
            if future.done():
                continue  # The caller has gone.
            group = self._group(item)
            is_now = len(batch) < ITEMS_MAX and groups.setdefault(self._slot(item), group) == group
            (batch if is_now else rest).append(each)
        return batch, rest
