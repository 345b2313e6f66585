"""Broker processes on a real ZooKeeper, each started from a file as an administrator writes it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.bench.processes import Child, free_port
from tests.faults import clients
from tests.zookeeper import ServerOptions, ZooKeeperServer, running_zookeeper

USER, PASSWORD = "headwater", "a secret"
JAAS = "org.apache.zookeeper.server.auth.DigestLoginModule"
#: The command of the present release, and of one that knows the first level of transactions alone.
HEADWATER = (sys.executable, "-m", "headwater")
EARLIER_RELEASE = (sys.executable, "-P", str(Path(__file__).with_name("earlier_release.py")))
START_S = 90
STOP_S = 30
COMMAND_S = 120


class ClusterProcesses:
    """Brokers by id, whose folders and ports outlast their processes; each cluster has a chroot of its own.

    Invariant: after `close` no process is left.

    Attributes:
        program: The command of the brokers that are started from now on: `headwater` of some release.
    """

    def __init__(self, folder: Path, connect: str, session_ms: int) -> None:
        self.folder = folder
        self.connect = f"{connect}/{uuid.uuid4().hex[:12]}"
        self.session_ms = session_ms
        self.ports: dict[int, int] = {}
        self.children: dict[int, Child] = {}
        self.program: Sequence[str] = HEADWATER

    def address(self, broker_id: int) -> str:
        return f"127.0.0.1:{self.ports[broker_id]}"

    def servers(self, *broker_ids: int) -> str:
        """The addresses of brokers, by default of those that run, as clients take them."""
        return ",".join(self.address(each) for each in broker_ids or self.children)

    def file(self, broker_id: int, **properties: str) -> str:
        """Write the file of a broker's properties, which have `_` in place of dots; return its path."""
        port = self.ports.setdefault(broker_id, free_port())
        given = {
            "node.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(self.folder / f"data-{broker_id}"),
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": str(self.session_ms),
            "zookeeper.connection.timeout.ms": "60000",
            "zookeeper.sasl.jaas.config": f'{JAAS} required username="{USER}" password="{PASSWORD}";',
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        file = self.folder / f"{uuid.uuid4().hex[:8]}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return str(file)

    def begin(self, broker_id: int, **properties: str) -> Child:
        """Start a broker; it may not serve yet."""
        command = [*self.program, "broker", "--config", self.file(broker_id, **properties)]
        environment = os.environ | {"HEADWATER_LOG_LEVEL": "INFO", "NO_COLOR": "1"}
        output = self.folder / f"{broker_id}.log"
        child = self.children[broker_id] = Child(f"broker {broker_id}", command, output, environment)
        return child

    def serve(self, *broker_ids: int, **properties: str) -> None:
        """Start brokers, and wait until all of them serve."""
        for broker_id in broker_ids:
            self.begin(broker_id, **properties)
        for broker_id in broker_ids:
            self.await_serving(broker_id)

    def await_serving(self, broker_id: int) -> None:
        self.children[broker_id].await_kafka(self.ports[broker_id], START_S)

    def kill(self, broker_id: int) -> None:
        """Kill -9."""
        child = self.children.pop(broker_id)
        child.process.kill()
        child.process.wait()

    def stop(self, broker_id: int) -> None:
        """SIGTERM, and wait for a clean end."""
        child = self.children.pop(broker_id)
        child.terminate(STOP_S)
        assert child.process.returncode == 0, child.tail()

    def close(self) -> None:
        for broker_id in list(self.children):
            self.kill(broker_id)


def headwater(*arguments: str, stdin: str = "", ends: int = 0, within_s: float = COMMAND_S) -> CompletedProcess[str]:
    """Run a command to its end, with this exit code and without a stack trace."""
    command = [*HEADWATER, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == ends, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


class MakeCluster:
    """Creates clusters of a test."""

    def __init__(self, folder: Path, server: ZooKeeperServer) -> None:
        self._folder = folder
        self._server = server
        self.made: list[ClusterProcesses] = []

    def __call__(self, session_ms: int = 6_000) -> ClusterProcesses:
        folder = self._folder / f"cluster-{len(self.made)}"
        folder.mkdir()
        cluster = ClusterProcesses(folder, self._server.address, session_ms)
        self.made.append(cluster)
        return cluster


@pytest.fixture(autouse=True)
def _slow_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the brokers go through is tested here, not their load: records of a producer of numbers, a second."""
    monkeypatch.setattr(clients, "RATE", 50)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server with a login."""
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper"), ServerOptions(users={USER: PASSWORD})) as server:
        yield server


@pytest.fixture
def make_cluster(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[MakeCluster]:
    """A factory of clusters; whatever still runs is ended after the test."""
    make = MakeCluster(tmp_path, zookeeper)
    yield make
    for cluster in make.made:
        cluster.close()
