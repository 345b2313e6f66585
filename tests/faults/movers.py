"""Applications that read, process and write in transactions (KIP-447), and the reader of what they committed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.clients import CLOSE_S, SILENT

_ROOT = Path(__file__).resolve().parents[2]
GROUP = "movers"
RECORDS_MAX = 500
TRANSACTION_TIMEOUT_MS = 30_000
#: Part of the transactions that are aborted when all their records are in the log.
ABORTED = 0.1
REQUEST_S = 20.0
#: librdkafka 2.10 and later never return from send_offsets_to_transaction after a re-bootstrap (its issue 5511), and
#: sometimes without one.
_NO_REBOOTSTRAP = {"metadata.recovery.strategy": "none"}


#: Every call has a limit of its own, below this: a mover that says nothing for longer hangs in its client.
_SILENT_S = 2 * REQUEST_S + 5


class Mover:
    """A member of the group `movers` that copies a topic's records to another topic, exactly once, in a process.

    librdkafka's calls sometimes never return (its issue 5511), whatever their limit: such a process is killed, as an
    operator would, and another one goes on under the same transactional id.

    Attributes:
        moved: Number of records in transactions that were committed.
        hangs: How often a process was killed because its client hung.
        errors: What ended a process.
    """

    def __init__(self, name: str, bootstrap_servers: str, source: str, target: str) -> None:
        self.moved = self.hangs = 0
        self.errors: list[str] = []
        self._command = [sys.executable, "-m", "tests.faults.movers", name, bootstrap_servers, source, target]
        self._is_ending = False
        self._heard_s = 0.0
        self._process: subprocess.Popen[str] | None = None
        self._watching = threading.Thread(target=self._watch, name=name)

    def start(self) -> None:
        """Begin to move."""
        self._start_process()
        self._watching.start()

    def finish(self) -> None:
        """Begin no further transaction; return when the present one has ended."""
        self._is_ending = True
        self._watching.join()

    def _start_process(self) -> None:
        self._heard_s = time.monotonic()
        paths = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._process = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._heard_s = time.monotonic()
                what, _, rest = line.strip().partition(" ")
                if what == "moved":
                    self.moved += int(rest)
                elif what == "failed":
                    self.errors.append(rest)

    def _watch(self) -> None:
        while True:
            process = self._process
            assert process is not None
            assert process.stdin is not None
            if self._is_ending:
                process.stdin.close()  # which asks it to end
            try:
                process.wait(0.5)
                return
            except subprocess.TimeoutExpired:
                if time.monotonic() - self._heard_s <= _SILENT_S:
                    continue
            self.hangs += 1
            process.kill()
            process.wait()
            process.stdin.close()
            if self._is_ending:
                return
            self._start_process()


class MoverLoop:
    """What a mover's process does until its standard input ends; it says so after every step."""

    def __init__(self, name: str, bootstrap_servers: str, source: str, target: str) -> None:
        self.name = name
        self._bootstrap_servers = bootstrap_servers
        self._source, self._target = source, target
        self._chance = random.Random()
        self._ending = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        sys.stdin.read()
        self._ending.set()

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self.name,
            "socket.timeout.ms": 10_000,
            "log_level": SILENT,
            **_NO_REBOOTSTRAP,
        }

    def run(self) -> None:
        """Move until the end."""
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
                _say("alive")
                try:
                    if producer is None:
                        producer = self._new_producer()
                    self._move(consumer, producer)
                except KafkaException as failure:
                    producer = self._react(failure.args[0], producer)
                    _go_back(consumer)
        except Exception as error:  # noqa: BLE001 (the run reports it)
            _say(f"failed {self.name}: {error!r}")
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
        if self._chance.random() < ABORTED:
            producer.flush(REQUEST_S)
            producer.abort_transaction(REQUEST_S)
            _go_back(consumer)
            return
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), REQUEST_S)
        while True:
            _say("alive")
            try:
                producer.commit_transaction(REQUEST_S)
                break
            except KafkaException as failure:
                if not failure.args[0].retriable():
                    raise
        _say(f"moved {len(messages)}")

    def _react(self, error: KafkaError, producer: Producer | None) -> Producer | None:
        """Abort, or begin again with another producer; what was read is read again from the committed offsets."""
        if producer is None or error.fatal() or not error.txn_requires_abort():
            return None
        try:
            producer.abort_transaction(REQUEST_S)
        except KafkaException:
            return None
        return producer


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _go_back(consumer: Consumer) -> None:
    """Seek to the committed offsets of the present assignment."""
    deadline_s = time.monotonic() + 3 * REQUEST_S
    while time.monotonic() < deadline_s:
        _say("alive")
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


if __name__ == "__main__":
    MoverLoop(*sys.argv[1:5]).run()
    os._exit(0)  # not by the clients' destructors, which can hang as their calls do
