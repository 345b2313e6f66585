"""The composition root: creates the processes of a node from the settings.

A node consists of a broker process and an API process, both children of this process, started together. The API process
receives the broker's address as soon as the broker reports one; meanwhile it imports its modules.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from headwater.process_list import remove_process_list, write_process_list
from headwater.settings import Settings
from headwater.supervisor import Child, ChildError, RestartPolicy

NO_PORT = -1


class NodeStartError(RuntimeError):
    """The node did not start; the message is one line for the user, and no process of the node remains."""


def reachable_host(host: str) -> str:
    """Return the address at which this machine reaches a listener.

    >>> reachable_host("0.0.0.0"), reachable_host("::"), reachable_host("10.0.0.1")
    ('127.0.0.1', '::1', '10.0.0.1')
    """
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (replaced, not bound)


def join_address(host: str, port: int) -> str:
    """Format host and port as one address.

    >>> join_address("::1", 9092), join_address("localhost", 9092)
    ('[::1]:9092', 'localhost:9092')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def child_command(verb: str, *arguments: str) -> list[str]:
    """Return the command line of a child: this interpreter and this program.

    `-P` keeps the current folder off the module path: a folder named `api` there must not shadow Headwater's.
    """
    return [sys.executable, "-P", "-m", "headwater", verb, *arguments]


#: Longest time that a signal to a process with several threads goes unnoticed.
SIGNAL_CHECK_S: Final = 0.5


def report_to_stderr(line: str) -> None:
    """Print a line about a process for the user."""
    sys.stderr.write(f"headwater: {line}\n")
    sys.stderr.flush()


class LocalProcesses:
    """The processes of a node on this machine, of which the REST API is one; a process that dies is restarted."""

    def __init__(self, data_dir: str, settings: Settings | None, report: Callable[[str], None] | None) -> None:
        """`report` receives one line whenever a process is restarted or given up; the default prints to stderr."""
        self._data_dir = data_dir
        self._settings = settings or Settings()
        self._report = report or report_to_stderr
        # A signal's handler interrupts the wait and ends it: the lock of a `threading.Event` may be held then.
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._gave_up = False
        self._list_lock = threading.Lock()
        #: By process name, in the order of the start.
        self._children: dict[str, Child] = {}
        self._archive: Child | None = None
        self._sql: Child | None = None
        self._sql_folder = ""

    def wait(self) -> bool:
        """Block until `end_wait` is called (True) or a process was given up (False)."""
        # Python runs signal handlers in this thread, which a signal that the kernel gives to another one does not wake.
        while True:
            with suppress(queue.Empty):
                self._over.get(timeout=SIGNAL_CHECK_S)
                return not self._gave_up

    def end_wait(self) -> None:
        """Make `wait` return; may be called from a signal handler."""
        self._over.put(None)

    @property
    def http_url(self) -> str:
        """URL of the REST API."""
        return f"http://{self._address(self._children['api'])}"

    @property
    def pids(self) -> dict[str, int | None]:
        """Process ids by process name, such as `broker` and `api`."""
        return {name: child.pid for name, child in self._children.items()}

    def _add(
        self,
        key: str,
        name: str,
        command: Callable[[Mapping[str, Any] | None], list[str]],
        *,
        attempts_max: int | None = None,
    ) -> Child:
        """Add a process, restarted `attempts_max` times in a row, without it however often."""
        settings = self._settings
        policy = RestartPolicy(
            attempts_max=attempts_max,
            backoff_ms=settings.restart_backoff_ms,
            backoff_max_ms=settings.restart_backoff_max_ms,
            healthy_after_ms=settings.restart_healthy_after_ms,
        )
        child = self._children[key] = Child(
            name,
            command,
            policy,
            start_timeout_ms=settings.start_timeout_ms,
            stop_timeout_ms=settings.stop_timeout_ms,
            report=self._report,
            on_ready=self._write_list,
        )
        return child

    def _write_list(self) -> None:
        """Write the list of processes; children become ready in several threads, and the last one's list has all."""
        with self._list_lock:
            write_process_list(self._data_dir, self._children)

    def _add_api(self, http_port: int, host: str) -> Child:
        """Add the REST API. Clients need brokers alone: whatever ends it, however often, leaves them alone."""

        def command(known: Mapping[str, Any] | None) -> list[str]:
            port = http_port if known is None else int(known["port"])
            sql = ["--sql-socket", self._sql_socket] if self._sql is not None else []
            return child_command("api", "--http-port", str(port), "--host", host, *sql)

        return self._add("api", "the REST API", command)

    def add_archive(self, where: str) -> None:
        """Let the node keep archives, as a file or a root declares them, from `start` on: a driver with its own Spark.

        '' is none of both: topic configs alone declare archives, with their tables.
        """
        self._archive = self._add(
            "archive", "the archiver", lambda _: child_command("archive", "run", *([where] if where else []))
        )

    def add_sql(self, file: str, archive: str | None = None, ports: Mapping[str, str] | None = None) -> None:
        """Let the REST API answer queries, from `start` on: one process, whose Spark starts with the first query.

        `file` is the pipeline by which topics have columns, '' for none; `archive` declares archives as `add_archive`
        says, None for none. `ports` has the addresses of other protocols, by the name of the option of `sql-service`.
        """

        def command(known: Mapping[str, Any] | None) -> list[str]:
            pipeline = ["--pipeline", file] if file else []
            archives = [] if archive is None else ["--archive", archive]
            where = dict(ports or {}) | {name: str(each) for name, each in (known or {}).items()}
            others = [word for name, each in where.items() for word in (f"--{name}", each)]
            return child_command("sql-service", "--socket", self._sql_socket, *pipeline, *archives, *others)

        self._sql = self._add("sql", "the SQL service", command)

    @property
    def sql_addresses(self) -> Mapping[str, str]:
        """Where clients of other protocols reach the SQL service, by the names of `add_sql`."""
        return dict((self._sql.addresses or {}) if self._sql is not None else {})

    @property
    def _sql_socket(self) -> str:
        """The service's socket, in a folder that its user alone can enter: the path of a data directory may be long."""
        if not self._sql_folder:
            self._sql_folder = tempfile.mkdtemp(prefix="headwater-sql-")
        return os.path.join(self._sql_folder, "socket")

    def _begin_sql(self, bootstrap_servers: str) -> None:
        """Start the SQL service, if there is one, and wait until it listens. Raises ChildError."""
        if self._sql is not None:
            self._sql.start()
            self._sql.tell({"bootstrap_servers": bootstrap_servers, "registry": self.http_url})
            self._sql.wait_ready(self._give_up)

    def _end_sql(self) -> None:
        if self._sql is not None:
            self._sql.expect_end()
            self._sql.stop()
        if self._sql_folder:
            shutil.rmtree(self._sql_folder, ignore_errors=True)
            self._sql_folder = ""

    def _begin_archive(self, bootstrap_servers: str) -> None:
        """Start the archiver, if there is one, and wait until it has read its file. Raises ChildError."""
        if self._archive is not None:
            self._archive.start()
            self._archive.tell({"bootstrap_servers": bootstrap_servers, "registry": self.http_url})
            self._archive.wait_ready(self._give_up)

    def _end_archive(self) -> None:
        if self._archive is not None:
            self._archive.expect_end()
            self._archive.stop()

    def _give_up(self) -> None:
        self._gave_up = True
        self._over.put(None)

    @staticmethod
    def _address(child: Child) -> str:
        if child.addresses is None:
            raise RuntimeError("the node is not started")
        return join_address(reachable_host(str(child.addresses["host"])), int(child.addresses["port"]))


def metrics_url_of(broker: Child) -> str | None:
    """URL of a broker's metrics for Prometheus; None if disabled."""
    addresses = broker.addresses
    if not addresses or "metrics_port" not in addresses:
        return None
    return f"http://{join_address(reachable_host(str(addresses['host'])), int(addresses['metrics_port']))}/metrics"


class LocalNode(LocalProcesses):
    """A node on this machine: `start` blocks until both processes are ready, `stop` ends both.

    >>> node = LocalNode("data", kafka_port=0, http_port=0)
    >>> node.bootstrap_servers  # known once it is started
    Traceback (most recent call last):
        ...
    RuntimeError: the node is not started

    A process that dies is restarted on its previous ports. If a process is given up, `wait` returns False.
    """

    def __init__(
        self,
        data_dir: str,
        kafka_port: int = 0,
        http_port: int = 0,
        host: str = "127.0.0.1",
        *,
        metrics_port: int = NO_PORT,
        settings: Settings | None = None,
        report: Callable[[str], None] | None = None,
        own_listeners: bool = False,
    ) -> None:
        """Prepare a node with its logs in `data_dir`; port 0 selects a free port, NO_PORT disables metrics.

        `own_listeners` keeps the listeners of the broker's properties (`broker_config`) instead of `host` and
        `kafka_port`.
        """
        super().__init__(data_dir, settings, report)

        def broker_command(known: Mapping[str, Any] | None) -> list[str]:
            port = kafka_port if known is None else int(known["port"])
            command = child_command("broker", "--data", data_dir)
            if not own_listeners:
                command += ["--kafka-port", str(port), "--host", host]
            if metrics_port != NO_PORT:
                port = metrics_port if known is None else int(known["metrics_port"])
                command += ["--set", f"prometheus.port={port}", "--set", f"prometheus.host={host}"]
            return command

        self._broker = self._add(
            "broker", "the broker", broker_command, attempts_max=self._settings.restart_attempts_max
        )
        self._api = self._add_api(http_port, host)

    def start(self) -> None:
        """Start both processes and wait until both are ready.

        Raises:
            NodeStartError: a port is in use, the folder is locked or not writable, ...; no process remains.
        """
        try:
            self._broker.start()
            self._api.start()
            broker = self._broker.wait_ready(self._give_up)
            address = join_address(reachable_host(str(broker["host"])), int(broker["port"]))
            protocol = str(broker.get("protocol", "PLAINTEXT"))
            if protocol != "PLAINTEXT" and not self._settings.command_config:
                self._report(
                    f"the broker asks for {protocol}: the REST API cannot reach it unless the setting command_config "
                    "names a file that says how (see docs/how-to/security.md)"
                )
            self._api.tell({"bootstrap_servers": address})
            self._api.wait_ready(self._give_up)
            self._begin_archive(address)
            self._begin_sql(address)
        except ChildError as error:
            self.stop()
            raise NodeStartError(str(error)) from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the processes cleanly, the broker at last. May be called twice."""
        self._end_sql()
        self._end_archive()
        self._api.expect_end()
        self._broker.expect_end()
        self._api.stop()
        self._broker.stop()
        remove_process_list(self._data_dir)

    @property
    def bootstrap_servers(self) -> str:
        """Address of the broker."""
        return self._address(self._broker)

    @property
    def metrics_url(self) -> str | None:
        """URL of the broker's metrics for Prometheus; None if disabled."""
        return metrics_url_of(self._broker)
