"""Writes the status of a driver's archives to the topic `__headwater_status`: `status_record` has the record."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headwater.pipelines.archive.metrics import TopicCounts
from headwater.pipelines.archive.status_record import ArchiverStatus
from headwater.pipelines.monitoring.status_writer import StatusWriter

if TYPE_CHECKING:
    from headwater.logtier.client.cluster import ClientConfig

__all__ = ["ArchiverStatusTopic"]


class ArchiverStatusTopic:
    """Writes from `start` to `end`; the archives of other drivers are left to them."""

    def __init__(self, client: ClientConfig, counts: Callable[[], Sequence[TopicCounts]]) -> None:
        self._counts = counts
        self._started_ms = time.time_ns() // 1_000_000
        self._ended_ms: int | None = None
        self._host, self._process = socket.gethostname(), os.getpid()
        self._writer = StatusWriter(client, self._statuses, "the archives")

    def start(self) -> None:
        """Start the thread."""
        self._writer.start()

    def end(self) -> None:
        """Say that the driver has stopped, and wait until that is written, a few seconds at most."""
        self._ended_ms = time.time_ns() // 1_000_000
        self._writer.end()

    def _statuses(self, now_ms: int) -> list[ArchiverStatus]:
        return [self._status(each, now_ms) for each in self._counts() if each.is_own]

    def _status(self, counts: TopicCounts, now_ms: int) -> ArchiverStatus:
        state, since_ms = "failing" if counts.is_failing else "running", round(counts.since_s * 1000)
        if counts.is_ended:
            state = "stopped"
        elif self._ended_ms is not None:
            state, since_ms = "stopped", self._ended_ms
        return ArchiverStatus(
            counts.topic,
            counts.table,
            state,
            since_ms,
            now_ms,
            self._started_ms,
            self._host,
            self._process,
            counts.table_version,
            counts.behind,
            # To the second: the time at which something was seen does not change from one look to the next.
            round(now_ms / 1000 - counts.waiting_s) * 1000 if counts.waiting_s else None,
            round(counts.committed_s * 1000) or None,
            counts.rows,
            counts.errors,
            counts.files,
            counts.commits,
            counts.failures,
            counts.error,
            counts.held_bytes,
        )
