"""How long a user waits: `headwater up` until each port answers, `headwater --help`; memory of an idle node."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.bench.peers.headwater_processes import HEADWATER, environment, start_node
from tests.bench.processes import POLL_S, Child, Failed, children, resident_mib
from tests.bench.report import Table, listing

LIMIT_S = 60
#: After the last answer, before the memory of an idle node is looked at.
IDLE_S = 2
HELP = "headwater --help, s"


def measure(folder: Path, runs: int) -> tuple[list[Table], dict[str, list[float]]]:
    """Medians over so many runs, each on an empty data folder; one more run before them warms the page cache."""
    figures: dict[str, list[float]] = {}
    for run in range(runs + 1):
        row = up(folder / f"up-{run}") | {HELP: _help()}
        if run:
            for name, value in row.items():
                figures.setdefault(name, []).append(value)
    return [listing(f"Start-up, {runs} runs", figures)], figures


def up(folder: Path) -> dict[str, float]:
    """Start a node on a new folder: seconds until each port answers, and memory when idle; by name."""
    start = time.perf_counter()
    child, kafka_port, http_port = start_node(folder)
    try:
        child.await_kafka(kafka_port, LIMIT_S)
        kafka_s = time.perf_counter() - start
        _await_http(child, f"http://127.0.0.1:{http_port}/v3/clusters")
        http_s = time.perf_counter() - start
        time.sleep(IDLE_S)
        commands = children(child.pid)
        broker_mib, api_mib = (_resident_mib(commands, verb) for verb in ("broker", "api"))
        return {
            "headwater up: Kafka port answers, s": kafka_s,
            "headwater up: HTTP answers, s": http_s,
            "resident memory of the idle broker, MiB": broker_mib,
            "resident memory of the idle REST API, MiB": api_mib,
        }
    finally:
        child.stop()


def _resident_mib(commands: dict[int, list[str]], verb: str) -> float:
    """Resident memory of the process of a node that runs `headwater VERB`."""
    (pid,) = (pid for pid, command in commands.items() if verb in command)
    return resident_mib(pid)


def _await_http(child: Child, url: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                answer.read()
            return
        except (urllib.error.URLError, ConnectionError):
            child.check_running()
            if time.monotonic() > deadline:
                raise Failed(f"{url} did not answer within {LIMIT_S} s:\n{child.tail()}") from None
            time.sleep(POLL_S)


def _help() -> float:
    start = time.perf_counter()
    subprocess.run([*HEADWATER, "--help"], env=environment(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start
