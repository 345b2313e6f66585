"""An Airflow of its own in a folder: its settings, its database, its commands and its services."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.bench.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "airflow_dags"
#: Name of the connection with the broker.
CONNECTION = "headwater_kafka"
SERVICES = (["api-server"], ["scheduler", "--skip-serve-logs"], ["dag-processor"], ["triggerer", "--skip-serve-logs"])
START_S = 120
#: Afterwards what is left of them is killed: they have nothing to save.
STOP_S = 10
#: SQLite has one writer at a time, and the services are four.
DATABASE_WAIT_S = 60


def airflow_python() -> str:
    """The python of Airflow's environment, which is made first if need be."""
    done = subprocess.run(
        [str(ROOT / "setup" / "airflow.sh")],
        env=os.environ | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError("Airflow's environment could not be made: setup/airflow.sh says why")
    return done.stdout.splitlines()[-1]


class AirflowHome:
    """Airflow with its files in a folder; `close` ends the services that were started.

    Args:
        settings: The DAGs' settings, which become a YAML file.
    """

    def __init__(self, python: str, folder: Path, bootstrap_servers: str, settings: Mapping[str, Any]) -> None:
        self.python = python
        self.folder = folder
        self.port = free_port()
        self.password = secrets.token_urlsafe(12)
        self._services: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.write_settings(settings)
        passwords = folder / "passwords.json"
        passwords.write_text(json.dumps({"admin": self.password}))
        kafka = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "airflow-events",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        own = {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(DAGS / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db?timeout={DATABASE_WAIT_S}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__TRIGGERER__CAPACITY": "10",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps({"conn_type": "kafka", "extra": kafka}),
            "HEADWATER_AIRFLOW_SETTINGS": str(self.settings),
            "PATH": f"{self._commands()}:{os.environ['PATH']}",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        self.environment = inherited | own

    @property
    def settings(self) -> Path:
        return self.folder / "headwater.yaml"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        self.settings.write_text(yaml.safe_dump(dict(settings)))

    def _commands(self) -> Path:
        """A folder with the command `headwater` of this tree, for PATH."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        command = folder / "headwater"
        path = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
        command.write_text(
            f'#!/bin/sh\nPYTHONSAFEPATH=1 PYTHONPATH="{path}" exec "{sys.executable}" -m headwater "$@"\n'
        )
        command.chmod(0o755)
        return folder

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run Airflow's python to its end."""
        return subprocess.run(
            [self.python, *arguments], input=stdin, env=self.environment, cwd=self.folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def airflow(self, *arguments: str) -> str:
        """A command of Airflow; its output."""
        done = self.run("-m", "airflow", *arguments)
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def prepare(self) -> None:
        """Make the database, and the pools that the DAGs need."""
        self.airflow("db", "migrate")
        pools = self.run(str(DAGS / "headwater_pools.py"))
        path = self.folder / "pools.json"
        path.write_text(pools.stdout)
        self.airflow("pools", "import", str(path))

    def start(self) -> None:
        """Start the services, and wait until the API answers."""
        for service in SERVICES:
            with (self.folder / f"{service[0]}.log").open("wb") as log:
                process = subprocess.Popen(
                    [self.python, "-m", "airflow", *service],
                    env=self.environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._services.append(process)
        wait_until(self._answers, START_S, lambda: f"Airflow's API server: {self.log('api-server')}")

    def _answers(self) -> bool:
        ended = [service.args for service in self._services if service.poll() is not None]
        if ended:
            raise RuntimeError(f"ended while starting: {ended}; see the logs in {self.folder}")
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as answer:
                health = json.load(answer)
        except OSError:
            return False
        names = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health.get(name, {}).get("status") == "healthy" for name in names)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """A request to Airflow's REST API; its answer."""
        if not hasattr(self, "_token"):
            self._token = self._request("POST", "/auth/token", {"username": "admin", "password": self.password})
        return self._request(method, f"/api/v2{path}", body, self._token["access_token"])

    def _request(self, method: str, path: str, body: Any, token: str = "") -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text(errors="replace")

    def close(self) -> None:
        """End the services and what they started: tasks have process groups of their own, and outlive a scheduler."""
        started = descendants([service.pid for service in self._services])
        for service in self._services:
            service.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for service in self._services:
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.wait(max(deadline - time.monotonic(), 0))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGKILL)
            service.wait()
        for pid, since in started.items():
            if start_time(pid) == since:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._services.clear()


def wait_until(holds: Any, seconds: float, what: Any) -> Any:
    """The first true answer. Raises RuntimeError if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.5)
    raise RuntimeError(f"waited {seconds} s in vain: {what()}")


def processes_with(text: str) -> dict[int, list[str]]:
    """Processes whose command line has a text, by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if any(text in part for part in line):
                    found[int(entry.name)] = line
    return found


def group_members(group: int) -> Sequence[int]:
    """Processes of a group that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def descendants(roots: Sequence[int]) -> dict[int, str]:
    """Processes that others have started, and those that these have started; with the times they started at."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            found[pid] = start_time(pid)
            todo.append(pid)
    return found


def start_time(pid: int) -> str:
    """When a process started, which tells it from a later one of the same id; '' if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
