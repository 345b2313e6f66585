"""A real ZooKeeper on 127.0.0.1, from the jars of pyspark: servers that a test stops, freezes, kills and restarts."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.processes import Child, Failed, free_port
from tests.jars import SPARK_JARS, java
from tests.stopped_process import stop as stop_threads

START_S = 120
POLL_S = 0.02
TICK_MS = 500
# Small, and the quick compiler alone: a start is what costs, not what the server does.
JVM = [
    "-Dlog4j2.level=WARN",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
]


@dataclass(frozen=True)
class ServerOptions:
    """What a test asks of a server.

    Attributes:
        certificates: The PEM file of key and certificate, and that of the authority: with them there is a TLS port.
        users: Names and passwords of SASL (DIGEST-MD5).
        requires_login: Whether sessions without a login end.
        tick_ms: The least session is two ticks.
        heap: The largest heap of its JVM.
        properties: Lines of `zoo.cfg` besides.
    """

    certificates: tuple[Path, Path] | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    requires_login: bool = False
    tick_ms: int = TICK_MS
    heap: str = "128m"
    properties: Mapping[str, str] = field(default_factory=dict)


class ZooKeeperServer:
    """One server; its folder outlives the process.

    Invariant: after `stop` no process is left.
    """

    def __init__(
        self,
        folder: Path,
        options: ServerOptions | None = None,
        quorum: Mapping[int, str] | None = None,
        server_id: int = 0,
    ) -> None:
        self.folder = folder
        self.options = options or ServerOptions()
        (folder / "data").mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.tls_port = free_port() if self.options.certificates else 0
        if quorum:
            (folder / "data" / "myid").write_text(str(server_id))
        (folder / "zoo.cfg").write_text(self._config(quorum or {}))
        self._child: Child | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def _config(self, quorum: Mapping[int, str]) -> str:
        properties = {
            "dataDir": str(self.folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "tickTime": str(self.options.tick_ms),
            "initLimit": "20",
            "syncLimit": "10",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok",
            **{f"server.{number}": address for number, address in quorum.items()},
        }
        if self.options.certificates:
            own, authority = self.options.certificates
            properties |= {
                "secureClientPort": str(self.tls_port),
                "secureClientPortAddress": "127.0.0.1",
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(own),
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": str(authority),
                "ssl.trustStore.type": "PEM",
            }
        if self.options.users:
            properties["authProvider.sasl"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
        if self.options.requires_login:
            properties["sessionRequireClientSASLAuth"] = "true"
        return "".join(f"{name}={value}\n" for name, value in {**properties, **self.options.properties}.items())

    def start(self) -> None:
        """Start the server; it may not answer yet."""
        flags = [*JVM, f"-Xmx{self.options.heap}"]
        if self.options.users:
            login = self.folder / "jaas.conf"
            users = "".join(f'  user_{name}="{password}"\n' for name, password in self.options.users.items())
            module = "org.apache.zookeeper.server.auth.DigestLoginModule"
            login.write_text(f"Server {{\n  {module} required\n{users.rstrip()};\n}};\n")
            flags.append(f"-Djava.security.auth.login.config={login}")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [java(), *flags, "-cp", f"{SPARK_JARS}/*", main, str(self.folder / "zoo.cfg")]
        self._child = Child("zookeeper", command, self.folder / "log")

    def await_ready(self) -> None:
        """Return when the server serves requests: in an ensemble, when it follows or leads."""
        assert self._child is not None
        deadline_s = time.monotonic() + START_S
        while "Mode:" not in self._four_letters(b"srvr"):
            self._child.check_running()
            if time.monotonic() > deadline_s:
                raise Failed(f"ZooKeeper was not ready after {START_S} s:\n{self._child.tail()}")
            time.sleep(POLL_S)

    def is_leader(self) -> bool:
        """Whether it leads its ensemble."""
        return "Mode: leader" in self._four_letters(b"srvr")

    def _four_letters(self, word: bytes) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(word)
                answer = b""
                while some := connection.recv(4096):
                    answer += some
                return answer.decode()
        except OSError:
            return ""

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections, and answers nothing until `thaw`."""
        stop_threads(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: what it confirmed is on disk."""
        assert self._child is not None
        child, self._child = self._child, None
        child.process.kill()
        child.process.wait()

    def stop(self) -> None:
        """End the process if it runs."""
        if self._child is not None:
            self.kill()


@contextmanager
def running_zookeeper(folder: Path, options: ServerOptions | None = None) -> Iterator[ZooKeeperServer]:
    """One server that serves requests; it is ended with the block."""
    server = ZooKeeperServer(folder, options)
    try:
        server.start()
        server.await_ready()
        yield server
    finally:
        server.stop()


class ZooKeeperEnsemble:
    """Several servers that elect a leader."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        quorum = {number: f"127.0.0.1:{free_port()}:{free_port()};" for number in range(1, size + 1)}
        self.servers: Sequence[ZooKeeperServer] = [
            ZooKeeperServer(
                folder / str(number), quorum={n: a.rstrip(";") for n, a in quorum.items()}, server_id=number
            )
            for number in quorum
        ]

    @property
    def connect(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start all servers, and wait for each."""
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.await_ready()

    def leader(self) -> ZooKeeperServer:
        [found] = [server for server in self.servers if server.is_leader()]
        return found

    def stop(self) -> None:
        """End all servers."""
        for server in self.servers:
            server.stop()
