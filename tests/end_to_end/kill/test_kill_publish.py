"""kill -9 of a publish: its driver at each step, a Python worker, the broker; then the same command again.

Whatever is killed: the topic, read with read_committed, has each row of the files once, those of a key in their order.
KILL_ROUNDS and KILL_SEED set how often and when.
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
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.end_to_end.kill.killed_processes import END_S, Drivers, committed_records, ended, wait_until, workers_of
from tests.stopped_process import is_stopped

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 2)
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

    def start(self, topic: str, *arguments: str) -> subprocess.Popen[str]:
        """A publish, in a process group of its own."""
        rows = ("--transaction-rows", str(TRANSACTION_ROWS))
        return self._drivers.start(str(self.files), self.servers, topic, *rows, *arguments)

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


def follow(process: subprocess.Popen[str], steps: list[str], opened: threading.Event) -> None:
    """Reads what a publish prints; `opened` is set when its first transaction is open, or at its end."""
    assert process.stdout is not None
    for line in process.stdout:
        steps.append(line.strip())
        if line.startswith("step transaction_open"):
            opened.set()
    opened.set()


def kill_from_outside(world: World, topic: str, victim: str, rng: random.Random) -> tuple[int, str, list[str]]:
    """Kills a worker or the broker while the transactions are written; gives the end of the publish."""
    process = world.start(topic)
    steps: list[str] = []
    opened = threading.Event()
    reader = threading.Thread(target=follow, args=(process, steps, opened))
    reader.start()
    assert opened.wait(END_S), "no transaction was begun"
    time.sleep(rng.uniform(0.0, 2.0))
    if victim == "broker":
        world.restart_broker()
    else:
        deadline_s = time.monotonic() + END_S
        while process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(rng.choice(workers_of(process.pid)), signal.SIGKILL)
                break
            time.sleep(0.01)
    process.wait(END_S)
    reader.join()
    assert process.stderr is not None
    return process.returncode, process.stderr.read(), steps


def planned(rounds: int, rng: random.Random) -> list[tuple[str, str, int]]:
    """What is killed in each round: a victim, and for the driver the step and which time it comes there.

    All rounds of a short run are of the steps that hurt.
    """
    found = []
    for number in range(rounds):
        victim = VICTIMS[number % len(VICTIMS)] if rounds > len(VICTIMS) or number == 0 else rng.choice(VICTIMS[1:])
        steps = STEPS if rounds > len(VICTIMS) else STEPS[2:]
        step = steps[number // len(VICTIMS) % len(steps)] if rounds > len(VICTIMS) else rng.choice(steps)
        found.append((victim, step, rng.randint(1, 2) if step in STEPS[2:] else 1))
    return found


def test_kill_9_and_the_same_command_again_leave_each_row_once(world: World) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    for number, (victim, step, nth) in enumerate(planned(ROUNDS, rng)):
        topic = world.topic(f"round-{number}")
        if victim == "driver":
            code, out, err = ended(world.start(topic, "--at", step, "--nth", str(nth)))
            assert code == -signal.SIGKILL, f"{step} {nth}: the publish ended with {code}\n{out}{err}"
        else:
            code, err, steps = kill_from_outside(world, topic, victim, rng)
            assert "Traceback" not in err, (steps, err)
        print(f"{number}: {victim} {step if victim == 'driver' else ''} {nth}: {code} {err.strip()[-200:]}")
        if code != 0:
            code, out, err = ended(world.start(topic))
            assert code == 0, f"{victim}: the publish ended with {code}\n{out}{err}"
            assert json.loads(out.splitlines()[-1])["rows"] == ROWS
        assert world.faults(topic) == [], victim


def test_a_driver_that_stood_still_adds_nothing_when_it_comes_back(world: World) -> None:
    topic = world.topic("frozen")
    # It has sent the records of its second transaction, and then stands still, as in a long pause of its machine.
    frozen = world.start(topic, "--at", "records_sent", "--nth", "2", "--signal", "SIGSTOP")
    wait_until(lambda: is_stopped(frozen.pid), "the driver did not come to its step")
    code, out, err = ended(world.start(topic))
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert (told["rows"], told["transactions"]) == (ROWS, 2)
    assert told["written"] < ROWS, "the first transaction was there"
    os.killpg(frozen.pid, signal.SIGCONT)
    code, _, err = ended(frozen)
    assert code == 1
    [line] = [line for line in err.splitlines() if line.startswith("PublishFailed")]
    assert "another run of it has taken over" in line
    assert world.faults(topic) == []
