"""Our side of the comparison: one broker, or the whole of `headwater up`, started as a user starts them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench.processes import Child, Failed, free_port, free_ports

HEADWATER = [str(Path(sys.executable).with_name("headwater"))]
READY_S = 60
#: As in the `server.properties` that Kafka is shipped with, and so in its broker here: a consumer's first wait is not
#: for its JVM to compile in.
PROPERTIES = {"group.initial.rebalance.delay.ms": "0"}


def environment() -> dict[str, str]:
    """Ours, without colours and with nothing from the current folder on Python's path."""
    ours = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    # Where this is set, every start compiles every module anew; what pip installs has its bytecode beside it.
    ours.pop("PYTHONDONTWRITEBYTECODE", None)
    return ours


def start_broker(folder: Path, properties: Mapping[str, str] | None = None) -> tuple[Child, int]:
    """(process, port) of `headwater broker`, with its defaults but for ours and `properties`, once it answers."""
    folder.mkdir(parents=True)
    port = free_port()
    command = [*HEADWATER, "broker", "--data", str(folder / "data"), "--kafka-port", str(port)]
    for name, value in (PROPERTIES | dict(properties or {})).items():
        command += ["--set", f"{name}={value}"]
    child = Child("Headwater", command, folder / "broker.log", environment())
    try:
        child.await_kafka(port)
    except BaseException:
        child.stop()
        raise
    return child, port


def start_node(folder: Path) -> tuple[Child, int, int]:
    """(process, Kafka port, HTTP port) of `headwater up`; it may not answer yet."""
    folder.mkdir(parents=True)
    kafka_port, http_port = free_port(), free_port()
    ports = ["--kafka-port", str(kafka_port), "--http-port", str(http_port)]
    command = [*HEADWATER, "up", "--data", str(folder / "data"), *ports]
    return Child("headwater up", command, folder / "up.log", environment()), kafka_port, http_port


def start_cluster(folder: Path, brokers: int) -> tuple[Child, str]:
    """(process, addresses of the brokers) of `headwater up --brokers`; it may not answer yet."""
    folder.mkdir(parents=True)
    port = free_ports(brokers)
    command = [*HEADWATER, "up", "--brokers", str(brokers), "--data", str(folder / "data")]
    command += ["--kafka-port", str(port), "--http-port", "0", "--metrics-port", "0"]
    child = Child("headwater up", command, folder / "up.log", environment())
    return child, ",".join(f"127.0.0.1:{port + number}" for number in range(brokers))


def await_ready(node: Child) -> None:
    """Wait until `headwater up` says that it is ready."""
    deadline_s = time.monotonic() + READY_S
    while "Headwater is ready" not in node.tail():
        node.check_running()
        if time.monotonic() > deadline_s:
            raise Failed(f"headwater up is not ready after {READY_S} s:\n{node.tail()}")
        time.sleep(0.01)
