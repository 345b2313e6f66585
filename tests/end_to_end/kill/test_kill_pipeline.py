"""kill -9 of a pipeline's driver, process group and all, in each window of a micro-batch and at random; of the broker.

Whatever is killed: the output topics, read with read_committed, the dead letters and the Delta tables hold exactly what
the source has, each key in the source's order. KILL_ROUNDS and KILL_SEED set how often and when; a run of the suite
takes the windows that hurt most.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.end_to_end.delta_log import delta_rows
from tests.end_to_end.kill.killed_processes import END_S, committed_records, ended, wait_until
from tests.stopped_process import is_stopped

if TYPE_CHECKING:
    from tests.conftest import StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 2)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))

# In the order of a micro-batch. `log entry` is `tables_written` with the table's last commit taken away afterwards: the
# Parquet files are there, and nothing says so.
WINDOWS = ("start", "begun", "computed", "log entry", "tables_written", "transaction_open", "records_sent", "committed",
           "done", "commits")  # fmt: skip
HURTING = ("log entry", "records_sent", "committed", "commits")

TOPICS = ("numbers", "middle", "left", "right", "last", "numbers.dead_letters")
PARTITIONS = 3
KEYS = 11
PIPELINE = """\
pipeline: killed
topics:
  numbers: {partitions: 3, value: json, schema: number.json}
  middle: {partitions: 3}
  left: {partitions: 3}
  right: {partitions: 3}
  last: {partitions: 3}
stages:
  - name: first
    from: {topic: numbers, max_offsets_per_trigger: 150}
    expect: [{name: positive, that: n >= 0}]
    sql: SELECT * FROM numbers
    to:
      - {topic: middle, key: k}
      - {delta: lake/first}
  - name: second
    from: {topic: middle}
    sql: SELECT n, k FROM middle
    to:
      - {topic: left, key: k}
      - {topic: right, key: k, value: CAST(n AS STRING), headers: {k: k}}
  - name: third
    from: {topic: left}
    to:
      - {topic: last, key: k}
      - {delta: lake/third}
"""
SCHEMA = {"type": "object", "required": ["n", "k"], "properties": {"n": {"type": "integer"}, "k": {"type": "string"}}}


def source_record(number: int) -> tuple[bytes, bytes]:
    """Each number has one key for good; some records are no JSON, some break the expectation."""
    key = f"k{number % KEYS}"
    if number % 50 == 49:
        return key.encode(), b"{%d" % number
    value = {"n": -number - 1 if number % 70 == 69 else number, "k": key}
    return key.encode(), json.dumps(value).encode()


def is_good(number: int) -> bool:
    return number % 50 != 49 and number % 70 != 69


class World:
    """A broker, a pipeline's folder, and what was produced so far."""

    def __init__(self, folder: Path, start_broker: StartBroker) -> None:
        self.folder = folder
        self._start_broker = start_broker
        self.broker = start_broker(folder / "data")
        self.port, self.servers = self.broker.port, self.broker.address
        self.produced = 0
        self.state = folder / "state"
        (folder / "killed.yaml").write_text(PIPELINE)
        (folder / "number.json").write_text(json.dumps(SCHEMA))
        admin = AdminClient({"bootstrap.servers": self.servers})
        made = admin.create_topics([NewTopic(t, 1 if t.endswith("letters") else PARTITIONS, 1) for t in TOPICS])
        for future in made.values():
            future.result(30)
        self._processes: list[subprocess.Popen[str]] = []

    def restart_broker(self) -> None:
        """Ends it without warning, and starts it again."""
        self.broker.kill()
        self.broker = self._start_broker(self.folder / "data", self.port)

    def produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for number in range(self.produced, self.produced + count):
            key, value = source_record(number)
            producer.produce("numbers", key=key, value=value)
            producer.poll(0)
        assert producer.flush(60) == 0
        self.produced += count

    def start(self, *arguments: str, state: Path | None = None) -> subprocess.Popen[str]:
        """A run of the pipeline, in a process group of its own."""
        script = Path(__file__).with_name("pipeline_driver.py")
        process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(self.folder / "killed.yaml"), self.servers,
             str(state or self.state), *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code and output of a run."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=END_S)
        return process.returncode, out, err

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    # -- the verdict -------------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """What is wrong with the outputs, now that everything has been read; empty when nothing is."""
        good = [number for number in range(self.produced) if is_good(number)]
        source = {(m.partition(), m.offset()): m.value() for m in committed_records(self.servers, "numbers")}
        found = []
        for topic in ("middle", "left", "right", "last"):
            records = committed_records(self.servers, topic)
            numbers = [number_of(message.value()) for message in records]
            found += differences(topic, numbers, good)
            by_key: dict[bytes, list[int]] = defaultdict(list)
            for message, number in zip(records, numbers, strict=True):
                by_key[message.key()].append(number)
                if message.key() != f"k{number % KEYS}".encode():
                    found.append(f"{topic}: {number} has the key {message.key()!r}")
            found += [
                f"{topic}: the order of {key!r} is not the source's"
                for key, all_ in by_key.items()
                if sorted(all_) != all_
            ]
        bad = [value for value in source.values() if not is_good(number_of(value))]
        letters = [message.value() for message in committed_records(self.servers, "numbers.dead_letters")]
        found += differences("dead letters", letters, bad)
        for table in ("first", "third"):
            rows = delta_rows(self.folder / "lake" / table)
            found += differences(f"table {table}", [row["n"] for row in rows], good)
        origins = Counter((row["_partition"], row["_offset"]) for row in delta_rows(self.folder / "lake" / "first"))
        if set(origins.values()) - {1}:
            found.append("table first: rows of one source record stand twice")
        return found


def number_of(value: bytes) -> int:
    """The number that a value of any of the topics is about."""
    if value.startswith(b"{") and not value.startswith(b'{"'):
        return int(value[1:])
    number = json.loads(value)["n"] if value.startswith(b"{") else int(value)
    return int(number) if number >= 0 else -int(number) - 1


def differences(where: str, found: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    """How two multisets differ, in a line each.

    >>> differences("t", [1, 1, 3], [1, 2])
    ['t: lost: [2]', 't: doubled or foreign: [1, 3]']
    """
    have, want = Counter(found), Counter(expected)
    said = []
    if want - have:
        said.append(f"{where}: lost: {sorted((want - have).elements())[:10]}")
    if have - want:
        said.append(f"{where}: doubled or foreign: {sorted((have - want).elements())[:10]}")
    return said


@pytest.fixture
def world(start_broker: StartBroker, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, start_broker)
    yield made
    made.close()


def take_away_last_commit(table: Path) -> None:
    """As if the driver had died between the Parquet files and the log entry."""
    last = max((table / "_delta_log").glob("*.json"))
    last.unlink()
    for leftover in (table / "_delta_log").glob(f".{last.name}*"):
        leftover.unlink()
    for leftover in (table / "_delta_log").glob(f"{last.stem}*.crc"):
        leftover.unlink()


def test_kill_9_in_each_window_of_a_micro_batch_loses_and_doubles_nothing(world: World) -> None:
    windows = HURTING if len(WINDOWS) > ROUNDS else WINDOWS
    world.produce(200 * len(windows) + 400)
    reached = []
    for window in windows:
        step = "tables_written" if window == "log entry" else window
        code, out, err = world.run("--stage", "first", "--at", step)
        assert code == -signal.SIGKILL, f"{window}: the run ended with {code}\n{out}{err}"
        reached.append((window, out.strip().splitlines()[-1:]))
        if window == "log entry":
            take_away_last_commit(world.folder / "lake" / "first")
    print(f"\nkilled at {reached}")
    code, _, err = world.run()
    assert code == 0, err
    assert world.faults() == []


def test_kill_9_of_driver_and_broker_at_random_moments_loses_and_doubles_nothing(world: World) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    world.produce(300)
    killed_brokers = 0
    started_s = time.monotonic()
    for number in range(ROUNDS):
        process = world.start("--continuous")
        started = threading.Event()
        reader = threading.Thread(target=drain, args=(process, started))
        reader.start()
        # Starting Spark takes longer than what is to be hit.
        assert started.wait(END_S), "no batch began"
        for _ in range(3):
            world.produce(rng.randrange(20, 120))
            time.sleep(rng.uniform(0.0, 1.5))
        if number == 0 or rng.random() < 0.3:
            world.restart_broker()
            killed_brokers += 1
            time.sleep(rng.uniform(0.0, 3.0))
        assert process.poll() is None, "the run ended by itself"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
    code, _, err = world.run()
    assert code == 0, err
    seconds = time.monotonic() - started_s
    print(f"{ROUNDS} drivers and {killed_brokers} brokers killed, {world.produced} records, {seconds:.0f} s")
    assert world.faults() == []


def drain(process: subprocess.Popen[str], started: threading.Event) -> None:
    """Reads what a run prints; `started` is set by its first batch, or its end."""
    assert process.stdout is not None
    for _ in process.stdout:
        started.set()
    started.set()


def test_a_driver_that_was_thought_dead_is_fenced_when_it_comes_back(world: World) -> None:
    world.produce(600)
    # It sends the records of a batch, and then stands still, as in a long pause of its machine.
    zombie = world.start("--stage", "first", "--at", "records_sent", "--signal", "SIGSTOP")
    wait_until(lambda: is_stopped(zombie.pid), "the driver did not come to its step")
    copy = world.folder / "state-elsewhere"
    shutil.copytree(world.state, copy)
    code, _, err = ended(world.start("--stage", "first", state=copy))
    assert code == 0, err
    os.killpg(zombie.pid, signal.SIGCONT)
    code, _, err = ended(zombie)
    assert code == 1
    assert "another run of it has taken over" in err
    code, _, err = ended(world.start(state=copy))
    assert code == 0, err
    assert world.faults() == []
