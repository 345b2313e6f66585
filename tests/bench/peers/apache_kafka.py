"""Apache Kafka beside us: its jars by the Ivy inside the pyspark wheel, one KRaft broker, its own load tools."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.processes import Child, Failed, free_port
from tests.jars import FetchError, fetched, java

VERSION = "4.1.1"
SCALA = "2.13"
# What Kafka's own start script passes to a broker.
BROKER_JVM = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
CLIENT_JVM = ["-Xmx512m", "-Xms512m", "-XX:+UseG1GC", "-Duser.language=en"]


def jars() -> Path:
    """The folder of Kafka's jars, fetched once."""
    try:
        return fetched(
            f"kafka-{VERSION}",
            [("org.apache.kafka", f"kafka_{SCALA}", VERSION), ("org.apache.kafka", "kafka-tools", VERSION)],
        )
    except FetchError as error:
        raise Failed(str(error)) from None


def tool(name: str, *arguments: str) -> list[str]:
    """The command line of one of Kafka's load tools."""
    return [java(), *CLIENT_JVM, "-cp", f"{jars()}/*", f"org.apache.kafka.tools.{name}", *arguments]


def start(
    folder: Path,
    *,
    more: Mapping[str, str] | None = None,
    listeners: Sequence[str] = (),
    jvm: Sequence[str] = BROKER_JVM,
) -> tuple[Child, int]:
    """One broker that is its own controller, with the settings Kafka ships; (process, port) once it answers.

    `more` are properties that go before these settings; `listeners` are further ones, as NAME://HOST:PORT.
    """
    folder.mkdir(parents=True)
    port, controller_port = free_port(), free_port()
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": ",".join(
            [f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller_port}", *listeners]
        ),
        "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{port}", *listeners]),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        **(more or {}),
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    base = [java(), *jvm, "-cp", f"{jars()}/*"]
    # The id's first letter is fixed: a leading dash would read as an option.
    cluster_id = "H" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
    formatted = subprocess.run(
        [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    if formatted.returncode:
        raise Failed(f"Kafka's storage could not be formatted:\n{formatted.stdout}{formatted.stderr}")
    child = Child("Apache Kafka", [*base, "kafka.Kafka", str(config)], folder / "broker.log")
    try:
        child.await_kafka(port)
    except BaseException:
        child.stop()
        raise
    return child, port
