"""The names of a cluster's topics, asked again when they may have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from headwater.pipelines.errors import nearest

__all__ = ["AmbiguousTopicError", "TopicNames"]

KEPT_S: Final = 2.0  # statements and completions within this time share an answer
UNREACHABLE_KEPT_S: Final = 5.0  # a failure costs a timeout
INTERNAL_PREFIX: Final = "__"  # Kafka's and Headwater's internal topics are not listed


class AmbiguousTopicError(Exception):
    """A name stands for several topics that differ only in case."""


class TopicNames:
    """The topics' names, by a function that lists them and raises its own errors. Thread-safe."""

    def __init__(self, list_names: Callable[[], Sequence[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._list = list_names
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[str, ...] = ()
        self._known_at = float("-inf")
        self._failure: Exception | None = None
        self._failed_at = float("-inf")

    def all(self, *, anew: bool = False) -> tuple[str, ...]:
        """All names. Raises the listing function's errors.

        `anew` asks although the last answer is young, unless that was a failure.
        """
        with self._lock:
            now = self._clock()
            if self._failure is not None and now - self._failed_at < UNREACHABLE_KEPT_S:
                raise self._failure.with_traceback(None)
            if anew or now - self._known_at >= KEPT_S:
                try:
                    self._known = tuple(self._list())
                except Exception as error:
                    self._failure, self._failed_at = error, self._clock()
                    raise
                self._failure, self._known_at = None, self._clock()
            return self._known

    def last(self) -> tuple[str, ...]:
        """The names of the last answer, without asking: for completion while a request may take long."""
        return self._known

    def match(self, name: str, *, anew: bool = False) -> str | None:
        """The topic that a name stands for; case matters only between topics that differ in nothing else.

        Raises AmbiguousTopicError, and the listing function's errors.
        """
        names = self.all(anew=anew)
        if name in names:
            return name
        same = [each for each in names if each.lower() == name.lower()]
        if len(same) > 1:
            raise AmbiguousTopicError(f"'{name}' stands for the topics {' and '.join(same)}: write its exact name")
        return same[0] if same else None

    def near(self, name: str) -> str:
        """The suggestion for an unknown name, by the last answer; '' if no topic is near."""
        hint = nearest(name, [each for each in self._known if not each.startswith(INTERNAL_PREFIX)])
        return hint if hint.startswith("did you") else ""
