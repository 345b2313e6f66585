"""`headwater up --brokers 3`: a cluster from start to stop, a broker that is killed, and what its commands say."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

pytestmark = pytest.mark.slow

WAIT_S = 120
READY = re.compile(r"Headwater is ready: kafka (\S+), http (\S+), metrics (\S+)\n")


def headwater(*arguments: str, ends: int = 0) -> str:
    """Standard output of a command that ends with this exit code."""
    command = [sys.executable, "-P", "-m", "headwater", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == ends, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


class Up:
    """A running `headwater up --brokers 3`."""

    def __init__(self, folder: Path, *options: str, **settings: str) -> None:
        self.folder = folder
        self.errors = folder.with_suffix(".errors")
        ports = ["--kafka-port", "0", "--http-port", "0", "--metrics-port", "0"]
        command = [sys.executable, "-P", "-m", "headwater", "up", "--brokers", "3", "--data", str(folder)]
        command += [*ports, *options]
        environment = os.environ | {f"HEADWATER_{name}": value for name, value in settings.items()}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert self.process.stdout is not None
        found = READY.fullmatch(self.process.stdout.readline())
        if found is None:
            self.process.terminate()
            self.process.wait(WAIT_S)
            raise AssertionError(self.errors.read_text())
        self.servers, self.metrics = found[1], found[3]

    def status(self, servers: str | None = None) -> dict[str, Any]:
        output = headwater("cluster", "status", "-o", "json", "-b", servers or self.servers, "--data", str(self.folder))
        (answer,) = json.loads(output)
        assert isinstance(answer, dict)
        return answer

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data")
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.2)


def lags_by_broker(up: Up) -> list[list[float]]:
    """The lags of the group `readers` by partition, as each broker's metrics tell them."""
    line = re.compile(r'^kafka_consumergroup_lag\{.*consumergroup="readers".*\} (\S+)$', re.MULTILINE)
    scraped = []
    for url in up.metrics.split(","):
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            scraped.append(answer.read().decode())
    return [[float(lag) for lag in line.findall(text)] for text in scraped]


def replicas_of_state(servers: str) -> dict[str, set[int]]:
    """The replication factors of the topics of groups and of transactions, which the first of each creates."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "first", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("flights", 0, 0)], asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "first", "log_level": 0})
    producer.init_transactions(WAIT_S)
    topics = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=WAIT_S).topics
    return {
        name: {len(partition.replicas) for partition in topic.partitions.values()}
        for name, topic in topics.items()
        if name.startswith("__")
    }


def own_address() -> str:
    """An address of this machine other than loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.7", 9))  # sends nothing; the kernel chooses the address of the way out
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def test_the_groups_of_a_killed_broker_have_their_offsets_at_others_and_status_names_process_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADWATER_RESTART_BACKOFF_MS", "HEADWATER_RESTART_BACKOFF_MAX_MS"):
        monkeypatch.setenv(name, "600000")  # the killed broker stays away
    up = Up(tmp_path / "data", "--host", own_address())
    try:
        headwater("topic", "create", "flights", "-b", up.servers)
        # Enough to have one whose coordinator is killed.
        groups = [f"readers-{number}" for number in range(9)]
        for number, group in enumerate(groups):
            consumer = Consumer({"bootstrap.servers": up.servers, "group.id": group, "log_level": 0})
            consumer.commit(offsets=[TopicPartition("flights", 0, number)], asynchronous=False)
            consumer.close()
        before = up.status()
        assert None not in {broker["pid"] for broker in before["brokers"]}
        controller = next(broker for broker in before["brokers"] if broker["controller"])
        victim = next(broker for broker in before["brokers"] if not broker["controller"])
        os.kill(victim["pid"], signal.SIGKILL)
        servers, gone = f"{controller['host']}:{controller['port']}", victim["broker"]

        eventually(lambda: up.status(servers)["absent_brokers"] == [gone])
        eventually(lambda: up.status(servers)["offline"] == [])
        problems = headwater("cluster", "health", "-b", servers, ends=1)
        assert f"brokers that have replicas and are away: {gone}" in problems
        for number, group in enumerate(groups):
            consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
            [committed] = consumer.committed([TopicPartition("flights", 0)], WAIT_S)
            consumer.close()
            assert committed.offset == number
    finally:
        up.stop()


def test_a_killed_broker_costs_nothing_and_comes_back(up: Up) -> None:
    headwater("topic", "create", "flights", "-p", "3", "-b", up.servers)
    before = up.status()
    brokers = before["brokers"]
    assert [broker["replicas"] for broker in brokers] == [3, 3, 3]
    assert len({broker["pid"] for broker in brokers}) == len({broker["port"] for broker in brokers}) == 3
    assert (before["under_replicated"], before["offline"], before["product_topics_with_few_replicas"]) == ([], [], [])
    assert "healthy" in headwater("cluster", "health", "-b", up.servers)

    assert replicas_of_state(up.servers) == {"__consumer_offsets": {3}, "__transaction_state": {3}}

    # Without idempotence, a batch whose answer the kill took away is there twice.
    producer = Producer({"bootstrap.servers": up.servers, "enable.idempotence": True, "log_level": 0})
    victim = next(broker for broker in brokers if broker["broker"] == before["controller"])
    failures: list[object] = []
    for number in range(300):
        if number == 100:
            os.kill(victim["pid"], signal.SIGKILL)
        producer.produce(
            "flights", b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        producer.poll(0.002)
    assert producer.flush(WAIT_S) == 0
    assert failures == []

    eventually(lambda: len(up.status()["brokers"]) == 3 and not up.status()["under_replicated"])
    after = up.status()
    [again] = [broker for broker in after["brokers"] if broker["broker"] == victim["broker"]]
    assert (again["port"], again["pid"] != victim["pid"]) == (victim["port"], True)
    values = headwater("consume", "flights", "-o", "start", "-e", "-b", up.servers).split()
    assert sorted(map(int, values)) == list(range(300))

    consumer = Consumer({"bootstrap.servers": up.servers, "group.id": "readers", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("flights", partition, 0) for partition in range(3)], asynchronous=False)
    consumer.close()
    eventually(lambda: [sum(lags) for lags in lags_by_broker(up) if lags] == [300])
    [lags] = [lags for lags in lags_by_broker(up) if lags]
    assert len(lags) == 3, "the coordinator's broker has asked the leaders of the others"

    folder = str(up.folder)
    up.stop()
    assert not (up.folder / "processes.json").exists()
    refused = headwater("up", "--data", folder, ends=1)
    assert f"{folder} is the folder of 3 brokers: start it with --brokers 3" in refused
    assert "is the folder of 3 brokers" in headwater("up", "--brokers", "2", "--data", folder, ends=1)
    serves_with_a_damaged_folder(up.folder, range(300))


def serves_with_a_damaged_folder(folder: Path, expected: range) -> None:
    """Damage the folder of one broker: the others serve, and it joins them when the damage is mended."""
    properties = folder / "broker-2" / "meta.properties"
    sound = properties.read_text()
    properties.write_text(sound.replace("node.id=2", "node.id=1"))
    up = Up(folder, RESTART_BACKOFF_MAX_MS="500")
    try:
        assert len(up.servers.split(",")) == 2
        values = headwater("consume", "flights", "-o", "start", "-e", "-b", up.servers).split()
        assert sorted(map(int, values)) == list(expected)
        # The state of a coordinator does not move to another broker.
        assert {each["topic"] for each in up.status()["offline"]} <= {"__consumer_offsets"}
        properties.write_text(sound)
        eventually(lambda: "headwater: broker 2 is running\n" in up.errors.read_text())
        eventually(lambda: not up.status()["under_replicated"])
        # The brokers write to the same file, and may warn of connections to broker 2 there.
        lines = [line for line in up.errors.read_text().splitlines() if line.startswith("headwater: broker 2 ")]
        assert len(lines) == 2
        reason = f"log folder {folder / 'broker-2'}: it belongs to node 1, but node.id is 2"
        assert lines[0].startswith(f"headwater: broker 2 did not start: broker: {reason}")
        assert lines[0].endswith("; it is tried again after a pause of at most 500 ms")
    finally:
        up.stop()


def test_a_broker_that_cannot_start_in_a_new_folder_ends_the_command_with_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ports = ["--data", str(folder), "--kafka-port", "0", "--http-port", "0"]
    (folder / "broker-2").mkdir(parents=True)
    # Damaged, because a sound one of another cluster is refused for one of two reasons: brokers 1 and 3 begin theirs.
    (folder / "broker-2" / "meta.properties").write_text("damaged")
    for _ in range(2):  # a start that failed does not make the folder one whose other brokers serve
        output = headwater("up", "--brokers", "3", *ports, ends=1)
        # The other brokers write to the same file, and may warn there that their start is cut short.
        [line] = [line for line in output.splitlines() if line.startswith("headwater: ")]
        assert f"log folder {folder / 'broker-2'}: meta.properties is damaged" in line
        assert not (folder / "processes.json").exists()
