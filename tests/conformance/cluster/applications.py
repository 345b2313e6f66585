"""Applications beside a rolling restart: librdkafka's clients in threads, and Kafka's own Java programs.

Each makes progress, and any error is one too many: of a call, of a message, or a fatal one.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.bench.processes import Child
from tests.jars import java_program

PARTITIONS = 3
PATIENCE_S = 120
REQUEST_S = 60.0
RECORDS_MAX = 200
RECORDS_PER_TRANSACTION = 10
#: Between two transactions: without it, the brokers would do nothing else.
PAUSE_S = 0.05
#: Every call of a client has a limit below this: one that is silent for longer hangs.
SILENT_S = REQUEST_S + 15
#: What a JVM ends with after SIGTERM.
TERMINATED = 143


class Running(Protocol):
    """What a test asks of an application."""

    name: str
    errors: list[str]

    def start(self) -> None: ...

    def progress(self) -> int:
        """Return how much it has done."""

    def finish(self) -> None:
        """End it; one that does not end well adds an error."""


class Application:
    """An application in a thread of its own.

    librdkafka also reports lost connections and addresses that do not answer, in every restart; it heals them itself.
    """

    def __init__(self, name: str, addresses: str, source: str = "", group_protocol: str = "classic") -> None:
        self.name = name
        self.errors: list[str] = []
        #: Rebalances of its group.
        self.assignments = 0
        self._source = source
        self._group_protocol = group_protocol
        self._common: dict[str, Any] = {
            "bootstrap.servers": addresses,
            "client.id": name,
            "error_cb": self._failed,
            "log_level": 0,
        }
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run_to_the_end, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def progress(self) -> int:
        raise NotImplementedError

    def finish(self) -> None:
        """End the application; a client that does not return is an error."""
        self._ending.set()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.errors.append(f"{self.name}: its client does not return")

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(f"{self.name}: {error}")

    def _run_to_the_end(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 (of a thread: the test reports it)
            self.errors.append(f"{self.name}: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError

    def _good(self, messages: list[Message]) -> list[Message]:
        """The messages; what a consumer gets in place of one is an error."""
        self.errors += [f"{self.name}: {each.error()}" for each in messages if each.error() is not None]
        return [each for each in messages if each.error() is None]

    def _subscribed(self, **more: object) -> Consumer:
        consumer = Consumer(
            {
                **self._common,
                "group.id": self.name,
                "group.protocol": self._group_protocol,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **more,
            }
        )
        consumer.subscribe([self._source], on_assign=self._assigned)
        return consumer

    def _assigned(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.assignments += 1


class GroupMember(Application):
    """A consumer in a group, which commits what it has read.

    Attributes:
        seen: The values, by partition, in the order in which they came.
    """

    def __init__(self, name: str, addresses: str, source: str, group_protocol: str) -> None:
        super().__init__(name, addresses, source, group_protocol)
        self.seen: dict[int, list[bytes]] = {each: [] for each in range(PARTITIONS)}

    def _run(self) -> None:
        consumer = self._subscribed()
        try:
            while not self._ending.is_set():
                messages = self._good(consumer.consume(RECORDS_MAX, 0.3))
                for message in messages:
                    partition, value = message.partition(), message.value()
                    assert partition is not None
                    assert value is not None
                    self.seen[partition].append(value)
                if messages:
                    consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    def progress(self) -> int:
        return sum(map(len, self.seen.values()))


class TransactionalWriter(Application):
    """Writes in transactions without offsets, which all succeed at the first attempt.

    Attributes:
        committed: The values of the transactions that were committed.
    """

    def __init__(self, name: str, addresses: str, target: str) -> None:
        super().__init__(name, addresses)
        self.committed: list[bytes] = []
        self._target = target

    def _run(self) -> None:
        producer = Producer({**self._common, "transactional.id": self.name, "linger.ms": 5})
        producer.init_transactions(REQUEST_S)
        while not self._ending.is_set():
            first = len(self.committed)
            values = [b"%d" % number for number in range(first, first + RECORDS_PER_TRANSACTION)]
            producer.begin_transaction()
            for value in values:
                producer.produce(self._target, value=value)
            producer.commit_transaction(REQUEST_S)
            self.committed += values
            self._ending.wait(PAUSE_S)

    def progress(self) -> int:
        return len(self.committed)


class OffsetsMover(Application):
    """Copies a topic in transactions with its group's offsets (KIP-447), which all succeed at the first attempt.

    With `metadata.recovery.strategy=none`, as the documentation advises: else librdkafka 2.10 to 2.16 never returns
    from sending offsets when the coordinator of the group leaves the metadata, as in every rolling restart, also of
    Kafka (its issue 5511). It was seen to hang with that setting, too, rarely: then another client takes over, as the
    documentation advises as well, and the copy is still exact.

    Attributes:
        moved: Number of records in transactions that were committed.
        hangs: Number of clients that did not return.
    """

    def __init__(self, name: str, addresses: str, source: str, target: str) -> None:
        super().__init__(name, addresses, source)
        self.moved = self.hangs = 0
        self._target = target
        self._heard_s = 0.0
        self._common["metadata.recovery.strategy"] = "none"

    def progress(self) -> int:
        return self.moved

    def _run(self) -> None:
        while not self._ending.is_set():
            self._heard_s = time.monotonic()
            client = threading.Thread(target=self._move_to_the_end, args=(self.hangs,), daemon=True)
            client.start()
            while client.is_alive() and time.monotonic() - self._heard_s < SILENT_S:
                client.join(0.5)
            if not client.is_alive():
                return
            self.hangs += 1

    def _move_to_the_end(self, hangs: int) -> None:
        """Move until the end, or until another client has replaced this one."""
        try:
            # What hangs leaves the group soon.
            consumer = self._subscribed(**{"max.poll.interval.ms": int(SILENT_S * 1000)})
            producer = Producer({**self._common, "transactional.id": self.name, "linger.ms": 5})
            producer.init_transactions(REQUEST_S)
            while not self._ending.is_set() and hangs == self.hangs:
                self._heard_s = time.monotonic()
                if messages := self._good(consumer.consume(RECORDS_MAX, 0.3)):
                    self._move(consumer, producer, messages)
            consumer.close()
        except Exception as error:  # noqa: BLE001 (of a thread: the test reports it)
            if hangs == self.hangs:
                self.errors.append(f"{self.name}: {error!r}")

    def _move(self, consumer: Consumer, producer: Producer, messages: list[Message]) -> None:
        producer.begin_transaction()
        for message in messages:
            producer.produce(self._target, value=message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), REQUEST_S
        )
        self._heard_s = time.monotonic()
        producer.commit_transaction(REQUEST_S)
        self.moved += len(messages)


class JavaProgram:
    """One of the programs of Kafka's own system tests, which print a line of JSON for what they do."""

    def __init__(self, name: str, folder: Path, jars: Path, main: str, *arguments: str) -> None:
        self.name = name
        self.errors: list[str] = []
        self._output = folder / f"{name}.log"
        self._command = java_program([f"{jars}/*"], f"org.apache.kafka.tools.{main}", *arguments)
        self._child: Child | None = None
        self._read = 0
        self._done = 0

    def start(self) -> None:
        self._child = Child(self.name, self._command, self._output)

    def progress(self) -> int:
        assert self._child is not None
        with self._output.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._take(line.decode())
        if self._child.process.poll() is not None:
            self.errors.append(f"{self.name} has ended: {self._child.tail()}")
        return self._done

    def finish(self) -> None:
        if self._child is None or self._child.process.poll() is not None:
            return
        self.progress()
        self._child.terminate(PATIENCE_S)
        if self._child.process.returncode != TERMINATED:
            self.errors.append(f"{self.name} ended with {self._child.process.returncode}: {self._child.tail()}")

    def kill(self) -> None:
        """Whatever became of the test, no process is left."""
        if self._child is not None:
            self._child.stop()

    def _take(self, line: str) -> None:
        if not line.startswith("{"):
            if " ERROR " in line or "Exception" in line:
                self.errors.append(f"{self.name}: {line}")
            return
        said = json.loads(line)
        match said.get("name") or said.get("stage"):
            case "producer_send_success":
                self._done += 1
            case "producer_send_error":
                self.errors.append(f"{self.name}: {line}")
            case "ProcessLoop" | "ShutdownComplete":
                self._done = said["totalProcessed"]
