"""The two load drivers: Kafka's own Java tools, and librdkafka from Python. Same messages, acks, batches and linger."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Protocol

from tests.bench import apache_kafka
from tests.bench.load_client import BATCH_BYTES, LINGER_MS, MESSAGE_BYTES
from tests.bench.processes import Failed

LIMIT_S = 900
PRODUCED = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
CONSUMED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:.*", re.MULTILINE)


class Driver(Protocol):
    """Produces to and consumes from a topic and returns messages per second, by the client's own clock."""

    name: str

    def produce(self, bootstrap: str, topic: str, messages: int) -> float: ...

    def consume(self, bootstrap: str, topic: str, messages: int) -> float: ...


class JavaDriver:
    """ProducerPerformance and ConsumerPerformance."""

    name = "java"

    def produce(self, bootstrap: str, topic: str, messages: int) -> float:
        """Up to the last acknowledgement; the JVM's start is not in it."""
        properties = (
            f"bootstrap.servers={bootstrap}",
            "acks=1",
            f"batch.size={BATCH_BYTES}",
            f"linger.ms={LINGER_MS}",
            "enable.idempotence=false",
        )
        sizes = ("--num-records", str(messages), "--record-size", str(MESSAGE_BYTES), "--throughput", "-1")
        out = run(apache_kafka.tool("ProducerPerformance", "--topic", topic, *sizes, "--producer-props", *properties))
        found = PRODUCED.findall(out)
        if not found or int(found[-1][0]) != messages:
            raise Failed(f"ProducerPerformance did not report {messages} records:\n{out[-2000:]}")
        return float(found[-1][1])

    def consume(self, bootstrap: str, topic: str, messages: int) -> float:
        """Fetching only: without the time to join the group."""
        arguments = ("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(messages))
        out = run(apache_kafka.tool("ConsumerPerformance", *arguments, "--timeout", "60000", "--hide-header"))
        found = CONSUMED.findall(out)
        columns = found[-1].split(", ") if found else []
        if len(columns) < 10 or int(columns[4]) < messages:
            raise Failed(f"ConsumerPerformance did not report {messages} records:\n{out[-2000:]}")
        return float(columns[9])


class PythonDriver:
    """confluent-kafka, that is librdkafka."""

    name = "python"

    def produce(self, bootstrap: str, topic: str, messages: int) -> float:
        """Up to the last acknowledgement."""
        return messages / client("produce", bootstrap, topic, messages)["seconds"]

    def consume(self, bootstrap: str, topic: str, messages: int) -> float:
        """From the assignment to the last message."""
        return messages / client("consume", bootstrap, topic, messages)["seconds"]


DRIVERS: dict[str, Driver] = {"java": JavaDriver(), "python": PythonDriver()}


def client(what: str, bootstrap: str, topic: str, messages: int = 0) -> dict[str, float]:
    """One run of `load_client`."""
    out = run([sys.executable, "-m", "tests.bench.load_client", what, bootstrap, topic, str(messages)])
    answer: dict[str, float] = json.loads(out.splitlines()[-1])
    return answer


def run(command: list[str]) -> str:
    """The output of a client that ended well."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {LIMIT_S} s: {' '.join(command[-8:])}") from None
    if done.returncode:
        raise Failed(f"exit {done.returncode}: {' '.join(command[-8:])}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout
