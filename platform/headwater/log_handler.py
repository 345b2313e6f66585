"""`logging.Handler` that writes to a topic, the counterpart of log4j's Kafka appender.

```python
logging.config.dictConfig(
    {
        "version": 1,
        "handlers": {
            "topic": {
                "class": "headwater.log_handler.TopicHandler",
                "bootstrap_servers": "127.0.0.1:9092",
                "topic": "logs",
            }
        },
        "root": {"level": "INFO", "handlers": ["topic"]},
    }
)
```

Logging must neither block nor break the program. Records enter a bounded queue; a thread of the handler produces from
it. Records that do not fit are dropped, counted and reported. The handler ignores records of its own machinery, which
would feed it endlessly. Processes of `multiprocessing` flush before they end with `os._exit`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

OWN_LOGGER: Final = "headwater.log_handler"
"""The handler's logger; its records, and those of the client library below it, go to other handlers only."""

QUEUE_RECORDS_MAX: Final = 10_000
QUEUE_BYTES_MAX: Final = 32 << 20
"""Bound on queued bytes: ten thousand records of the maximum message size would take ten gigabytes."""
FLUSH_MS: Final = 10_000
_POLL_S: Final = 0.1
_BATCH: Final = 500
_REPORT_S: Final = 10.0

_SAME_TIME_S: Final = 1.0
"""Time within which a flush that timed out also counts for `close`."""

_PAUSE_FLUSH_S: Final = 1.0
"""How long a fork waits for messages in flight; the remaining ones are queued again."""

_AFTER_OTHERS: Final = -100
"""Priority of the flush of a `multiprocessing` process: after most other finalizers, which may log."""

_handlers: weakref.WeakSet[TopicHandler] = weakref.WeakSet()


class JsonLineFormatter(logging.Formatter):
    """A record as one JSON object: time (UTC, ISO 8601), level, logger, message, host, process, thread, exception."""

    def __init__(self) -> None:
        super().__init__()
        self._host = socket.gethostname()

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of the object."""
        fields: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "host": self._host,
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class TopicHandler(logging.Handler):
    """Writes log records to a topic, from a thread of its own.

    Invariants: `emit` neither blocks nor raises; at most `queue_records_max` records and `queue_bytes_max` bytes are
    queued; `dropped` counts all records that were not written, because the queue was full or the brokers refused them.
    Each counter has one writer: the logging thread (under the handler's lock) or the handler's own thread. The client
    is closed before a fork and created again afterwards: its threads would not survive the fork and could leave locks
    behind. The child starts with an empty queue: queued records belong to the parent.

    Args:
        bootstrap_servers: Brokers, as host:port[,host:port].
        topic: The topic that receives the records.
        key: Format string for the messages' keys over the record's attributes (`%(name)s`); empty for no key.
        queue_records_max: Maximum number of queued records.
        queue_bytes_max: Maximum bytes of queued keys and values as sent.
        flush_ms: How long `flush` and `close` wait for queued records.
        client: Additional client properties under librdkafka's names, such as `security.protocol`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        key: str | None = None,
        level: int | str = logging.NOTSET,
        queue_records_max: int = QUEUE_RECORDS_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        flush_ms: int = FLUSH_MS,
        client: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        super().__init__(level)
        if queue_records_max < 1:
            raise ValueError(f"queue_records_max is {queue_records_max}; at least one record must fit")
        if queue_bytes_max < 1:
            raise ValueError(f"queue_bytes_max is {queue_bytes_max}; at least one record must fit")
        self.topic = topic
        self._key = None if key is None else logging.PercentStyle(key)
        self._queue_records_max = queue_records_max
        self._queue_bytes_max = queue_bytes_max
        self._flush_s = flush_ms / 1000
        self._properties: dict[str, Any] = {
            "linger.ms": 50,
            "enable.idempotence": True,
            "message.timeout.ms": 120_000,
            "queue.buffering.max.messages": max(queue_records_max, 1000),
            # Never the queue that is full: what is in it counts as waiting.
            "queue.buffering.max.kbytes": queue_bytes_max // 1024 + 2048,
            **(client or {}),
            "bootstrap.servers": bootstrap_servers,
        }
        self.formatter = JsonLineFormatter()
        self._begin()
        _handlers.add(self)

    def _begin(self) -> None:
        """Initialise the state of a process."""
        self.written = 0
        self._dropped_full = 0
        self._dropped_later = 0
        self._reported = 0
        self._bytes_queued = 0
        self._bytes_settled = 0
        self._is_finalized = False
        self._queue: deque[tuple[bytes | None, bytes]] = deque()
        self._wake = threading.Event()
        self._idle = threading.Condition()
        self._closing = False
        #: When a closing thread stops waiting, by the monotonic clock.
        self._give_up_s = 0.0
        #: When a flush last waited in vain.
        self._late_s = -math.inf
        self._in_flight = 0
        self._pausing = False
        #: What the client gave back when it was ended for a fork.
        self._returned: list[tuple[bytes | None, bytes]] = []
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Number of records that were not written."""
        return self._dropped_full + self._dropped_later

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it if the queue is full."""
        if len(self._queue) + self._in_flight >= self._queue_records_max or self._closing:
            self._dropped_full += 1
            return
        try:
            key = None if self._key is None else self._key.format(record).encode("utf-8", "replace")
            value = self.format(record).encode("utf-8", "replace")
        except Exception:  # noqa: BLE001 (as every handler: a record that cannot be formatted is no reason to fail)
            self.handleError(record)
            return
        size = _size(key, value)
        if self._bytes_queued - self._bytes_settled + size > self._queue_bytes_max:
            self._dropped_full += 1
            return
        self._bytes_queued += size
        self._queue.append((key, value))
        # `handle` holds the handler's lock: the thread is started once.
        if self._thread is None:
            self._start()
        if not self._wake.is_set():
            self._wake.set()

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record, unless it comes from the handler's own machinery; the check takes no lock."""
        if record.name.startswith(OWN_LOGGER) or threading.current_thread() is self._thread:
            return False
        return super().handle(record)

    def flush(self) -> None:
        """Wait until the queued records are acknowledged, for at most `flush_ms`."""
        if self._thread is None or not self._thread.is_alive():
            return
        deadline = time.monotonic() + self._flush_s
        self._wake.set()
        with self._idle:
            while (self._queue or self._in_flight) and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(min(left, _POLL_S))
            if self._queue or self._in_flight:
                self._late_s = time.monotonic()

    def close(self) -> None:
        """Flush, then end the thread; later records are dropped.

        `logging.shutdown` flushes and closes: `close` does not wait again for records for which a flush has just waited
        in vain.
        """
        if time.monotonic() - self._late_s > _SAME_TIME_S:
            self.flush()
        is_late = time.monotonic() - self._late_s <= _SAME_TIME_S
        self._give_up_s = time.monotonic() + (0 if is_late else self._flush_s)
        self._closing = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._flush_s + 1)
            if self._thread.is_alive():
                # It is stuck; nobody waits for it any longer.
                self._report_losses(len(self._queue) + self._in_flight)
        self._report_losses()
        _handlers.discard(self)
        super().close()

    def _report_losses(self, waiting: int = 0) -> None:
        """Log the number of records lost since the last report, and the total."""
        total = self.dropped + waiting
        if (count := total - self._reported) <= 0:
            return
        self._reported = total
        sum_ = "" if count == total else f", {total} in all"
        _tell(f"{count} log records were not written to topic {self.topic}{sum_}")

    def _finalize(self) -> None:
        """Flush before the end of a `multiprocessing` process, which does not call `logging.shutdown`."""
        self.flush()
        self._report_losses(len(self._queue) + self._in_flight)

    def _start(self) -> None:
        if not self._is_finalized:
            self._is_finalized = True
            _before_the_end_of_a_child(self)
        self._thread = threading.Thread(target=self._run, name="headwater-log-handler", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the process may have no more threads: the next record tries again
            self._thread = None

    def _run(self) -> None:
        """Run the thread: take records from the queue, produce them, process deliveries."""
        logger = logging.getLogger(OWN_LOGGER)
        try:
            from confluent_kafka import Producer

            producer = Producer(self._properties, logger=logger)
        except Exception as error:  # noqa: BLE001 (whatever it is, the program goes on without these records)
            logger.error("the log handler of topic %s cannot start: %s", self.topic, error)
            self._closing = True
            self._dropped_later += len(self._queue)
            self._queue.clear()
            return
        reported_s = 0.0
        while True:
            self._wake.wait(_POLL_S)
            self._wake.clear()
            self._produce_queued(producer)
            producer.poll(0)
            with self._idle:
                self._idle.notify_all()
            if self._pausing:
                # Whatever is not acknowledged comes back into the queue (`_delivered`), in its order.
                if producer.flush(_PAUSE_FLUSH_S):
                    producer.purge()
                    producer.flush(_PAUSE_FLUSH_S)
                self._queue.extendleft(reversed(self._returned))
                self._returned.clear()
                return
            if self.dropped > self._reported and time.monotonic() - reported_s >= _REPORT_S:
                self._report_losses()
                reported_s = time.monotonic()
            if self._closing and (not self._queue or time.monotonic() >= self._give_up_s):
                producer.flush(max(0.0, self._give_up_s - time.monotonic()))
                # Of these no delivery will tell any more.
                self._dropped_later += self._in_flight + len(self._queue)
                self._queue.clear()
                self._in_flight = 0
                return

    def _produce_queued(self, producer: Producer) -> None:
        while self._queue and not self._pausing:
            for _ in range(min(_BATCH, len(self._queue))):
                key, value = self._queue[0]
                try:
                    producer.produce(self.topic, value, key, on_delivery=self._delivered)
                except BufferError:
                    # The brokers are away: the queue fills, and what does not fit is dropped where it is emitted.
                    producer.poll(_POLL_S)
                    return
                except Exception as error:  # noqa: BLE001 (too large, for one: this record is lost, the others are not)
                    self._queue.popleft()
                    self._bytes_settled += _size(key, value)
                    self._dropped_later += 1
                    logging.getLogger(OWN_LOGGER).debug("a log record cannot be written: %s", error)
                else:
                    self._in_flight += 1
                    self._queue.popleft()
            producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._in_flight -= 1
        if error is None:
            self.written += 1
        elif self._pausing:
            self._returned.append((_as_bytes(message.key()), _as_bytes(message.value()) or b""))
            return
        else:
            self._dropped_later += 1
        self._bytes_settled += _size(_as_bytes(message.key()), _as_bytes(message.value()) or b"")

    def _pause(self) -> None:
        """Before a fork: close the client with all its threads. The lock is held until `_resume`; no thread emits."""
        self.acquire()
        if self._thread is not None:
            self._pausing = True
            self._wake.set()
            self._thread.join()
            self._thread = None

    def _resume(self) -> None:
        """After a fork, in the parent: release the lock."""
        self._pausing = False
        if self._queue:
            self._start()
        self.release()


def _tell(text: str) -> None:
    """Log a message of the handler's own; on standard error if no other handler receives it."""
    logger: logging.Logger | None = logging.getLogger(OWN_LOGGER)
    assert logger is not None
    record = logger.makeRecord(OWN_LOGGER, logging.WARNING, __file__, 0, text, (), None)
    is_taken = False
    while logger is not None:
        is_taken = is_taken or any(not isinstance(handler, TopicHandler) for handler in logger.handlers)
        logger = logger.parent if logger.propagate else None
    if is_taken:
        logging.getLogger(OWN_LOGGER).handle(record)
    elif logging.lastResort is not None:
        logging.lastResort.handle(record)


def _before_the_end_of_a_child(handler: TopicHandler) -> None:
    """Flush the handler at the end of a `multiprocessing` child. Other processes call `logging.shutdown`.

    A process outside that library has not imported it, or has no parent process.
    """
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None:
        return
    reference = weakref.ref(handler)

    def finalize() -> None:
        if (living := reference()) is not None:
            living._finalize()

    util.Finalize(None, finalize, exitpriority=_AFTER_OTHERS)


def _size(key: bytes | None, value: bytes) -> int:
    return len(key or b"") + len(value)


def _as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _before_fork() -> None:
    """Pause all handlers: a client's threads may hold locks of the C library, and a forked child would wait forever."""
    global _forking
    _forking = sorted(_handlers, key=id)
    for handler in _forking:
        handler._pause()


def _after_fork_in_parent() -> None:
    for handler in _forking:
        handler._resume()


def _after_fork_in_child() -> None:
    """Reset the handlers: queued records belong to the parent, and the lock's owner does not exist in the child."""
    for handler in _forking:
        handler.createLock()
        handler._begin()


_forking: list[TopicHandler] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
