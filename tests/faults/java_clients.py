"""Java programs that Kafka's own system tests use, as clients: a producer and a copier in transactions."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.peers.apache_kafka import jars
from tests.bench.processes import Child, Failed
from tests.faults.clients import DELIVERY_TIMEOUT_MS, KEYS, RATE, Acknowledged
from tests.faults.verdict import numbered
from tests.jars import java_program

#: Group of the copier, which has no other member.
COPIERS = "copiers"

#: Over the tool's own, which sends nothing twice.
_PRODUCER = {
    "enable.idempotence": "true",
    "retries": str(2**31 - 1),
    "delivery.timeout.ms": str(DELIVERY_TIMEOUT_MS),
    "max.block.ms": str(DELIVERY_TIMEOUT_MS),
    "request.timeout.ms": "10000",
    "linger.ms": "5",
}
TRANSACTION_TIMEOUT_MS = 30_000
RECORDS_MAX = 1_000
#: A copier ends when it has read what was there at its start.
_PAUSE_S = 1.0
#: Part of the copiers that are killed, and when.
_KILLED = 0.25
_KILL_S = (2.0, 6.0)
#: It says something before each transaction: silence is longer than a transaction's timeout and any fault.
_SILENT_S = 120.0
#: For what is left when the producers have ended.
_LAST_S = 300.0


def _command(tool: str, *arguments: str) -> list[str]:
    return java_program([f"{jars()}/*"], f"org.apache.kafka.tools.{tool}", *arguments)


class JavaProducer:
    """An idempotent producer (acks=all) of numbered records in Java: Kafka's VerifiableProducer.

    Its values are NUMBER_OF_THE_PRODUCER.NUMBER, and each key has every KEYSth of them.

    Attributes:
        acknowledged: What it was told, after `finish`.
        errors: What it was refused, after `finish`.
    """

    def __init__(self, number: int, folder: Path, bootstrap_servers: str, topic: str) -> None:
        self.name = f"java-{topic}"
        self.topic = topic
        self.acknowledged: list[Acknowledged] = []
        self.errors: list[str] = []
        config = folder / f"{self.name}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in _PRODUCER.items()))
        self._output = folder / f"{self.name}.out"
        arguments = {
            "--bootstrap-server": bootstrap_servers,
            "--topic": topic,
            "--throughput": str(RATE),
            "--producer.config": str(config),
            "--value-prefix": str(number),
            "--repeating-keys": str(KEYS),
        }
        self._command = _command("VerifiableProducer", *[each for pair in arguments.items() for each in pair])
        self._child: Child | None = None

    def start(self) -> None:
        self._child = Child(self.name, self._command, self._output)

    def keys_acknowledged(self) -> int:
        """Number of keys of which a record was acknowledged."""
        return len({numbered(each.value)[0] for each in self._acknowledged(_events(self._output))})

    def _acknowledged(self, events: Iterable[dict[str, Any]]) -> list[Acknowledged]:
        return [
            Acknowledged(self.topic, event["partition"], event["offset"], str(event["value"]).encode())
            for event in events
            if event["name"] == "producer_send_success"
        ]

    def finish(self, limit_s: float) -> int:
        """Send no more; wait for the acknowledgements; return how many are missing."""
        assert self._child is not None
        if self._child.process.poll() is not None:
            self.errors.append(f"{self.name} ended with {self._child.process.returncode}: {self._child.tail()}")
        # It is in time if it ends at all: a producer of Java that closes waits for what it has sent.
        with contextlib.suppress(Failed):
            self._child.terminate(limit_s)
        self._child.stop()
        events = list(_events(self._output))
        self.acknowledged = self._acknowledged(events)
        refused = [event for event in events if event["name"] == "producer_send_error"]
        self.errors += [
            f"{self.name}: {event['value']} was not delivered: {event['message']}"
            for event in refused
            # Of a producer that has begun to close: it was never sent.
            if "IllegalStateException" not in event["exception"]
        ]
        for event in events:
            if event["name"] == "tool_data":
                return int(event["sent"]) - len(self.acknowledged) - len(refused)
        self.errors.append(f"{self.name} did not end by itself: {self._child.tail()}")
        return 0


def _events(output: Path) -> Iterator[dict[str, Any]]:
    with output.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("{"):
                with contextlib.suppress(json.JSONDecodeError):  # the line at which it was killed
                    yield json.loads(line)


class Copier:
    """An application in Java that copies a topic to another one, exactly once: Kafka's TransactionalMessageCopier.

    It aborts every third transaction, and ends when it has copied what was there at its start. Then another process
    goes on under the same transactional id; some are killed in the middle of a transaction.

    Attributes:
        errors: What no application may see. That a process ends with an error is none: its transaction may have been
            given up, and another process goes on.
    """

    def __init__(self, seed: int, folder: Path, bootstrap_servers: str, source: str, target: str) -> None:
        self.errors: list[str] = []
        self._chance = random.Random(seed)
        self._output = folder / "copier.out"
        arguments = {
            "--broker-list": bootstrap_servers,
            "--input-topic": source,
            "--input-partition": "0",  # without meaning for a member of a group
            "--output-topic": target,
            "--consumer-group": COPIERS,
            "--transactional-id": "copier",
            "--transaction-size": str(RECORDS_MAX),
            "--transaction-timeout": str(TRANSACTION_TIMEOUT_MS),
        }
        flags = ("--group-mode", "--use-group-metadata", "--enable-random-aborts")
        pairs = [each for pair in arguments.items() for each in pair]
        self._command = _command("TransactionalMessageCopier", *pairs, *flags)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copier")

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def finish(self) -> None:
        """Copy what is there now, and return."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        last_s = float("inf")
        while not is_last and time.monotonic() < last_s:
            is_last = self._ending.is_set()
            if is_last:
                last_s = min(last_s, time.monotonic() + _LAST_S)
            is_killed = not is_last and self._chance.random() < _KILLED
            child = Child("copier", self._command, self._output)
            code = self._killed(child, self._chance.uniform(*_KILL_S)) if is_killed else self._ended(child)
            # One that failed has not copied everything.
            is_last = is_last and code == 0
            self._ending.wait(_PAUSE_S)

    @staticmethod
    def _killed(child: Child, after_s: float) -> int:
        """The exit code of a copier that is killed after a time, or has ended before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(after_s)
        child.process.kill()
        return child.process.wait()

    def _ended(self, child: Child) -> int:
        """The exit code of a copier that ends by itself; one that is silent for too long is killed."""
        size, heard_s = -1, time.monotonic()
        while (code := child.process.poll()) is None:
            if self._output.stat().st_size != size:
                size, heard_s = self._output.stat().st_size, time.monotonic()
            elif time.monotonic() - heard_s > _SILENT_S:
                self.errors.append(f"a copier was silent for {_SILENT_S} s: {child.tail()}")
                return self._killed(child, 0)
            time.sleep(0.1)
        return code
