"""kill -9 of a load: its driver at each step, a Python worker, the broker, the NameNode; then the same command again.

Whatever is killed: the target, read by pyarrow, fastavro and a replay of Delta's log, has each committed record once.
KILL_ROUNDS and KILL_SEED set how often and when. A process repeats the command that the one before it left undone, and
begins with the next.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fastavro
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.pipelines.file_systems.file_system import walk
from headwater.pipelines.file_systems.opening import file_system
from tests.end_to_end.delta_log import delta_rows
from tests.end_to_end.kill.killed_processes import END_S, Drivers, workers_of

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker
    from tests.hdfs import HdfsProcesses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 2)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))
PARTITIONS = 2
RECORDS = 30_000
FORMS = ("parquet", "delta", "avro")
FILE_STEPS = ("plan", "rows", "checksums", "confirmed", "commit", "move", "manifest")
TABLE_STEPS = ("plan", "table", "confirmed", "manifest")
VICTIMS = ("driver", "namenode", "worker", "broker")


class Load(NamedTuple):
    """A load as the driver is told it."""

    target: str
    topic: str
    form: str
    name: str


class World:
    """A broker, an HDFS, and the loads between them."""

    def __init__(self, folder: Path, start_broker: StartBroker, hdfs: HdfsProcesses) -> None:
        self.folder = folder
        self._start_broker = start_broker
        self._hdfs = hdfs
        self.broker: BrokerProcess = start_broker(folder / "data")
        self.port, self.servers = self.broker.port, self.broker.address
        self._drivers = Drivers("load_driver.py", folder)

    def topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        return name

    def produce(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 20})
        for number in range(RECORDS):
            producer.produce(topic, b"x" * 20, str(number).encode(), partition=number % PARTITIONS)
            if number % 5_000 == 0:
                producer.flush()
        assert producer.flush(60) == 0

    def kill_soon(self, victim: str, session: int, rng: random.Random) -> None:
        """Kill the broker or the NameNode, which come back, or a worker of a load."""
        time.sleep(rng.uniform(0.0, 3.0))
        if victim == "broker":
            self.broker.kill()
            self.broker = self._start_broker(self.folder / "data", self.port)
        elif victim == "namenode":
            self._hdfs.kill()
            time.sleep(rng.uniform(0.0, 2.0))
            self._hdfs.start_namenode()
            self._hdfs.await_ready()
        else:
            for _ in range(1_000):
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(rng.choice(workers_of(session)), signal.SIGKILL)
                    return
                time.sleep(0.01)

    def start(self, loads: Sequence[Load], *arguments: str) -> subprocess.Popen[str]:
        """One load after the other, in a process group of its own."""
        given = [argument for load in loads for argument in ("--load", *load)]
        return self._drivers.start(self.servers, *given, *arguments)

    def close(self) -> None:
        self._drivers.close()

    def places(self, target: str, form: str) -> Counter[tuple[int, int]]:
        """How often each record is there, by partition and offset."""
        files, local = file_system(target), self.folder / target.rpartition("/")[2]
        for name, _ in walk(files, target):
            with files.open(f"{target}/{name}") as opened:
                (local / name).parent.mkdir(parents=True, exist_ok=True)
                (local / name).write_bytes(opened.read())
        if form == "delta":
            rows: list[Any] = delta_rows(local)
        else:
            rows = []
            for path in local.glob("load-*"):
                with path.open("rb") as file:
                    rows += pq.read_table(path).to_pylist() if form == "parquet" else list(fastavro.reader(file))
        return Counter((row["partition"], row["offset"]) for row in rows)


@pytest.fixture
def world(
    start_broker: StartBroker, tmp_path: Path, hdfs: HdfsProcesses, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    made = World(tmp_path, start_broker, hdfs)
    yield made
    made.close()


def planned(rounds: int, rng: random.Random) -> Iterator[tuple[str, str, str, int]]:
    """What is killed in each round: victim, format, and for the driver the step and which time it comes there."""
    for number in range(rounds):
        form = FORMS[number // len(VICTIMS) % len(FORMS)] if rounds > len(VICTIMS) else rng.choice(FORMS)
        step = rng.choice(TABLE_STEPS if form == "delta" else FILE_STEPS)
        yield VICTIMS[number % len(VICTIMS)], form, step, 2 if step == "move" and rng.random() < 0.5 else 1


def followed(process: subprocess.Popen[str], load: Load, kill: Callable[[], None] | None) -> tuple[int, str, str]:
    """Exit code and output of a run; `kill` is called when the rows of a load are read and written."""
    writing = threading.Event()
    lines: list[str] = []

    def follow() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.strip() in (f"step {load.target} rows", f"step {load.target} table"):
                writing.set()
        writing.set()

    reader = threading.Thread(target=follow)
    reader.start()
    if kill is not None:
        assert writing.wait(END_S), "the load did not begin to write"
        kill()
    process.wait(END_S)
    reader.join()
    assert process.stderr is not None
    return process.returncode, "".join(lines), process.stderr.read()


def test_kill_9_and_the_same_command_again_load_each_record_once(world: World, hdfs_folder: str) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    undone: list[Load] = []
    for number, (victim, form, step, nth) in enumerate(planned(ROUNDS, rng)):
        topic, target = world.topic(f"round-{number}"), f"{hdfs_folder}/round-{number}"
        world.produce(topic)
        load = Load(target, topic, form, "a")
        told = f"round {number}: {victim} {form} {step if victim == 'driver' else ''} {nth}"
        at = ("--at", step, "--nth", str(nth)) if victim == "driver" else ()
        process = world.start([*undone, load], *at)
        kill = None if victim == "driver" else partial(world.kill_soon, victim, process.pid, rng)
        code, out, err = followed(process, load, kill)
        print(f"{told}: {err.strip()[-160:]}")
        if victim == "driver":
            # One file may be all that a small load has.
            assert code == -signal.SIGKILL or (nth == 2 and code == 0), (told, out, err)
        else:
            assert "Traceback" not in err, (told, err)
            assert code == 0 or f"a of {target} failed: " in err, (told, err)
        assert_loaded(world, undone, out, err)
        world.produce(topic)  # what a repeated command must not load: its range was written down
        undone = [load, load._replace(name="b")]
    code, out, err = followed(world.start(undone), undone[-1], None)
    assert code == 0, (out, err)
    assert_loaded(world, undone, out, err)


def assert_loaded(world: World, loads: Sequence[Load], out: str, err: str) -> None:
    """The loads of a target, which a run has repeated, ended well; the target has each record once."""
    if not loads:
        return
    outcomes = [json.loads(line) for line in out.splitlines() if line.startswith("{")][: len(loads)]
    assert len(outcomes) == len(loads), (out, err)
    # The first is what was killed: at its last steps it has been loaded.
    assert outcomes[0]["outcome"] in ("loaded", "already loaded", "nothing new"), (outcomes, err)
    assert {each["outcome"] for each in outcomes[1:]} <= {"loaded", "nothing new"}, (outcomes, err)
    places = world.places(loads[0].target, loads[0].form)
    wanted = {(p, o) for p in range(PARTITIONS) for o in range(2 * RECORDS // PARTITIONS)}
    lost, doubled = wanted - places.keys(), [place for place, times in places.items() if times > 1]
    assert (len(lost), len(doubled), len(places)) == (0, 0, len(wanted)), loads[0]
