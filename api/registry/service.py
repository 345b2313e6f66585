"""The registry: its state, read from the topic, and its changes, written to the topic."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.parsing import SchemaParser
from headwater.api.registry.record_codec import NoopRecord, Record, RecordFormatError, SchemaRecord, decode, encode
from headwater.api.registry.state import RegistryState
from headwater.api.registry.topic_log import Apply, FencedError, KeyAndValue, TopicLog
from headwater.api.topic_admin import TopicAdmin

_log = logging.getLogger(__name__)

DEFAULT_TOPIC: Final = "_schemas"
"""Confluent's name: each kind of registry finds the other's topic."""

WRITE_ATTEMPTS_MAX: Final = 5
"""Attempts of a change if another registry writes at the same time."""

T = TypeVar("T")


class RecordLog(Protocol):
    """The log of a registry's records: a topic, or a list in tests. See `headwater.api.registry.topic_log.TopicLog`."""

    name: str
    changed: threading.Condition

    @property
    def is_writer(self) -> bool:
        """Whether this process was the writer at its last write."""

    def await_loaded(self) -> None:
        """Return once the records present at the start are read."""

    def become_writer(self, noop: KeyAndValue) -> None:
        """Return when this process is the writer and has read all records of earlier writers."""

    def append(self, records: Sequence[KeyAndValue]) -> None:
        """Write records, all or none, and return when they are read back."""

    def close(self) -> None:
        """Stop reading."""


class SchemaRegistry:
    """A registry on one log. Thread-safe; calls block until the broker answers."""

    def __init__(self, open_log: Callable[[Apply, Callable[[], None]], RecordLog]) -> None:
        """Prepare a registry; `open_log` receives the functions that apply a record and reset the state."""
        self.parser = SchemaParser()
        self._state = RegistryState()
        self._snapshot: RegistryState | None = None
        self._skipped = 0
        self._writing = threading.Lock()
        self._log = open_log(self._apply, self._reset)

    @classmethod
    def on_topic(
        cls,
        admin: TopicAdmin,
        topic: str = DEFAULT_TOPIC,
        *,
        request_timeout_ms: int = 10_000,
        security: Mapping[str, str] | None = None,
    ) -> SchemaRegistry:
        """Prepare a registry on a topic; nothing is read or created before the first call."""

        def open_log(apply: Apply, reset: Callable[[], None]) -> RecordLog:
            return TopicLog(admin, topic, apply, reset, request_timeout_ms=request_timeout_ms, security=security)

        return cls(open_log)

    @contextmanager
    def state(self) -> Iterator[RegistryState]:
        """Provide a snapshot of the state, which does not change inside the `with` and blocks no writer.

        Raises:
            RegistryError: the topic cannot be read.
        """
        self._log.await_loaded()
        with self._log.changed:
            if self._snapshot is None:
                self._snapshot = self._state.snapshot()
            snapshot = self._snapshot
        # Parsing and comparing may take seconds: the log's reader and other requests must not wait for them.
        yield snapshot

    def change(self, decide: Callable[[RegistryState], tuple[T, list[Record]]]) -> T:
        """Write the records that `decide` returns and return its answer once the state includes them.

        `decide` may be called again, on a later state, if another registry wrote at the same time.

        Raises:
            RegistryError: `decide` raised it, or the topic cannot be written.
        """
        with self._writing:
            for _ in range(WRITE_ATTEMPTS_MAX):
                try:
                    if not self._log.is_writer:
                        with self.state() as state:
                            answer, records = decide(state)
                        if not records:
                            return answer
                        # From now on nothing is missing from the state.
                        self._log.become_writer(encode(NoopRecord()))
                    with self.state() as state:
                        answer, records = decide(state)
                    if records:
                        self._log.append([encode(record) for record in records])
                except FencedError:
                    continue
                return answer
        message = "other registries on this topic keep writing at the same time; try again"
        raise RegistryError(errors.NOT_THE_WRITER, message)

    def close(self) -> None:
        """Stop reading the topic. May be called twice."""
        self._log.close()

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            record = decode(key, value)
        except RecordFormatError as error:
            _log.warning("a record of the topic %s was skipped: %s", self._log.name, error)
            return
        if record is None or (isinstance(record, SchemaRecord) and record.subject.startswith(":.")):
            self._skipped += 1
            if self._skipped == 1:
                _log.warning(
                    "the topic %s has records of contexts, or of kinds that are not known here; they stay there and "
                    "are not served",
                    self._log.name,
                )
            return
        self._snapshot = None
        self._state.apply(record)

    def _reset(self) -> None:
        self._state = RegistryState()
        self._snapshot = None
        self._skipped = 0
