"""kill -9 of a publish: its driver at each step, a Python worker, the broker; then the same command again.

Whatever is killed: the topic, read with read_committed, has each row of the files once, those of a key in their order.
A driver that stood still adds nothing when it comes back. KILL_ROUNDS and KILL_SEED set how often and when. A process
repeats the command that the one before it left undone, and begins with the next topic.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.end_to_end.kill.killed_processes import END_S, Drivers, committed_records, wait_until, workers_of
from tests.stopped_process import is_stopped

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 1)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))
ROWS, KEYS, PARTITIONS = 6_000, 40, 3
#: Half of the rows: what is interrupted is partly there already.
TRANSACTION_ROWS = 3_000
STEPS = ("opened", "checked", "transaction_open", "records_sent", "committed")
VICTIMS = ("driver", "worker", "broker")


class World:
    """A broker, files, and what runs against them."""

    def __init__(self, folder: Path, start_broker: StartBroker) -> None:
        self.folder = folder
        self._start_broker = start_broker
        self.broker: BrokerProcess = start_broker(folder / "data")
        self.port, self.servers = self.broker.port, self.broker.address
        self.files = folder / "in"
        self.files.mkdir()
        for number in range(3):
            rows = [{"id": n % KEYS, "n": n} for n in range(number, ROWS, 3)]
            (self.files / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._drivers = Drivers("publish_driver.py", folder)

    def topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        return name

    def restart_broker(self) -> None:
        """Ends it without warning, and starts it again."""
        self.broker.kill()
        self.broker = self._start_broker(self.folder / "data", self.port)

    def start(self, topics: Sequence[str], *arguments: str) -> subprocess.Popen[str]:
        """A publish to one topic after the other, in a process group of its own."""
        rows = ("--transaction-rows", str(TRANSACTION_ROWS))
        return self._drivers.start(str(self.files), self.servers, *topics, *rows, *arguments, stdin=subprocess.PIPE)

    def close(self) -> None:
        self._drivers.close()

    def faults(self, topic: str) -> list[str]:
        """What is wrong with the topic; empty when nothing is."""
        found: list[str] = []
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for message in committed_records(self.servers, topic):
            row = json.loads(message.value())
            if message.key() != str(row["id"]).encode():
                found.append(f"{row} has the key {message.key()!r}")
            by_key[message.key()].append(row["n"])
        counted = Counter(n for numbers in by_key.values() for n in numbers)
        lost = sorted(set(range(ROWS)) - counted.keys())
        doubled = sorted(n for n, times in counted.items() if times > 1)
        if lost or doubled:
            found.append(f"lost: {len(lost)} {lost[:10]}, doubled: {len(doubled)} {doubled[:10]}")
        found += [f"{key!r} is out of order" for key, numbers in by_key.items() if numbers != sorted(numbers)]
        return found


@pytest.fixture
def world(start_broker: StartBroker, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, start_broker)
    yield made
    made.close()


class Followed:
    """What a run prints, as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._came = threading.Condition()
        self._is_over = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self.lines.append(line.strip())
                self._came.notify_all()
        with self._came:
            self._is_over = True
            self._came.notify_all()

    def await_line(self, line: str) -> None:
        """Wait for a line, or the end."""
        with self._came:
            assert self._came.wait_for(lambda: self._is_over or line in self.lines, END_S), f"no {line!r}"

    def end(self) -> tuple[int, str]:
        """Exit code and errors, once it has ended."""
        code = self._process.wait(END_S)
        self._reader.join()
        assert self._process.stderr is not None
        return code, self._process.stderr.read()

    def results(self) -> dict[str, dict[str, Any]]:
        """What it has published, by topic."""
        told = [json.loads(line) for line in self.lines if line.startswith("{")]
        return {each["topic"]: each for each in told}


def kill_from_outside(
    world: World, process: subprocess.Popen[str], followed: Followed, topic: str, victim: str, rng: random.Random
) -> None:
    """Kill a worker or the broker while the transactions of a topic are written."""
    followed.await_line(f"step {topic} transaction_open")
    time.sleep(rng.uniform(0.0, 2.0))
    if victim == "broker":
        world.restart_broker()
        return
    deadline_s = time.monotonic() + END_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(rng.choice(workers_of(process.pid)), signal.SIGKILL)
            return
        time.sleep(0.01)


def planned(rounds: int, rng: random.Random) -> list[tuple[str, str, int]]:
    """What is killed in each round: a victim, and for the driver the step and which time it comes there.

    All rounds of a short run are of the steps that hurt.
    """
    found = []
    steps = STEPS if rounds > len(VICTIMS) else STEPS[2:]
    for number in range(rounds):
        step = steps[number // len(VICTIMS) % len(steps)] if rounds > len(VICTIMS) else rng.choice(steps)
        found.append((VICTIMS[number % len(VICTIMS)], step, rng.randint(1, 2) if step in STEPS[2:] else 1))
    return found


def test_a_killed_publish_repeated_and_a_frozen_one_that_comes_back_leave_each_row_once(world: World) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    undone: list[str] = []
    done: list[str] = []
    for number, (victim, step, nth) in enumerate(planned(ROUNDS, rng)):
        topic = world.topic(f"round-{number}")
        at = ("--at", step, "--nth", str(nth)) if victim == "driver" else ()
        process = world.start([*undone, topic], *at)
        followed = Followed(process)
        if victim != "driver":
            kill_from_outside(world, process, followed, topic, victim, rng)
        code, err = followed.end()
        print(f"{number}: {victim} {step if victim == 'driver' else ''} {nth}: {code} {err.strip()[-200:]}")
        assert (code == -signal.SIGKILL) == (victim == "driver"), (followed.lines, err)
        assert "Traceback" not in err, (followed.lines, err)
        assert_repeated(followed.results(), undone, err)
        done += undone
        undone = [topic]

    # The last process stays alive through a kill, sends the records of the second transaction of a further topic, and
    # then stands still, as in a long pause of its machine.
    victim = rng.choice(VICTIMS[1:])
    last, frozen = world.topic("last"), world.topic("frozen")
    stop = ("--at", "records_sent", "--nth", "2", "--signal", "SIGSTOP", "--wait")
    process = world.start([*undone, last, frozen], *stop)
    followed = Followed(process)
    kill_from_outside(world, process, followed, last, victim, rng)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: is_stopped(process.pid), "the driver did not come to its step")
    assert_repeated(followed.results(), undone, "")
    after = Followed(world.start([last, frozen]))
    code, err = after.end()
    assert code == 0, err
    assert_repeated(after.results(), [last, frozen], err)
    told = after.results()[frozen]
    assert told["transactions"] == 2
    assert told["written"] < ROWS, "the first transaction was there"
    os.killpg(process.pid, signal.SIGCONT)
    code, err = followed.end()
    print(f"last: {victim}: {err.strip()[-400:]}")
    assert code == 1
    assert "Traceback" not in err, (followed.lines, err)
    [line] = [line for line in err.splitlines() if line.startswith(f"{frozen}: PublishFailed: ")]
    assert "another run of it has taken over" in line
    faults = {topic: world.faults(topic) for topic in (*done, *undone, last, frozen)}
    assert not any(faults.values()), faults


def assert_repeated(results: Mapping[str, Mapping[str, Any]], topics: Sequence[str], err: str) -> None:
    """The same command again ends well, and knows all rows."""
    for topic in topics:
        assert topic in results, f"{topic}: {err}"
        assert results[topic]["rows"] == ROWS
