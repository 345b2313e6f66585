"""`headwater cluster migrate`: clients of a node go on with the cluster that it becomes, at the address they know."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.bench.processes import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_S = 120
#: A command with a Spark of its own.
SPARK_S = 280
READY = re.compile(r"Headwater is ready: kafka (\S+), http (\S+), metrics (\S+)\n")
PARTITIONS = 3
#: The two protocols of groups: classic, and that of KIP-848.
PROTOCOLS = ("classic", "consumer")
PIPELINE = """\
pipeline: copies
topics: {orders: {value: string}, copied: {value: string}}
stages:
  - name: copy
    from: {topic: orders}
    to: [{topic: copied}]
"""


def headwater(*arguments: str, ends: int = 0, given: str = "", **settings: str) -> str:
    """Output of a command that ends with this exit code."""
    command = [sys.executable, "-P", "-m", "headwater", *arguments]
    environment = os.environ | {f"HEADWATER_{name}": value for name, value in settings.items()}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SPARK_S if "pipeline" in arguments else WAIT_S,
        check=False,
        input=given,
        env=environment,
    )
    assert done.returncode == ends, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


class Up:
    """A running `headwater up`, of one node or of a cluster, always on the same ports."""

    def __init__(self, folder: Path, port: int, properties: Path, *options: str) -> None:
        self.errors = folder.with_suffix(".errors")
        ports = ["--kafka-port", str(port), "--http-port", "0", "--metrics-port", "0"]
        command = [sys.executable, "-P", "-m", "headwater", "up", "--data", str(folder), *ports, *options]
        environment = os.environ | {
            "HEADWATER_BROKER_CONFIG": str(properties),
            "HEADWATER_RESTART_BACKOFF_MS": "600000",  # a killed broker stays away
            "HEADWATER_RESTART_BACKOFF_MAX_MS": "600000",
        }
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert self.process.stdout is not None
        found = READY.fullmatch(self.process.stdout.readline())
        if found is None:
            self.process.terminate()
            self.process.wait(WAIT_S)
            raise AssertionError(self.errors.read_text())
        self.http = found[2]

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


class Site:
    """A folder, its address, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self.port = free_ports(3)
        self.servers = f"localhost:{self.port}"
        self.properties = folder / "broker.yaml"
        self.properties.write_text(
            "authorizer.class.name: org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "allow.everyone.if.no.acl.found: true\n"
            "super.users: User:ANONYMOUS\n"
        )
        self.running: Up | None = None

    def up(self, *options: str) -> Up:
        self.running = Up(self.folder, self.port, self.properties, *options)
        return self.running

    def down(self) -> None:
        assert self.running is not None
        self.running.stop()
        self.running = None

    def run(self, *arguments: str, ends: int = 0, given: str = "") -> str:
        return headwater(
            *arguments, ends=ends, given=given, BOOTSTRAP_SERVERS=self.servers, BROKER_CONFIG=str(self.properties)
        )

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run(*arguments, "-o", "json"))
        return rows

    def migrate(self, *options: str, ends: int = 0) -> str:
        return self.run("cluster", "migrate", "--data", str(self.folder), *options, ends=ends)

    def client(self, **properties: str | int | float | bool) -> dict[str, str | int | float | bool]:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        return {"bootstrap.servers": self.servers, "log_level": 0, **given}

    def topic_ids(self) -> dict[str, str]:
        admin = AdminClient(self.client())
        described = admin.describe_topics(TopicCollection(["flights", "latest"]), request_timeout=WAIT_S)
        return {name: str(future.result(WAIT_S).topic_id) for name, future in described.items()}

    def metadata(self) -> dict[str, object]:
        """What the cluster knows besides the records."""
        (latest,) = self.rows("topic", "describe", "latest")
        own = {each["name"]: each["value"] for each in latest["configs"] if "TOPIC" in each["source"].upper()}
        assert own == {"cleanup.policy": "compact", "retention.ms": "12345678"}
        return {
            "topic ids": self.topic_ids(),
            "acls": self.rows("acls", "list"),
            "quotas": self.rows("quotas", "list"),
            "users": self.rows("user", "list"),
            "cluster": self.rows("cluster", "status")[0]["cluster_id"],
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        if site.running is not None:
            site.down()


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.2)


def read(site: Site, topic: str, count: int) -> list[bytes]:
    """The committed values of a topic, at least so many."""
    consumer = Consumer(site.client(group_id="all", enable_auto_commit=False, isolation_level="read_committed"))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    values: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    ends = {partition: end_offset(consumer, TopicPartition(topic, partition)) for partition in range(PARTITIONS)}
    # A partition without records has a negative position.
    while any(max(each.offset, 0) < ends[each.partition] for each in consumer.position(consumer.assignment())):
        assert time.monotonic() < deadline_s, f"{len(values)} of {count}"
        for message in consumer.consume(500, 0.5):
            value = message.value()
            assert message.error() is None
            assert isinstance(value, bytes)
            values.append(value)
    consumer.close()
    return values


def end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """The end of a partition, as soon as its leader, perhaps a new one, knows it (KIP-207)."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, WAIT_S)[1])
        except KafkaException as error:
            # librdkafka also fails if it learns meanwhile that the broker that it asks is no longer there.
            assert error.args[0].code() in (KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._DESTROY_BROKER)
            assert time.monotonic() < deadline_s, "no leader knows the end"
            time.sleep(0.2)


def reader(site: Site, protocol: str) -> Consumer:
    """A consumer of the flights in a group of its own."""
    consumer = Consumer(
        site.client(group_id=protocol, auto_offset_reset="earliest", isolation_level="read_committed")
        | {"enable.auto.commit": False, "group.protocol": protocol}
    )
    consumer.subscribe(["flights"])
    return consumer


def next_value(consumer: Consumer) -> bytes:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            return value
        assert time.monotonic() < deadline_s, "no message"


def send(producer: Producer, topic: str, values: range, **options: Any) -> None:
    """Produce, and wait until all is acknowledged."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for number in values:
        producer.produce(topic, b"%d" % number, on_delivery=delivered, **options)
    assert producer.flush(WAIT_S) == 0
    assert failures == []


def register(url: str, schema: str) -> int:
    request = urllib.request.Request(
        f"{url}/subjects/flights-value/versions",
        json.dumps({"schema": schema}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return int(json.load(answer)["id"])


def schema_of(url: str, schema_id: int) -> str:
    with urllib.request.urlopen(f"{url}/schemas/ids/{schema_id}", timeout=WAIT_S) as answer:
        return str(json.load(answer)["schema"])


def copy_orders(site: Site, values: range, batch: int) -> None:
    """Produce orders, and copy them by a run of the pipeline, which finds its checkpoint where it was."""
    send(Producer(site.client()), "orders", values)
    file = site.folder.with_name("copies.yaml")
    file.write_text(PIPELINE)
    state = str(site.folder / "state")
    found = site.run("pipeline", "run", str(file), "-b", site.servers, "--state", state, "--once", "--no-status")
    assert re.findall(r"copy: batch (\d+), ([\d,]+) row", found) == [(str(batch), str(len(values)))], found
    # No row is doubled or missing.
    assert sorted(map(int, read(site, "copied", values.stop))) == list(range(values.stop))


def kill_while_copying(site: Site) -> None:
    """Start a migration, and kill it while its ZooKeeper runs."""
    command = [sys.executable, "-P", "-m", "headwater", "cluster", "migrate", "--data", str(site.folder), "-y"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("copying ")
    process.send_signal(signal.SIGKILL)
    process.wait(WAIT_S)
    process.stderr.close()


def test_clients_of_a_node_go_on_with_the_cluster_that_it_becomes(site: Site) -> None:
    node = site.up()
    site.run("topic", "create", "flights", "-p", str(PARTITIONS))
    site.run("topic", "create", "latest", "-c", "cleanup.policy=compact", "-c", "retention.ms=12345678")
    site.run("acls", "add", "--principal", "User:alice", "--producer", "--topic", "flights")
    site.run("quotas", "set", "--client-id", "greedy", "producer_byte_rate=1000000")
    site.run("user", "add", "alice", given="a secret of alice\n")
    schema = '{"type":"record","name":"Flight","fields":[{"name":"number","type":"int"}]}'
    schema_id = register(node.http, schema)

    for topic in ("orders", "copied"):
        site.run("topic", "create", topic, "-p", str(PARTITIONS))
    copy_orders(site, range(30), batch=0)

    idempotent = Producer(site.client(enable_idempotence=True))
    send(idempotent, "flights", range(100))
    for number in range(3):
        send(idempotent, "latest", range(number, number + 1), key=b"k")
    transactional = Producer(site.client(transactional_id="mover", transaction_timeout_ms=600_000))
    transactional.init_transactions(WAIT_S)
    transactional.begin_transaction()
    send(transactional, "flights", range(100, 120))
    transactional.commit_transaction(WAIT_S)
    transactional.begin_transaction()
    send(transactional, "flights", range(5000, 5020))
    transactional.abort_transaction(WAIT_S)
    transactional.begin_transaction()
    send(transactional, "flights", range(120, 130))  # left open

    readers = {each: reader(site, each) for each in PROTOCOLS}
    seen = {each: [next_value(consumer) for _ in range(50)] for each, consumer in readers.items()}
    for consumer in readers.values():
        consumer.commit(asynchronous=False)
    before = site.metadata()
    assert "in use: stop the node or the cluster first" in site.migrate("-y", ends=1)
    site.down()

    kill_while_copying(site)
    assert "its migration to a cluster is unfinished" in site.run("up", "--data", str(site.folder), ends=1)
    assert "Continues the migration" in site.migrate()
    cluster = site.up("--brokers", "3")

    # The same clients, which know one address, at which the broker with their data is.
    assert site.metadata() == before
    for each, consumer in readers.items():
        seen[each] += [next_value(consumer) for _ in range(70)]
        consumer.commit(asynchronous=False)
    send(transactional, "flights", range(130, 140))
    transactional.commit_transaction(WAIT_S)
    send(idempotent, "flights", range(140, 200))
    for each, consumer in readers.items():
        seen[each] += [next_value(consumer) for _ in range(80)]
        assert sorted(map(int, seen[each])) == list(range(200)), each
        consumer.commit(asynchronous=False)
        consumer.close()
    copy_orders(site, range(30, 60), batch=1)
    assert sorted(map(int, read(site, "flights", 200))) == list(range(200))
    assert schema_of(cluster.http, schema_id) == schema
    assert register(cluster.http, schema) == schema_id
    status = site.rows("cluster", "status")[0]
    first = status["brokers"][0]
    assert (first["broker"], first["port"], first["leaders"]) == (1, site.port, status["partitions"])
    survives_a_broker(site)
    site.down()
    assert "the cluster has been started" in site.migrate("--back", ends=1)


def survives_a_broker(site: Site) -> None:
    """Kill a broker without the node's data: a topic of the cluster has other replicas."""
    site.run("topic", "create", "new", "-p", str(PARTITIONS))
    producer = Producer(site.client(acks="all", enable_idempotence=True))
    send(producer, "new", range(100))
    (status,) = site.rows("cluster", "status", "--data", str(site.folder))
    victim = status["brokers"][2]
    assert victim["replicas"] == PARTITIONS
    os.kill(victim["pid"], signal.SIGKILL)
    send(producer, "new", range(100, 200))
    assert sorted(map(int, read(site, "new", 200))) == list(range(200))


def test_a_killed_node_becomes_a_cluster_after_a_change_of_mind(site: Site) -> None:
    node = site.up()
    site.run("topic", "create", "flights", "-p", str(PARTITIONS))
    send(Producer(site.client()), "flights", range(50))
    processes = json.loads((site.folder / "processes.json").read_text())["processes"]
    node.process.kill()
    node.process.wait(WAIT_S)
    assert node.process.stdout is not None
    node.process.stdout.close()
    site.running = None
    for each in processes.values():
        eventually(lambda pid=each["pid"]: not is_alive(pid))  # type: ignore[misc]

    kill_while_copying(site)
    site.migrate("--back")
    site.migrate("-y")
    site.migrate("--back")
    site.up()
    send(Producer(site.client()), "flights", range(50, 100))
    site.down()
    site.migrate("-y")
    site.up("--brokers", "3")
    send(Producer(site.client()), "flights", range(100, 150))
    assert sorted(map(int, read(site, "flights", 150))) == list(range(150))


def is_alive(pid: int) -> bool:
    """Whether a process of an earlier supervisor still runs: it ends by itself."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
