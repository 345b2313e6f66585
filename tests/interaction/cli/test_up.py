"""`headwater up`: a node from start to stop, and what becomes of it when something dies."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater.services import LocalNode, NodeStartError
from headwater.settings import Settings

pytestmark = pytest.mark.slow

WAIT_S = 120
READY = re.compile(r"Headwater is ready: kafka (127\.0\.0\.1:\d+), http (http://127\.0\.0\.1:\d+), metrics (\S+)\n")


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Living processes whose parent is `pid`."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(folder.name))
    return found


def replaced(pid: int, victim: int) -> bool:
    """Whether a node whose child `victim` was killed has both its processes again."""
    return victim not in (present := children(pid)) and len(present) == 2


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host, int(port)), timeout=1).close()
        return True
    return False


def clusters(url: str) -> int:
    """How many clusters the API shows; 0 while it does not answer."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v3/clusters", timeout=WAIT_S) as answer:
        return len(json.load(answer)["data"])
    return 0


@pytest.fixture
def up(alone: Any, tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], str, str]]]:
    """Starts nodes on free ports; whatever is left of one is killed."""
    started: list[tuple[subprocess.Popen[bytes], list[int]]] = []

    def start(*options: str) -> tuple[subprocess.Popen[bytes], str, str]:
        arguments = ("--data", str(tmp_path / "data"), "--kafka-port", "0", "--http-port", "0", *options)
        process = alone.start("up", *arguments)
        line = process.stdout.readline().decode()
        found = READY.fullmatch(line)
        started.append((process, children(process.pid)))
        assert found is not None, f"{line!r} {process.stderr.read()!r}"
        return process, found[1], found[2]

    yield start
    for process, pids in started:
        for pid in (process.pid, *pids, *children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_serves_both_ports_and_a_signal_stops_it_cleanly(up: Any, number: signal.Signals) -> None:
    process, kafka, http = up()
    pids = children(process.pid)
    assert len(pids) == 2
    assert accepts(kafka)
    assert clusters(http) == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not any(is_running(pid) for pid in pids)
    assert not accepts(kafka)


def test_ctrl_c_of_the_whole_terminal_stops_it_cleanly_too(up: Any) -> None:
    process, _, _ = up()
    pids = children(process.pid)
    for pid in (*pids, process.pid):
        os.kill(pid, signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, b"")
    assert not any(is_running(pid) for pid in pids)


def test_a_signal_that_the_kernel_gives_to_another_thread_stops_a_node(up: Any) -> None:
    """As it may after SIGSTOP and SIGCONT: a thread that waits for a process is not the one that handles the signal."""
    process, _, http = up()
    assert clusters(http) == 1
    time.sleep(1)  # until it waits
    others = {int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()} - {process.pid}
    assert ctypes.CDLL(None, use_errno=True).tgkill(process.pid, min(others), signal.SIGTERM) == 0
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, b"")


def test_kill_9_of_the_node_leaves_no_process_behind(up: Any) -> None:
    process, kafka, _ = up()
    pids = children(process.pid)
    process.kill()
    eventually(lambda: not any(is_running(pid) for pid in pids))
    assert not accepts(kafka)


def test_a_process_that_is_killed_comes_back_on_its_port(up: Any) -> None:
    process, kafka, http = up()
    for _ in range(2):
        victim = min(children(process.pid))
        os.kill(victim, signal.SIGKILL)
        eventually(partial(replaced, process.pid, victim))
        eventually(lambda: accepts(kafka) and clusters(http) == 1)
    process.terminate()
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert len(re.findall(rb"was ended by SIGKILL: restart [12]( of 5)? in [24]00 ms\n", err)) == 2


def test_topics_are_still_there_after_a_restart(up: Any, alone: Any) -> None:
    process, kafka, _ = up()
    alone.run("topic", "create", "flights", "-p", "2", "-b", kafka)
    alone.run("produce", "flights", "-b", kafka, stdin=b"1\n2\n3\n")
    process.terminate()
    process.communicate(timeout=WAIT_S)
    _, kafka, _ = up()
    out, _ = alone.run("consume", "flights", "-e", "-b", kafka)
    assert sorted(out.split()) == ["1", "2", "3"]


@pytest.mark.parametrize("option", ["--kafka-port", "--http-port"])
def test_a_port_in_use_is_one_line_and_leaves_nothing_running(alone: Any, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        other = {"--kafka-port": "--http-port", "--http-port": "--kafka-port"}[option]
        line = alone.fails("up", "--data", "data", option, port, other, "0", exit_code=1)
    assert port in line
    assert " in use" in line


def test_a_folder_of_another_broker_is_one_line(up: Any, alone: Any, tmp_path: Path) -> None:
    up()
    line = alone.fails("up", "--data", str(tmp_path / "data"), "--kafka-port", "0", "--http-port", "0", exit_code=1)
    assert str(tmp_path / "data") in line


def test_a_folder_that_is_a_file_is_one_line(alone: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for verb in (("up", "--http-port", "0"), ("broker",)):
        alone.fails(*verb, "--data", "file", "--kafka-port", "0", exit_code=1)


def test_a_node_in_this_process_starts_and_stops(tmp_path: Path) -> None:
    node = LocalNode(str(tmp_path / "data"))
    node.start()
    try:
        assert accepts(node.bootstrap_servers)
        assert clusters(node.http_url) == 1
        pids = [pid for pid in node.pids.values() if pid is not None]
        assert len(pids) == 2
    finally:
        node.stop()
    node.stop()
    assert not any(is_running(pid) for pid in pids)


def test_a_broker_that_dies_again_and_again_is_given_up_and_a_rest_api_never(tmp_path: Path) -> None:
    lines: list[str] = []
    settings = Settings(restart_attempts_max=1, restart_backoff_ms=1, restart_healthy_after_ms=600_000)
    node = LocalNode(str(tmp_path / "data"), settings=settings, report=lines.append)
    node.start()
    broker = node.pids["broker"]

    def kill(name: str) -> None:
        running_again = [line for line in lines if "running again" in line]
        victim = node.pids[name]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len([line for line in lines if "running again" in line]) > len(running_again))

    try:
        for _ in range(3):
            kill("api")
        assert clusters(node.http_url) == 1
        assert node.pids["broker"] == broker
        assert lines[-2] == "the REST API was ended by SIGKILL: restart 3 in 4 ms"
        kill("broker")
        os.kill(node.pids["broker"] or 0, signal.SIGKILL)
        assert node.wait() is False
    finally:
        node.stop()
    assert lines[-1] == "the broker was ended by SIGKILL: given up after 1 restarts in a row"


def test_a_node_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = LocalNode(str(tmp_path / "data"), http_port=server.getsockname()[1])
        with pytest.raises(NodeStartError, match="in use"):
            node.start()
    assert node.pids == {"broker": None, "api": None}
