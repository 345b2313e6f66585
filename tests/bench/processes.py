"""Child processes: started in groups of their own, waited for, measured through /proc, and always ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_S = 30
POLL_S = 0.005
SAMPLE_S = 1
#: Above the ports of well-known servers, below Linux's net.ipv4.ip_local_port_range.
PORTS_FIRST = 12_000
PORTS_END = 32_000
#: Not the generator that tests seed: processes that begin side by side would choose the same ports.
_CHANCE = random.SystemRandom()
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# ApiVersions v0: the smallest question every Kafka broker answers.
API_VERSIONS_REQUEST = b"\0\0\0\x0f\0\x12\0\0\0\0\0\x07\0\x05bench"


def metrics_of(port: int) -> str:
    """A process's metrics for Prometheus; '' if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, ConnectionError):
        return ""


class Failed(Exception):
    """Something a measurement needs did not work; the text says what and shows the end of its output."""


class Child:
    """One process group with its output in a file.

    Invariant: after `stop` nothing of the group is left.
    """

    def __init__(
        self, name: str, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.output = output
        self._command = list(command)
        self._environment = None if environment is None else dict(environment)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as stream:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C is for us to handle, and yet no session of its own: Linux shares the cores out by session first
                # (`sched_autogroup_enabled`), and between two of them a thread's scheduling class counts for nothing.
                process_group=0,
            )

    def restart(self) -> None:
        """Start the same command again, after the process has ended."""
        assert self.process.poll() is not None
        self.process = self._start()

    def terminate(self, limit_s: float) -> None:
        """SIGTERM, and wait for the end."""
        self.process.terminate()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {limit_s} s:\n{self.tail()}") from None

    @property
    def pid(self) -> int:
        return self.process.pid

    def tail(self) -> str:
        """The end of what it printed."""
        return self.output.read_text(errors="replace")[-2000:]

    def check_running(self) -> None:
        """Fails when it has ended."""
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")

    def await_kafka(self, port: int, limit_s: float = 90) -> None:
        """Returns when a Kafka broker answers on the port."""
        deadline = time.monotonic() + limit_s
        while not kafka_answers(port):
            self.check_running()
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} did not answer on port {port} within {limit_s} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left of the group after STOP_S."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """A port nobody listens on now, and that the kernel gives to no client.

    It gives out ports from 32768 on: to clients anywhere on the machine, among them one that connects again and again
    to a server that was killed, and so comes to be connected to itself. The server would not find its port free.
    """
    while True:
        port = _CHANCE.randrange(PORTS_FIRST, PORTS_END)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def free_ports(count: int) -> int:
    """The first of some ports in a row on which nobody listens now."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as probes:
            try:
                for number in range(count):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", first + number))
            except (OSError, OverflowError):
                continue
            return first


def kafka_answers(port: int) -> bool:
    """Whether an ApiVersions request is answered without error."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            head = b""
            while len(head) < 10:
                some = connection.recv(10 - len(head))
                if not some:
                    return False
                head += some
            return head[4:10] == b"\0\0\0\x07\0\0"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """User and system CPU time so far of a process, its living descendants and the children they have waited for."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            parents.setdefault(int(fields[1]), []).append(int(entry))
            ticks[int(entry)] = sum(int(field) for field in fields[11:15])
    total = 0
    todo = [pid]
    while todo:
        one = todo.pop()
        total += ticks.get(one, 0)
        todo += parents.get(one, [])
    return total / TICKS_PER_S


def ended_children_cpu_seconds() -> float:
    """User and system CPU time of the children of this process that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def idle_seconds() -> float:
    """For how long the cores of this machine have had nothing to do, or waited for a device, all together."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / TICKS_PER_S


def cpu_seconds_by_process(pid: int) -> dict[int, float]:
    """User and system CPU time so far of a process and of each of its living descendants, by process id."""
    parents: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            parents.setdefault(int(fields[1]), []).append(int(entry))
            seconds[int(entry)] = sum(int(field) for field in fields[11:13]) / TICKS_PER_S
    found: dict[int, float] = {}
    todo = [pid]
    while todo:
        one = todo.pop()
        if one in seconds:
            found[one] = seconds[one]
        todo += parents.get(one, [])
    return found


def cores_used_percent(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """CPU time that processes and their descendants use from now on, in percent of one core over `seconds`.

    Workers that end take their counts with them: what each process adds is summed up, second by second.
    """
    used = dict.fromkeys(pids, 0.0)
    started_s = time.monotonic()
    before = {name: cpu_seconds_by_process(pid) for name, pid in pids.items()}
    while time.monotonic() - started_s < seconds:
        time.sleep(SAMPLE_S)
        for name, pid in pids.items():
            now = cpu_seconds_by_process(pid)
            used[name] += sum(max(0.0, value - before[name].get(each, 0.0)) for each, value in now.items())
            before[name] = now
    took_s = time.monotonic() - started_s
    return {name: 100 * value / took_s for name, value in used.items()}


def children(pid: int) -> dict[int, list[str]]:
    """The commands of a process's living children, by their process ids."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) and int(fields[1]) == pid:
            with contextlib.suppress(OSError):
                found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().decode().split("\0")[:-1]
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of one process in MiB."""
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if fields else 0.0


def proportional_mib(pid: int) -> float:
    """Resident memory of one process in MiB, where a page of n processes counts as 1/n; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def peak_resident_mib(pid: int) -> float:
    """The most memory that one process has had resident, in MiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def bytes_read(pid: int) -> int:
    """Bytes that devices have read for a process and its living children; nothing that was in the page cache."""
    total = 0
    for one in (pid, *children(pid)):
        lines = Path(f"/proc/{one}/io").read_text().splitlines()
        total += int(next(line for line in lines if line.startswith("read_bytes")).split()[1])
    return total


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the command's name, which may hold anything; field 0 is the state."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    except OSError:
        return None
