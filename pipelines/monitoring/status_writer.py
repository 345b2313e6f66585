"""Writes the status of what runs in this process to the topic `__headwater_status`, from a thread of its own.

Only the latest status of each key is pending, so an unavailable broker costs no memory, and what runs never waits for
its status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Protocol

from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.partitioner import partition_for_key
from headwater.logtier.client.producer import IdempotentProducer, ProducerConfig
from headwater.logtier.client.topics import ensure_topic
from headwater.logtier.records.batch import Record, build_batch
from headwater.pipelines.monitoring.status import STATUS_CONFIGS, STATUS_PARTITIONS, STATUS_TOPIC, is_due

__all__ = ["StatusRecord", "StatusWriter"]

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
# While a broker is unavailable: the next attempt writes the status that is the latest by then.
REQUEST_MS_MAX: Final = 5_000
END_S_MAX: Final = 5.0


class StatusRecord(Protocol):
    """A status: a dataclass. `time_ms` is when it was read, `since_ms` when its state began, in ms since 1970."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> bytes:
        """The record's key."""

    @property
    def state(self) -> str:
        """One word."""

    @property
    def since_ms(self) -> int:
        """When the state began."""

    @property
    def time_ms(self) -> int:
        """When the status was read."""

    def encode(self) -> bytes:
        """The record's value."""


class StatusWriter:
    """Writes each status at a change of its state, otherwise at most once a second, and every ten seconds.

    Args:
        read: The statuses now, given the time in ms since 1970. Called in the writer's thread.
        what: Whose status it is, for messages.
    """

    def __init__(self, client: ClientConfig, read: Callable[[int], Iterable[StatusRecord]], what: str) -> None:
        self._client = dataclasses.replace(client, api_timeout_ms=REQUEST_MS_MAX, request_timeout_ms=REQUEST_MS_MAX)
        self._read = read
        self._what = what
        self._over = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._written: dict[bytes, StatusRecord] = {}
        self._cluster: ClusterClient | None = None
        self._producer: IdempotentProducer | None = None
        self._partitions = 0
        self._is_told = False

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A state has changed: do not wait for the next interval."""
        self._wake.set()

    def end(self) -> None:
        """Write the final statuses, if the broker accepts them within a few seconds, and end the thread."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(END_S_MAX)

    def _run(self) -> None:
        while True:
            is_last = self._over.is_set()
            self._wake.clear()
            try:
                self._write_due()
                self._is_told = False
            except ClientError as error:
                self._close()
                if not self._is_told:
                    logger.warning("the status of %s cannot be written to %s: %s", self._what, STATUS_TOPIC, error)
                self._is_told = True
            if is_last:
                self._close()
                return
            if not self._over.is_set():
                self._wake.wait(POLL_S)

    def _write_due(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        due = [each for each in self._read(now_ms) if self._is_due(each, now_ms)]
        if due:
            self._send(due)
            self._written.update((each.key, each) for each in due)

    def _is_due(self, status: StatusRecord, now_ms: int) -> bool:
        last = self._written.get(status.key)
        if last is None:
            return True
        return is_due(
            now_ms,
            last.time_ms,
            state_changed=(status.state, status.since_ms) != (last.state, last.since_ms),
            something_changed=dataclasses.replace(status, time_ms=last.time_ms) != last,
        )

    def _send(self, statuses: list[StatusRecord]) -> None:
        if self._producer is None:
            self._cluster = ClusterClient(self._client)
            ensure_topic(self._cluster, STATUS_TOPIC, partitions=STATUS_PARTITIONS, configs=STATUS_CONFIGS)
            self._partitions = len(self._cluster.partitions(STATUS_TOPIC))
            limits = ProducerConfig(request_timeout_ms=REQUEST_MS_MAX, delivery_timeout_ms=REQUEST_MS_MAX)
            self._producer = IdempotentProducer(self._cluster, limits)
        for status in statuses:
            batch = bytearray(build_batch([Record(status.key, status.encode(), status.time_ms)]))
            self._producer.send(STATUS_TOPIC, partition_for_key(status.key, self._partitions), batch, 1)
        self._producer.flush()

    def _close(self) -> None:
        """Close the producer; a failed producer cannot be used again."""
        with contextlib.suppress(ClientError):
            if self._producer is not None:
                self._producer.close()
            if self._cluster is not None:
                self._cluster.close()
        self._producer = self._cluster = None
