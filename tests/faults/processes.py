"""A cluster of real processes that are killed, frozen and started again: ZooKeeper and brokers on 127.0.0.1."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.bench.processes import Child, Failed, free_port
from tests.faults.links import Links
from tests.stopped_process import stop as stop_threads
from tests.zookeeper import ServerOptions, ZooKeeperServer

_ROOT = Path(__file__).resolve().parents[2]
#: Short, so that a minute sees several elections; two ticks are the least.
SESSION_S = 4.0
TICK_MS = 1000
START_S = 90
STOP_S = 60


class BrokerProcess:
    """A broker that keeps its folder and its port from one process to the next."""

    def __init__(
        self, folder: Path, node_id: int, properties: Mapping[str, object], *, slow_disk: bool = False
    ) -> None:
        self.node_id = node_id
        self.data = folder / f"broker-{node_id}"
        #: Its disk is slow while this file exists.
        self._slowness = folder / f"broker-{node_id}.slow" if slow_disk else None
        self.port = free_port()
        #: Port of the listener for brokers, which others reach through a proxy.
        self.inside_port = free_port()
        self._properties = properties
        self._log = folder / f"broker-{node_id}.log"
        self._config = folder / f"broker-{node_id}.yaml"
        self._child: Child | None = None

    def configure(self, advertised_inside_port: int, zookeeper_port: int) -> None:
        """Write the file of its configs."""
        clients = f"CLIENTS://127.0.0.1:{self.port}"
        self._config.write_text(
            yaml.safe_dump(
                {
                    "node.id": self.node_id,
                    "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
                    "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
                    "log.dirs": str(self.data),
                    "listeners": f"{clients},INSIDE://127.0.0.1:{self.inside_port}",
                    "advertised.listeners": f"{clients},INSIDE://127.0.0.1:{advertised_inside_port}",
                    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT",
                    "inter.broker.listener.name": "INSIDE",
                    **self._properties,
                }
            )
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.process.poll() is None

    def start(self) -> None:
        """Start a process; it may not serve yet."""
        assert not self.is_running
        environment = {**os.environ, "HEADWATER_LOG_LEVEL": "INFO"}
        program = ["headwater"]
        if self._slowness is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
            program = ["tests.faults.slow_disk_broker", str(self._slowness)]
        command = [sys.executable, "-P", "-m", *program, "broker", "--config", str(self._config)]
        self._child = Child(f"broker {self.node_id}", command, self._log, environment)

    def await_ready(self) -> None:
        assert self._child is not None
        self._child.await_kafka(self.port, START_S)

    def kill(self) -> None:
        """SIGKILL: what it wrote stays in the page cache."""
        assert self._child is not None
        self._child.process.kill()
        self._child.process.wait()

    def freeze(self) -> None:
        assert self._child is not None
        stop_threads(self._child.pid)

    def thaw(self) -> None:
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGCONT)

    def slow_down(self) -> None:
        """Let each write and sync wait."""
        assert self._slowness is not None
        self._slowness.touch()

    def speed_up(self) -> None:
        assert self._slowness is not None
        self._slowness.unlink(missing_ok=True)

    def terminate(self) -> None:
        """Stop it cleanly."""
        assert self._child is not None
        self._child.terminate(STOP_S)

    def end(self) -> None:
        if self._child is not None:
            self._child.stop()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


class FaultyCluster:
    """ZooKeeper, some brokers, and the network between them. Invariant: after `end` no process is left."""

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        properties: Mapping[str, object] | None = None,
        *,
        slow_disks: bool = False,
    ) -> None:
        self.folder = folder
        self.zookeeper = ZooKeeperServer(folder / "zookeeper", ServerOptions(tick_ms=TICK_MS))
        self.brokers = {
            node_id: BrokerProcess(folder, node_id, properties or {}, slow_disk=slow_disks)
            for node_id in range(1, brokers + 1)
        }
        inside = {node_id: broker.inside_port for node_id, broker in self.brokers.items()}
        self.links = Links(inside, int(self.zookeeper.address.rpartition(":")[2]))
        for node_id, broker in self.brokers.items():
            broker.configure(self.links.ports[node_id], self.links.zookeeper_ports[node_id])

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def start(self) -> None:
        self.zookeeper.start()
        self.zookeeper.await_ready()
        self.links.start()
        self.start_missing()

    def start_missing(self) -> None:
        """Start each broker that does not run, and wait until all serve."""
        for broker in self.brokers.values():
            if not broker.is_running:
                broker.start()
        for broker in self.brokers.values():
            broker.await_ready()

    def stop_cleanly(self) -> None:
        """Stop the brokers one after the other, so that the last one has everything."""
        for broker in self.brokers.values():
            broker.terminate()

    def end(self) -> None:
        for broker in self.brokers.values():
            broker.end()
        self.links.stop()
        self.zookeeper.stop()


def until(deadline_s: float, what: str) -> None:
    """Pause before another look; fails after the deadline, a time of `time.monotonic`."""
    if time.monotonic() > deadline_s:
        raise Failed(f"{what} in time")
    time.sleep(0.1)
