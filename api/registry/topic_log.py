"""The topic `_schemas`: read from its beginning throughout the process's life, written by one writer at a time.

Each write is a transaction under a transactional id shared by all registries of a topic. The registry that initialises
the id last is the writer; uncommitted records of an earlier writer never become visible. So two registries on one topic
cannot assign the same id twice. The writer has read the whole topic once it reads back a record of its own. A write is
answered at that point.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.api.connection import Outage, client_properties
from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.topic_admin import ErrorCode, TopicAdmin, TopicAdminError, TopicRequest

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

_log = logging.getLogger(__name__)

PARTITIONS: Final = 1
"""Records have a total order in one partition only."""

POLL_S: Final = 0.5
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Maximum time for which a dead writer blocks readers."""

CHECK_S: Final = 10.0
"""Interval between checks of the topic's id: librdkafka does not report that a topic was deleted."""

_FENCED: Final = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})
_TOO_LARGE: Final = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})

KeyAndValue = tuple[bytes, bytes | None]
Apply = Callable[[bytes | None, bytes | None], None]


class FencedError(Exception):
    """Another registry became the writer since this one's last write; the decision must be repeated."""


class TopicLog:
    """Reads and writes one topic.

    `apply` receives key and value of every record in order, while `changed` is held; readers of the resulting state
    must hold `changed` as well. The caller ensures that one thread at a time writes. `await_loaded` must be called
    before all other methods.
    """

    def __init__(
        self,
        admin: TopicAdmin,
        topic: str,
        apply: Apply,
        reset: Callable[[], None],
        *,
        request_timeout_ms: int = 10_000,
        security: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the log; `reset` is called before the topic is read from its beginning."""
        self.name = topic
        self.changed = threading.Condition(threading.RLock())
        self._admin = admin
        self._apply = apply
        self._reset = reset
        self._timeout_s = request_timeout_ms / 1000
        self._outage = Outage()
        self._properties = client_properties(admin.bootstrap_servers, request_timeout_ms, security)
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._is_loaded = False
        self._position = 0
        self._failure = ""
        self._topic_id: str | None = None
        self._producer: Any = None

    def await_loaded(self) -> None:
        """Return once the records present at the start are read.

        Raises:
            RegistryError: the topic cannot be read or created within the timeout.
        """
        if self._is_loaded and not self._failure:
            return
        with self._start:
            if self._thread is None or self._failure:
                if self._thread is not None:
                    self._thread.join(self._timeout_s)
                self._require_topic()
                self._begin()
        with self.changed:
            if not self.changed.wait_for(lambda: self._is_loaded or self._failure, self._timeout_s):
                message = f"the topic {self.name} could not be read within {self._timeout_s:g} s"
                if self._outage.refusal:
                    message += f": {self._outage.refusal}"
                raise RegistryError(errors.STORE_TIMED_OUT, message)
            if self._failure:
                raise RegistryError(errors.STORE_FAILED, f"the topic {self.name} cannot be read: {self._failure}")

    @property
    def is_writer(self) -> bool:
        """Whether this process was the writer at its last write."""
        return self._producer is not None

    def become_writer(self, noop: KeyAndValue) -> None:
        """Return when this process is the writer and has read all records of earlier writers.

        Raises:
            RegistryError: the broker does not answer, or denies access.
        """
        if self._producer is not None:
            return
        self._check_topic()
        self.await_loaded()
        properties = self._properties | {
            "error_cb": self._outage,
            "transactional.id": f"headwater-registry-{self.name}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "compression.type": "none",
            "linger.ms": 0,
        }
        producer = _kafka().Producer(properties)
        try:
            producer.init_transactions(self._timeout_s)
        except _kafka().KafkaException as error:
            raise self._translate(error) from None
        self._producer = producer
        self.append([noop])

    def append(self, records: Sequence[KeyAndValue]) -> None:
        """Write records, all or none, and return when they are read back.

        Raises:
            FencedError: another process has become the writer; nothing was written.
            RegistryError: the write failed; the message reports whether the records may have been written.
        """
        assert self._producer is not None, "become_writer comes first"
        last = self._commit(records)
        with self.changed:
            done = self.changed.wait_for(lambda: self._position > last or self._failure, self._timeout_s)
        if not done or self._failure:
            message = f"the change was written to {self.name}, but not read back in time {self._failure}"
            raise RegistryError(errors.STORE_TIMED_OUT, message.strip())

    def close(self) -> None:
        """Stop reading. May be called twice."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * POLL_S + self._timeout_s)

    def _commit(self, records: Sequence[KeyAndValue]) -> int:
        offsets: list[int] = []
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(message.offset())

        producer = self._producer
        try:
            producer.begin_transaction()
            for key, value in records:
                producer.produce(self.name, key=key, value=value, partition=0, on_delivery=delivered)
            producer.flush(self._timeout_s)
            if failures:
                raise _kafka().KafkaException(failures[0])
            producer.commit_transaction(self._timeout_s)
        except _kafka().KafkaException as error:
            raise self._after_failure(producer, error) from None
        assert len(offsets) == len(records), "a commit waits for every delivery"
        return max(offsets)

    def _after_failure(self, producer: Any, error: KafkaException) -> Exception:
        """Abort the transaction if possible. The producer is never used again: the next write creates another."""
        reason = error.args[0]
        self._producer = None
        if reason.name() in _FENCED:
            return FencedError()
        if not reason.fatal():
            with contextlib.suppress(_kafka().KafkaException):
                producer.abort_transaction(self._timeout_s)
        if reason.name() in _TOO_LARGE:
            return RegistryError(errors.SCHEMA_TOO_LARGE, "Write failed because schema is too large")
        return self._translate(error)

    def _translate(self, error: KafkaException) -> RegistryError:
        reason = error.args[0]
        text = " ".join(reason.str().split()).removeprefix("Local: ").removeprefix("Broker: ")
        if self._outage.refusal:
            text = f"{text}: {self._outage.refusal}"
        code = errors.STORE_TIMED_OUT if "TIMED_OUT" in reason.name() else errors.STORE_FAILED
        return RegistryError(code, f"the topic {self.name} cannot be written: {text}")

    def _require_topic(self) -> None:
        """Create the topic if it does not exist, and refuse a topic that could lose records or their order."""
        try:
            try:
                topic = self._admin.describe_topic(self.name)
            except TopicAdminError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC:
                    raise
                request = TopicRequest(self.name, PARTITIONS, None, {"cleanup.policy": "compact"})
                _create(self._admin, request)
                topic = self._admin.describe_topic(self.name)
            configs = {config.name: config.value for config in self._admin.configs_of([self.name])[self.name]}
        except TopicAdminError as error:
            raise RegistryError(errors.STORE_FAILED, error.message) from None
        self._topic_id = topic.topic_id
        if topic.partitions_count != PARTITIONS:
            message = f"the topic {self.name} has {topic.partitions_count} partitions; a registry's has one"
            raise RegistryError(errors.STORE_FAILED, message)
        if configs.get("cleanup.policy") != "compact":
            message = (
                f"the topic {self.name} has cleanup.policy={configs.get('cleanup.policy')}: schemas would be lost; "
                "set it to compact"
            )
            raise RegistryError(errors.STORE_FAILED, message)

    def _begin(self) -> None:
        with self.changed:
            self._failure, self._is_loaded, self._position = "", False, 0
            self._producer = None
            self._reset()
        self._thread = threading.Thread(target=self._read, name=f"registry-{self.name}", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        """Run the reading thread, which ends when the topic is deleted, when it cannot be read, or at `close`."""
        kafka = _kafka()
        properties = self._properties | {
            "error_cb": self._outage,
            # No group is joined and nothing committed; librdkafka wants a name.
            "group.id": f"headwater-registry-{self.name}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
        consumer = kafka.Consumer(properties)
        try:
            consumer.assign([kafka.TopicPartition(self.name, 0, kafka.OFFSET_BEGINNING)])
            checked_s = time.monotonic()
            while not self._closing.is_set():
                if time.monotonic() - checked_s > CHECK_S:
                    self._check_topic()
                    checked_s = time.monotonic()
                message = consumer.poll(POLL_S)
                if message is not None:
                    self._take(message)
                if self._failure:
                    return
        finally:
            consumer.close()
            if not self._closing.is_set() and not self._failure:
                self._fail("its reader failed; the log has the reason")

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            with self.changed:
                self._apply(message.key(), message.value())
                self._position = message.offset() + 1
                self.changed.notify_all()
        elif error.name() == "_PARTITION_EOF":
            with self.changed:
                self._is_loaded = True
                self.changed.notify_all()
        elif error.fatal() or not error.retriable():
            # The consumer goes on by itself after most of these; a reader that waits gets its time-out.
            _log.warning("reading %s: %s", self.name, error.str())

    def _check_topic(self) -> None:
        """Fail if the topic's id has changed; a broker that does not answer counts as unchanged."""
        try:
            if self._admin.describe_topic(self.name).topic_id == self._topic_id:
                return
        except TopicAdminError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC:
                return
        self._fail("it was deleted")

    def _fail(self, reason: str) -> None:
        with self.changed:
            self._failure = reason
            self.changed.notify_all()


def _create(admin: TopicAdmin, request: TopicRequest) -> None:
    """Create a topic unless it exists already."""
    try:
        admin.create_topic(request)
    except TopicAdminError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


def _kafka() -> Any:
    # Its C library takes 50 ms to load, which a command that only asks for help need not spend.
    return importlib.import_module("confluent_kafka")
