"""Loads the partitions of a coordinator's topic that this broker leads."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headwater.logtier.state_topic.log import StateTopicLog
from headwater.logtier.state_topic.writes import Wait

logger = logging.getLogger(__name__)

#: First and longest delay before a failed partition is loaded again.
RETRY_BACKOFF_S: Final = 1.0
RETRY_BACKOFF_S_MAX: Final = 300.0

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class StateLoader:
    """Reads partitions one after the other. A partition that cannot be loaded is retried later and blocks no other.

    Args:
        load: Reads a partition and takes over its state; returns the rest of the load if that has to wait.
        loaded: Called when partitions are loaded and none is left to be read.
    """

    def __init__(
        self,
        log: StateTopicLog,
        load: Callable[[int], Coroutine[Any, Any, Wait | None]],
        loaded: Callable[[], None],
        spawn: Spawn,
    ) -> None:
        self._log = log
        self._load = load
        self._loaded = loaded
        self._spawn = spawn
        self._waiting: deque[int] = deque()
        self._task: asyncio.Task[None] | None = None
        self._backoff_s: dict[int, float] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether partitions are being read."""
        return self._task is not None

    def begin(self) -> None:
        """Load the partitions that this broker leads and has not loaded."""
        if self._task is None and not self._is_stopped:
            self._task = self._spawn(self._run())

    def stop(self) -> None:
        """Start no further loads; the owner of the task cancels it."""
        self._is_stopped = True
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()

    async def _run(self) -> None:
        try:
            while True:
                self._waiting.extend(self._log.new_partitions())
                if not self._waiting:
                    break
                await self._load_one(self._waiting.popleft())
        finally:
            self._task = None
        self._loaded()

    async def _load_one(self, partition: int) -> None:
        if not self._log.is_to_be_loaded(partition):
            return  # another broker leads the partition now; or it waited in two epochs, and has been read
        rest = None
        try:
            rest = await self._load(partition)
        except Exception:
            logger.exception("%s-%d cannot be loaded", self._log.TOPIC, partition)
            self._log.fail(partition)
        if rest is None:
            self._ended(partition)
        else:
            self._spawn(self._finish(partition, rest))

    async def _finish(self, partition: int, rest: Wait) -> None:
        await rest()
        self._ended(partition)
        if not self.is_busy:
            self._loaded()

    def _ended(self, partition: int) -> None:
        if not self._log.has_failed(partition):
            self._backoff_s.pop(partition, None)
            return
        backoff_s = self._backoff_s.get(partition, RETRY_BACKOFF_S)
        self._backoff_s[partition] = min(2 * backoff_s, RETRY_BACKOFF_S_MAX)
        if (before := self._retries.pop(partition, None)) is not None:
            before.cancel()
        if not self._is_stopped:
            self._retries[partition] = asyncio.get_running_loop().call_later(backoff_s, self._retry, partition)

    def _retry(self, partition: int) -> None:
        del self._retries[partition]
        if self._log.retry(partition):
            self._waiting.append(partition)
            self.begin()
