"""Status of pipelines, as their runs write it to the topic `__headwater_status`.

One thread reads the topic from its beginning, starting at the first query. The table holds the last status of each
stage. The table is bounded: the stages that reported least recently are dropped first.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater.api.connection import Outage, client_properties
from headwater.api.topic_admin import TopicAdmin
from headwater.api.topic_model import ErrorCode, TopicAdminError

if TYPE_CHECKING:
    from headwater.pipelines.monitoring.status import StageStatus

__all__ = ["STAGES_MAX", "PipelineStatus", "StatusTable"]

_log = logging.getLogger(__name__)

STAGES_MAX: Final = 10_000
"""Stages in the table: a hundred pipelines with a hundred stages each. The oldest reports are dropped."""

POLL_S: Final = 0.5
CHECK_S: Final = 10.0
"""Interval between checks of the topic's id: librdkafka does not report that a topic was deleted."""

Key = tuple[str, str]


class StatusTable:
    """The last status of each stage, without I/O. Not thread-safe: the caller holds a lock."""

    def __init__(self, stages_max: int = STAGES_MAX) -> None:
        self._stages_max = stages_max
        self._stages: dict[Key, StageStatus] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record; a record that is not the status of a stage is ignored."""
        from headwater.pipelines.monitoring.status import decode, record_key

        if key is None:
            return
        pipeline, _, stage = key.decode("utf-8", "replace").partition("/")
        if value is None:
            self._stages.pop((pipeline, stage), None)
            return
        try:
            status = decode(value)
        except ValueError:
            return
        if record_key(status.pipeline, status.stage) != key:
            return
        # The one that was heard of last is at the end.
        self._stages.pop((pipeline, stage), None)
        self._stages[pipeline, stage] = status
        while len(self._stages) > self._stages_max:
            del self._stages[next(iter(self._stages))]

    def clear(self) -> None:
        """Remove all stages."""
        self._stages.clear()

    def stages(self) -> dict[Key, StageStatus]:
        """Return the status by pipeline and stage, sorted."""
        return dict(sorted(self._stages.items()))


class PipelineStatus:
    """The status of all pipelines of a cluster. Thread-safe; the first call waits until the topic is read."""

    def __init__(
        self,
        admin: TopicAdmin,
        *,
        request_timeout_ms: int = 10_000,
        security: Mapping[str, str] | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Prepare a reader; nothing is read before the first call."""
        self._admin = admin
        self._clock_ms = clock_ms
        self._timeout_s = request_timeout_ms / 1000
        self._outage = Outage()
        self._properties = client_properties(admin.bootstrap_servers, request_timeout_ms, security)
        self._changed = threading.Condition(threading.RLock())
        self._table = StatusTable()
        self._start = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._left: set[int] = set()

    def stages(self) -> dict[Key, StageStatus]:
        """Return the status by pipeline and stage; empty if no run has written any.

        Raises:
            TopicAdminError: the topic cannot be read within the timeout.
        """
        self._await_read()
        with self._changed:
            return self._table.stages()

    def now_ms(self) -> int:
        """Return the clock's time, against which the age of a status is measured."""
        return self._clock_ms()

    def close(self) -> None:
        """Stop reading. May be called twice."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2 * POLL_S + self._timeout_s)

    def _await_read(self) -> None:
        from headwater.pipelines.monitoring.status import STATUS_TOPIC

        with self._start:
            if self._thread is None or not self._thread.is_alive():
                try:
                    topic = self._admin.describe_topic(STATUS_TOPIC)
                except TopicAdminError as error:
                    if error.code is ErrorCode.UNKNOWN_TOPIC:
                        with self._changed:
                            self._table.clear()
                        return  # no run has begun yet: the first one makes it
                    raise
                with self._changed:
                    self._table.clear()
                    self._left = {part.partition for part in topic.partitions}
                self._thread = threading.Thread(
                    target=self._read, args=(topic.topic_id, sorted(self._left)), name="pipeline-status", daemon=True
                )
                self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._left, self._timeout_s):
                message = f"the topic {STATUS_TOPIC} could not be read within {self._timeout_s:g} s"
                if self._outage.refusal:
                    message += f": {self._outage.refusal}"
                raise TopicAdminError(ErrorCode.TIMED_OUT, message)

    def _read(self, topic_id: str, partitions: list[int]) -> None:
        """Run the reading thread, which ends when the topic is deleted or at `close`."""
        from headwater.pipelines.monitoring.status import STATUS_TOPIC

        kafka: Any = importlib.import_module("confluent_kafka")
        consumer = kafka.Consumer(
            self._properties
            | {
                "error_cb": self._outage,
                # No group is joined and nothing committed; librdkafka wants a name.
                "group.id": "headwater-api-status",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        try:
            consumer.assign([kafka.TopicPartition(STATUS_TOPIC, p, kafka.OFFSET_BEGINNING) for p in partitions])
            checked_s = time.monotonic()
            while not self._closing.is_set():
                if time.monotonic() - checked_s > CHECK_S:
                    checked_s = time.monotonic()
                    if not self._is_there(STATUS_TOPIC, topic_id):
                        return
                message = consumer.poll(POLL_S)
                if message is not None:
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        with self._changed:
            if error is None:
                self._table.apply(message.key(), message.value())
            elif error.name() == "_PARTITION_EOF":
                self._left.discard(message.partition())
                self._changed.notify_all()
            elif error.fatal() or not error.retriable():
                _log.warning("reading the status of pipelines: %s", error.str())

    def _is_there(self, topic: str, topic_id: str) -> bool:
        """Return whether the topic still has this id; a broker that does not answer counts as yes."""
        try:
            return self._admin.describe_topic(topic).topic_id == topic_id
        except TopicAdminError as error:
            return error.code is not ErrorCode.UNKNOWN_TOPIC
