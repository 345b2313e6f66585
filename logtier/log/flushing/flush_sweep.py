"""Syncs many logs outside the event loop, a few at a time."""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from headwater.logtier.log.log import Log
from headwater.logtier.protocol.errors import KafkaError

# Each running flush keeps the files of one log open.
_UNDER_WAY_MAX: Final = 16


class FlushSweep:
    """Flushes every log with unflushed records, then calls `done` once.

    `note` is called for each log before its flush; the callback it returns is called when all records that the log had
    then are on the device. A log that fails takes its folder offline, as every failed sync does; the other logs
    continue.
    """

    def __init__(
        self, logs: Iterable[Log], done: Callable[[], None], note: Callable[[Log], Callable[[], None] | None]
    ) -> None:
        self._left = deque(logs)
        self._note = note
        self._done = done
        self._under_way = 0
        self._is_filling = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether `done` was called."""
        return self._is_over

    def run(self) -> None:
        """Begin as many flushes as the limit of running ones allows."""
        if self._is_filling:
            return  # a flush ended at once: the loop below continues
        self._is_filling = True
        while self._left and self._under_way < _UNDER_WAY_MAX:
            log = self._left.popleft()
            flushed = self._note(log)
            if not log.durability.is_complete:
                self._under_way += 1
                log.durability.request().add_done_callback(partial(self._ended, flushed))
            elif flushed is not None:
                flushed()
        self._is_filling = False
        if not self._under_way and not self._left and not self._is_over:
            self._is_over = True
            self._done()

    def _ended(self, flushed: Callable[[], None] | None, error: KafkaError | None) -> None:
        if flushed is not None and error is None:
            flushed()
        self._under_way -= 1
        self.run()
