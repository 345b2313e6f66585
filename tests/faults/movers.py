"""Applications that read, process and write in transactions (KIP-447), and the reader of what they committed."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.clients import CLOSE_S, SILENT

GROUP = "movers"
RECORDS_MAX = 500
TRANSACTION_TIMEOUT_MS = 30_000
REQUEST_S = 20.0
#: librdkafka 2.10 and later never return from send_offsets_to_transaction after a re-bootstrap (its issue 5511).
_NO_REBOOTSTRAP = {"metadata.recovery.strategy": "none"}


class Mover:
    """A member of the group `movers` that copies a topic's records to another topic, exactly once, in a thread.

    Attributes:
        moved: Number of records in transactions that were committed.
    """

    def __init__(self, name: str, bootstrap_servers: str, source: str, target: str) -> None:
        self.name = name
        self.errors: list[str] = []
        self.moved = 0
        self._bootstrap_servers = bootstrap_servers
        self._source, self._target = source, target
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Begin no further transaction; return when the present one has ended."""
        self._ending.set()
        self._thread.join()

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self.name,
            "socket.timeout.ms": 10_000,
            "log_level": SILENT,
            **_NO_REBOOTSTRAP,
        }

    def _run(self) -> None:
        consumer = Consumer(
            {
                **self._common(),
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([self._source])
        producer: Producer | None = None
        try:
            while not self._ending.is_set():
                try:
                    if producer is None:
                        producer = self._new_producer()
                    self._move(consumer, producer)
                except KafkaException as failure:
                    producer = self._react(failure.args[0], producer)
                    _go_back(consumer)
        except Exception as error:  # noqa: BLE001 (of a thread: the run reports it)
            self.errors.append(f"{self.name}: {error!r}")
        finally:
            closing = threading.Thread(target=consumer.close, daemon=True)
            closing.start()
            closing.join(CLOSE_S)

    def _new_producer(self) -> Producer:
        producer = Producer(
            {
                **self._common(),
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 5,
            }
        )
        producer.init_transactions(REQUEST_S)
        return producer

    def _move(self, consumer: Consumer, producer: Producer) -> None:
        messages = [each for each in consumer.consume(RECORDS_MAX, 0.3) if each.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce(self._target, value=message.value(), key=message.key())
            producer.poll(0)
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            ends[topic, partition] = offset + 1
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), REQUEST_S)
        while True:
            try:
                producer.commit_transaction(REQUEST_S)
                break
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
        self.moved += len(messages)

    def _react(self, error: KafkaError, producer: Producer | None) -> Producer | None:
        """Abort, or begin again with another producer; what was read is read again from the committed offsets."""
        if producer is None or error.fatal() or not error.txn_requires_abort():
            return None
        try:
            producer.abort_transaction(REQUEST_S)
        except KafkaException:
            return None
        return producer


def _go_back(consumer: Consumer) -> None:
    """Seek to the committed offsets of the present assignment."""
    deadline_s = time.monotonic() + 3 * REQUEST_S
    while time.monotonic() < deadline_s:
        try:
            assigned = consumer.assignment()
            for each in consumer.committed(assigned, REQUEST_S) if assigned else ():
                consumer.seek(each if each.offset >= 0 else TopicPartition(each.topic, each.partition, 0))
        except KafkaException:
            time.sleep(0.2)
        else:
            return


def read_committed(bootstrap_servers: str, topic: str, partitions: int, count: int, limit_s: float) -> list[bytes]:
    """Return the values of a topic's committed records, partition by partition: `count`, or what comes in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verdict",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": SILENT,
        }
    )
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
    found: dict[int, list[bytes]] = defaultdict(list)
    deadline_s = time.monotonic() + limit_s
    # One more look, for records that must not be there.
    while sum(map(len, found.values())) < count and time.monotonic() < deadline_s:
        _take(consumer, found)
    _take(consumer, found)
    consumer.close()
    return [value for partition in sorted(found) for value in found[partition]]


def _take(consumer: Consumer, found: dict[int, list[bytes]]) -> None:
    for message in consumer.consume(10_000, 1.0):
        partition, value = message.partition(), message.value()
        if message.error() is None and partition is not None and value is not None:
            found[partition].append(value)
