"""Loading the partitions of a coordinator's topic that this broker leads."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headwater.logtier.state_topic.log import StateTopicLog

logger = logging.getLogger(__name__)

#: Pauses before a partition that could not be loaded is tried again.
RETRY_BACKOFF_S: Final = 1.0
RETRY_BACKOFF_S_MAX: Final = 300.0

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class StateLoader:
    """Loads partitions one after the other. One that cannot be loaded holds nobody up, and is tried again later.

    Args:
        load: Reads a partition and takes its state over.
        all_loaded: Called when there is nothing left to load, but for what has failed.
    """

    def __init__(
        self,
        log: StateTopicLog,
        load: Callable[[int], Coroutine[Any, Any, None]],
        all_loaded: Callable[[], None],
        spawn: Spawn,
    ) -> None:
        self._log = log
        self._load = load
        self._all_loaded = all_loaded
        self._spawn = spawn
        self._waiting: deque[int] = deque()
        self._task: asyncio.Task[None] | None = None
        self._backoff_s: dict[int, float] = {}
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether something is being loaded."""
        return self._task is not None

    def begin(self) -> None:
        """Load what this broker leads and has not loaded."""
        if self._task is None and not self._is_stopped:
            self._task = self._spawn(self._run())

    def stop(self) -> None:
        """Load nothing more; who spawned the task ends it."""
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
        self._all_loaded()

    async def _load_one(self, partition: int) -> None:
        if not self._log.is_to_be_loaded(partition):
            return  # it has moved away meanwhile
        try:
            await self._load(partition)
        except Exception:
            logger.exception("%s-%d cannot be loaded", self._log.TOPIC, partition)
            self._log.fail(partition)
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
