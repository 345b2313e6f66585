"""A resource that is opened by its first use, shared, and given up when nobody has used it for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Generic, TypeVar

__all__ = ["HeldResource"]

_T = TypeVar("_T")
LOOK_S: Final = 0.5  # between looks at whether a resource is idle, and at signals


class HeldResource(Generic[_T]):
    """Opens and closes in the thread that calls `keep`: Spark's JVM is started, and its signals set, in the main one.

    Invariant: it is never closed while it is in use. An attempt to open that fails is the failure of all who wait; the
    next use tries again.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[_T]],
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opened = opened
        self._idle_s = idle_s
        self._clock = clock
        self._changed = threading.Condition()
        self._users = 0
        self._waiting = 0
        self._attempts = 0
        self._failure: Exception | None = None
        self._value: _T | None = None
        self._used_at = 0.0

    @contextmanager
    def used(self, check: Callable[[], None]) -> Iterator[_T]:
        """Use the resource, once it is open. `check` is called while it opens, and may raise.

        Raises what opening raised.
        """
        value = self._acquire(check)
        try:
            yield value
        finally:
            with self._changed:
                self._users -= 1
                self._used_at = self._clock()
                self._changed.notify_all()

    def _acquire(self, check: Callable[[], None]) -> _T:
        with self._changed:
            before = self._attempts
            self._waiting += 1
            self._changed.notify_all()
            try:
                while self._value is None:
                    if self._attempts > before and self._failure is not None:
                        raise self._failure
                    check()
                    self._changed.wait(LOOK_S)
                self._users += 1
                return self._value
            finally:
                self._waiting -= 1

    def keep(self, is_over: Callable[[_T | None], bool]) -> None:
        """Open and close as needed, until `is_over`, asked again and again, says so. Exceptions of signals pass."""
        while not is_over(None):
            with self._changed:
                if self._waiting == 0:
                    self._changed.wait(LOOK_S)
                    continue
            try:
                with self._opened() as value:
                    self._hold(value, is_over)
            except Exception as error:  # noqa: BLE001 - raised where the resource was to be used
                with self._changed:
                    self._failure = error
                    self._attempts += 1
                    self._changed.notify_all()

    def _hold(self, value: _T, is_over: Callable[[_T | None], bool]) -> None:
        with self._changed:
            self._value, self._failure, self._used_at = value, None, self._clock()
            self._changed.notify_all()
        try:
            while not is_over(value):
                with self._changed:
                    idle_s = self._clock() - self._used_at
                    if self._users == 0 and self._waiting == 0 and idle_s >= self._idle_s:
                        # In the same moment: who comes now waits for the next one.
                        self._value = None
                        return
                    self._changed.wait(LOOK_S)
        finally:
            with self._changed:
                self._value = None
