"""Writes the status of a run's stages to the topic `__headwater_status`, from its own thread.

Only the latest status of each stage is pending, so an unavailable broker costs no memory, and a run never waits for its
status. See `headwater.pipelines.monitoring.status` for the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from headwater.logtier.client.cluster import ClientConfig, ClusterClient
from headwater.logtier.client.errors import ClientError
from headwater.logtier.client.partitioner import partition_for_key
from headwater.logtier.client.producer import IdempotentProducer, ProducerConfig
from headwater.logtier.client.topics import ensure_topic
from headwater.logtier.records.batch import Record, build_batch
from headwater.pipelines.monitoring.status import (
    STATUS_CONFIGS,
    STATUS_PARTITIONS,
    STATUS_TOPIC,
    Lag,
    StageStatus,
    is_due,
    record_key,
)

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.progress import StageProgress
    from headwater.pipelines.monitoring.stage_state import StageState
    from headwater.pipelines.monitoring.watching import RunInfo, RunWatch

__all__ = ["StatusTopic", "stage_status"]

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
# While a broker is unavailable: the next attempt writes the status that is the latest by then.
REQUEST_MS_MAX: Final = 5_000
END_S_MAX: Final = 5.0


class StatusTopic:
    """A listener that writes each stage's status: at each state change, otherwise at most once a second."""

    def __init__(self, client: ClientConfig, versions: dict[str, str] | None = None) -> None:
        self._client = dataclasses.replace(client, api_timeout_ms=REQUEST_MS_MAX, request_timeout_ms=REQUEST_MS_MAX)
        self._versions = versions or {}
        self._info: RunInfo | None = None
        self._watch: RunWatch | None = None
        self._over = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._written: dict[str, tuple[int, StageStatus]] = {}
        self._cluster: ClusterClient | None = None
        self._producer: IdempotentProducer | None = None
        self._partitions = 0
        self._is_told = False

    def began(self, info: RunInfo, watch: RunWatch) -> None:
        """Start the thread."""
        self._info, self._watch = info, watch
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def changed(self, state: StageState, progress: StageProgress | None) -> None:  # noqa: ARG002 - a listener's
        """Wake the thread for a state change; other changes wait for the next interval."""
        if progress is None:
            self._wake.set()

    def ended(self) -> None:
        """Write the stages' final status, if the broker accepts it within a few seconds, and end the thread."""
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
                    logger.warning("the status of the stages cannot be written to %s: %s", STATUS_TOPIC, error)
                self._is_told = True
            if is_last:
                self._close()
                return
            if not self._over.is_set():
                self._wake.wait(POLL_S)

    def _write_due(self) -> None:
        assert self._info is not None
        assert self._watch is not None
        now_ms = time.time_ns() // 1_000_000
        due = []
        for state in self._watch.states():
            status = stage_status(state, self._info, now_ms, self._versions)
            written_ms, last = self._written.get(state.stage, (None, None))
            changed = last is None or dataclasses.replace(status, time_ms=0) != dataclasses.replace(last, time_ms=0)
            state_changed = last is None or (status.state, status.since_ms) != (last.state, last.since_ms)
            if is_due(now_ms, written_ms, state_changed=state_changed, something_changed=changed):
                due.append(status)
        if due:
            self._send(due)
            for status in due:
                self._written[status.stage] = (now_ms, status)

    def _send(self, statuses: list[StageStatus]) -> None:
        if self._producer is None:
            self._cluster = ClusterClient(self._client)
            ensure_topic(self._cluster, STATUS_TOPIC, partitions=STATUS_PARTITIONS, configs=STATUS_CONFIGS)
            self._partitions = len(self._cluster.partitions(STATUS_TOPIC))
            limits = ProducerConfig(request_timeout_ms=REQUEST_MS_MAX, delivery_timeout_ms=REQUEST_MS_MAX)
            self._producer = IdempotentProducer(self._cluster, limits)
        for status in statuses:
            key = record_key(status.pipeline, status.stage)
            batch = bytearray(build_batch([Record(key, status.encode(), status.time_ms)]))
            self._producer.send(STATUS_TOPIC, partition_for_key(key, self._partitions), batch, 1)
        self._producer.flush()

    def _close(self) -> None:
        """Close the producer; a failed producer cannot be used again."""
        with contextlib.suppress(ClientError):
            if self._producer is not None:
                self._producer.close()
            if self._cluster is not None:
                self._cluster.close()
        self._producer = self._cluster = None


def stage_status(state: StageState, info: RunInfo, now_ms: int, versions: dict[str, str]) -> StageStatus:
    """Return the status record of a stage's state."""
    totals, last = state.totals, state.last
    return StageStatus(
        pipeline=state.pipeline,
        stage=state.stage,
        state=state.state.value,
        since_ms=state.since_ms,
        time_ms=now_ms,
        started_ms=info.started_ms,
        host=socket.gethostname(),
        process=os.getpid(),
        mode="continuous" if info.continuous else "once",
        batch=None if last is None else last.batch_id,
        batch_rows=0 if last is None else last.rows,
        batch_ms=0 if last is None else last.duration_ms,
        rows_per_second=0.0 if last is None else round(last.rows_per_second, 1),
        rows=totals.rows,
        written=totals.written,
        dead_letters=totals.dead_letters,
        undecodable=totals.undecodable,
        late_rows=totals.late_rows,
        late_records=totals.late_records,
        unmet=dict(totals.unmet),
        state_rows=0 if last is None else last.state_rows,
        state_bytes=0 if last is None else last.state_bytes,
        watermark=totals.watermark,
        stall=state.stall,
        lag={
            topic: Lag(lag.records, None if lag.seconds is None else round(lag.seconds, 1))
            for topic, lag in state.lag.items()
        },
        restarts=state.restarts,
        error=state.error,
        versions={**versions, **info.versions},
    )
