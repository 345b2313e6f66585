"""Three brokers of each side at the same time, as a user starts them; ZooKeeper counts as one of ours."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headwater.logtier.client.replicas import AssignedPartition, ReplicaAdmin
from tests.bench.loads.load import Load
from tests.bench.peers import apache_kafka, headwater_processes
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.processes import Child, Failed, cpu_seconds, free_port, resident_mib
from tests.jars import java
from tests.zookeeper import ServerOptions, running_zookeeper

BROKERS = 3
START_S = 120
POLL_S = 0.05
#: broker.session.timeout.ms of Kafka, by default.
SESSION_MS = 9_000
REPLICATION = {
    "default.replication.factor": BROKERS,
    "min.insync.replicas": BROKERS - 1,
    "offsets.topic.replication.factor": BROKERS,
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.min.isr": BROKERS - 1,
}
#: How titles of tables name what `replicated` gives.
REPLICATED = f"acks=all, {BROKERS} replicas, min.insync.replicas={BROKERS - 1}"


def replicated(load: Load) -> Load:
    """With a replica on each broker, and acknowledged by all that are in sync, of which there are two or more."""
    return replace(load, acks="all", replicas=BROKERS, min_isr=BROKERS - 1)


@dataclass(frozen=True)
class Cluster:
    """Three brokers: their processes, their addresses, and the folder with all their data."""

    name: str
    children: Sequence[Child]
    bootstrap: str
    folder: Path

    def cpu_seconds(self) -> float:
        """User and system CPU time so far of all its processes."""
        return sum(cpu_seconds(child.pid) for child in self.children)

    def resident_mib(self) -> list[float]:
        """Resident memory of each of its processes."""
        return [resident_mib(child.pid) for child in self.children]


@contextlib.contextmanager
def both(folder: Path) -> Iterator[list[Cluster]]:
    """Both clusters, each with all its brokers registered."""
    with contextlib.ExitStack() as ending:
        clusters = [_kafka(folder / "kafka", ending), _headwater(folder / "headwater", ending)]
        for cluster in clusters:
            _await_all(cluster)
        yield clusters


@dataclass(frozen=True)
class SeparateBrokers:
    """A cluster whose brokers are stopped and started one by one.

    Attributes:
        brokers: Their processes by broker id.
        ports: Their ports by broker id.
        zookeeper: The address of ours.
    """

    name: str
    brokers: Mapping[int, Child]
    ports: Mapping[int, int]
    zookeeper: str = ""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def kill(self, broker_id: int) -> None:
        """SIGKILL."""
        self.brokers[broker_id].process.kill()
        self.brokers[broker_id].process.wait()

    def start_again(self, broker_id: int) -> None:
        """Start a broker that has ended; it serves requests then."""
        self.brokers[broker_id].restart()
        self.brokers[broker_id].await_kafka(self.ports[broker_id])


@contextlib.contextmanager
def both_separate(folder: Path) -> Iterator[list[SeparateBrokers]]:
    """Both clusters, each broker a process that nobody starts again; sessions of SESSION_MS on both sides."""
    with contextlib.ExitStack() as ending:
        kafka = _kafka(folder / "kafka", ending)
        ports = [int(address.rpartition(":")[2]) for address in kafka.bootstrap.split(",")]
        ids = range(1, BROKERS + 1)
        theirs = SeparateBrokers(KAFKA, dict(zip(ids, kafka.children, strict=True)), dict(zip(ids, ports, strict=True)))
        ours = ending.enter_context(separate_headwater(folder / "headwater"))
        _await_all(kafka)
        yield [theirs, ours]


@contextlib.contextmanager
def separate_headwater(folder: Path, zookeeper_heap: str = "512m") -> Iterator[SeparateBrokers]:
    """Three brokers and a ZooKeeper, all registered."""
    with contextlib.ExitStack() as ending:
        zookeeper = ending.enter_context(running_zookeeper(folder / "zookeeper", ServerOptions(heap=zookeeper_heap)))
        properties = {
            "zookeeper.connect": f"{zookeeper.address}/bench",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            **{name: str(value) for name, value in REPLICATION.items()},
        }
        brokers, ports = {}, {}
        for number in range(1, BROKERS + 1):
            place = folder / f"broker-{number}"
            child, port = headwater_processes.start_broker(place, properties | {"node.id": str(number)})
            ending.callback(child.stop)
            brokers[number], ports[number] = child, port
        cluster = SeparateBrokers(HEADWATER, brokers, ports, zookeeper.address)
        _await_all(Cluster(HEADWATER, list(brokers.values()), cluster.bootstrap, folder))
        yield cluster


def _kafka(folder: Path, ending: contextlib.ExitStack) -> Cluster:
    """Three nodes that are brokers and controllers."""
    folder.mkdir(parents=True)
    ports = [(free_port(), free_port()) for _ in range(BROKERS)]
    voters = ",".join(f"{number}@127.0.0.1:{ports[number - 1][1]}" for number in range(1, BROKERS + 1))
    cluster_id = "H" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
    base = [java(), *apache_kafka.BROKER_JVM, "-cp", f"{apache_kafka.jars()}/*"]
    children = []
    for number, (port, controller_port) in enumerate(ports, 1):
        properties = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / f"data-{number}",
            "num.network.threads": 3,
            "num.io.threads": 8,
            "socket.send.buffer.bytes": 102_400,
            "socket.receive.buffer.bytes": 102_400,
            "group.initial.rebalance.delay.ms": 0,
            **REPLICATION,
        }
        config = folder / f"server-{number}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        formatting = [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        done = subprocess.run(formatting, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}")
        child = Child(f"Apache Kafka {number}", [*base, "kafka.Kafka", str(config)], folder / f"broker-{number}.log")
        ending.callback(child.stop)
        children.append(child)
    return Cluster(KAFKA, children, ",".join(f"127.0.0.1:{port}" for port, _ in ports), folder)


def _headwater(folder: Path, ending: contextlib.ExitStack) -> Cluster:
    child, address = headwater_processes.start_cluster(folder, BROKERS)
    ending.callback(child.stop)
    return Cluster(HEADWATER, [child], address, folder)


def await_partitions(
    admin: ReplicaAdmin,
    is_so: Callable[[AssignedPartition], bool],
    what: str,
    *,
    topics: Sequence[str] | None = None,
    limit_s: float,
) -> None:
    """Return when all partitions of topics (None: all) are as the metadata shall say; Failed with `what`, in time."""
    deadline_s = time.monotonic() + limit_s
    while not all(is_so(each) for each in admin.assignments(topics)[1]):
        if time.monotonic() > deadline_s:
            raise Failed(f"{what} after {limit_s:.0f} s")
        time.sleep(POLL_S)


def _await_all(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    deadline_s = time.monotonic() + START_S
    while True:
        for child in cluster.children:
            child.check_running()
        with contextlib.suppress(KafkaException):
            if len(admin.list_topics(timeout=5).brokers) == BROKERS:
                return
        if time.monotonic() > deadline_s:
            raise Failed(f"{cluster.name}: {BROKERS} brokers were not there after {START_S} s")
        time.sleep(0.1)
