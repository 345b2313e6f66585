"""Clients that note what they were told: producers which acknowledgements, consumers which records."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

#: Records a second of one producer: enough for batches, few enough to read all of them back at the end.
RATE = 250
#: Longer than any fault: what a producer was not told is never sent twice by the test itself.
DELIVERY_TIMEOUT_MS = 600_000
KEYS = 7
#: Time that a consumer has to close its connections.
CLOSE_S = 10.0
#: Each refused connection would be a line.
SILENT = 0


class Acknowledged(NamedTuple):
    """A record as its producer was told it lies in the log; the offset is -1 where the answer was lost."""

    topic: str
    partition: int
    offset: int
    value: bytes


class NumberProducer:
    """An idempotent producer (acks=all) of numbered records, in a thread of its own."""

    def __init__(self, name: str, bootstrap_servers: str, topic: str) -> None:
        self.name = name
        self.topic = topic
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "socket.timeout.ms": 10_000,
                "error_cb": self._failed,
                "log_level": SILENT,
                "client.id": name,
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def keys_acknowledged(self) -> int:
        """Number of keys of which a record was acknowledged."""
        return len({each.value.partition(b":")[0] for each in tuple(self.acknowledged)})

    def finish(self, limit_s: float) -> int:
        """Send no more; wait for the acknowledgements; return how many are missing."""
        self._ending.set()
        self._thread.join()
        return int(self._producer.flush(limit_s))

    def _run(self) -> None:
        number = 0
        begun_s = time.monotonic()
        while not self._ending.is_set():
            self._producer.poll(0)
            due = (time.monotonic() - begun_s) * RATE
            # While nothing is acknowledged the queue grows no further: the rest is sent later, not faster.
            if number >= due or len(self._producer) > 2 * RATE:
                time.sleep(0.005)
                begun_s = max(begun_s, time.monotonic() - number / RATE - 0.1)
                continue
            key = f"{self.name}.{number % KEYS}"
            value = f"{key}:{number // KEYS}".encode()
            self._producer.produce(self.topic, value=value, key=key.encode(), on_delivery=self._delivered)
            number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is not None:
            self.errors.append(f"{self.name}: {value!r} was not delivered: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        self.acknowledged.append(Acknowledged(self.topic, partition, -1 if offset is None else offset, value))

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(f"{self.name}: {error}")


class WatchingConsumer:
    """A consumer without a group of one topic, from its beginning, in a thread of its own.

    Attributes:
        seen: The values by partition, in the order of the offsets from 0 on.
        errors: What no consumer may see: a gap, a step back, an offset out of range.
    """

    def __init__(self, name: str, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.name = name
        self.topic = topic
        self.seen: dict[int, list[bytes]] = defaultdict(list)
        self.errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "socket.timeout.ms": 10_000,
                "log_level": SILENT,
                "client.id": name,
            }
        )
        self._consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._ending.set()
        self._thread.join()
        # librdkafka's close has waited without end, once in 50 faults, for something inside of it. What was seen is
        # noted by now, and the run goes on.
        closing = threading.Thread(target=self._consumer.close, name=f"{self.name}-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(1_000, 0.2):
                self._note(message)

    def _note(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
                self.errors.append(f"{self.name}: {error}")
            return
        seen = self.seen[message.partition()]
        if message.offset() != len(seen):
            self.errors.append(
                f"{self.name}: {self.topic}-{message.partition()} went from offset {len(seen) - 1} to "
                f"{message.offset()}"
            )
        seen.append(message.value())
