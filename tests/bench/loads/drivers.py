"""The two load drivers: Kafka's own Java tools, and librdkafka from Python. Same messages, acks, batches and linger."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any, Protocol

from tests.bench.loads.load import LINGER_MS, Load
from tests.bench.peers import apache_kafka
from tests.bench.processes import Failed

LIMIT_S = 900
PRODUCED = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
CONSUMED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:.*", re.MULTILINE)
PYTHON = [sys.executable, "-m"]


class Driver(Protocol):
    """Produces to and consumes from a topic and returns messages per second, by the client's own clock."""

    name: str

    def produce(self, bootstrap: str, topic: str, load: Load) -> float: ...

    def consume(self, bootstrap: str, topic: str, load: Load) -> float: ...


class JavaDriver:
    """ProducerPerformance and ConsumerPerformance."""

    name = "java"

    def produce(self, bootstrap: str, topic: str, load: Load) -> float:
        """Up to the last acknowledgement; the JVM's start is not in it."""
        properties = (
            f"bootstrap.servers={bootstrap}",
            f"acks={load.acks}",
            f"batch.size={load.batch_bytes}",
            f"linger.ms={LINGER_MS}",
            f"compression.type={load.codec}",
            "enable.idempotence=false",
        )
        sizes = ("--num-records", str(load.messages), "--record-size", str(load.message_bytes), "--throughput", "-1")
        out = run(apache_kafka.tool("ProducerPerformance", "--topic", topic, *sizes, "--producer-props", *properties))
        found = PRODUCED.findall(out)
        if not found or int(found[-1][0]) != load.messages:
            raise Failed(f"ProducerPerformance did not report {load.messages} records:\n{out[-2000:]}")
        return float(found[-1][1])

    def consume(self, bootstrap: str, topic: str, load: Load) -> float:
        """Fetching only: without the time to join the group."""
        arguments = ("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(load.messages))
        out = run(apache_kafka.tool("ConsumerPerformance", *arguments, "--timeout", "60000", "--hide-header"))
        found = CONSUMED.findall(out)
        columns = found[-1].split(", ") if found else []
        if len(columns) < 10 or int(columns[4]) < load.messages:
            raise Failed(f"ConsumerPerformance did not report {load.messages} records:\n{out[-2000:]}")
        return float(columns[9])


class PythonDriver:
    """confluent-kafka, that is librdkafka."""

    name = "python"

    def produce(self, bootstrap: str, topic: str, load: Load) -> float:
        """Up to the last acknowledgement."""
        return load.messages / float(client("produce", bootstrap, topic, load)["seconds"])

    def consume(self, bootstrap: str, topic: str, load: Load) -> float:
        """From the assignment to the last message."""
        return load.messages / float(client("consume", bootstrap, topic, load)["seconds"])


DRIVERS: dict[str, Driver] = {"java": JavaDriver(), "python": PythonDriver()}


def client_command(what: str, bootstrap: str, topic: str, load: Load, *more: str) -> list[str]:
    """The command line of one run of `load_client`."""
    return [*PYTHON, "tests.bench.loads.load_client", what, bootstrap, topic, load.to_json(), *more]


def client(what: str, bootstrap: str, topic: str, load: Load, *more: str) -> dict[str, Any]:
    """One run of `load_client`."""
    out = run(client_command(what, bootstrap, topic, load, *more))
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def run(command: list[str], limit_s: float = LIMIT_S) -> str:
    """The output of a client that ended well."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {limit_s} s: {' '.join(command[-8:])}") from None
    if done.returncode:
        raise Failed(f"exit {done.returncode}: {' '.join(command[-8:])}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout
