"""kill -9 of an archiver and of its broker, while producers write and the table is compacted and vacuumed.

A reader looks at the table all the while: no record is there twice, and none that the table's offsets have passed is
missing. At the end the table has each committed record once, with its value. KILL_ROUNDS and KILL_SEED set how often
and when.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.end_to_end.conftest import Headwater
from tests.end_to_end.kill.killed_processes import committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ROUNDS") or 3)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))
PARTITIONS = 3
TOPIC = "flights"
TEXT = f"""
topics: {{{TOPIC}: {{value: string}}}}
archive: {{root: lake, freshness: 1 second, topics: {{{TOPIC}: }}}}
"""
BEGIN_S = 300
VICTIMS = ("archiver", "broker", "archiver")
#: Few enough that a reader of the whole table keeps up.
PAUSE_S = 0.02


class World:
    """A broker, an archiver, producers, a reader, and a compactor of the table."""

    def __init__(self, folder: Path, start_broker: StartBroker) -> None:
        self.folder = folder
        self.table = str(folder / "lake" / TOPIC)
        self._start_broker = start_broker
        self.broker: BrokerProcess = start_broker(folder / "data")
        self.port, self.servers = self.broker.port, self.broker.address
        self.archiver: subprocess.Popen[str] | None = None
        self.log = folder / "archiver.log"
        self.ending = threading.Event()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.looks = self.compactions = 0
        (folder / "archive.yaml").write_text(TEXT)
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)

    # -- what is killed

    def start_archiver(self) -> None:
        with self.log.open("ab") as output:
            self.archiver = subprocess.Popen(
                [sys.executable, "-P", "-m", "headwater", "archive", "run", "archive.yaml", "-b", self.servers],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )

    def kill_archiver(self) -> None:
        if self.archiver is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.archiver.pid, signal.SIGKILL)
            self.archiver.wait()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker = self._start_broker(self.folder / "data", self.port)

    def commits(self) -> int:
        return self.log.read_text(errors="replace").count(" more rows") if self.log.exists() else 0

    # -- what goes on meanwhile

    def produce(self) -> None:
        """Numbers, acknowledged one by one."""
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 5})

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                self.acknowledged[partition, offset] = value

        number = 0
        while not self.ending.is_set():
            producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=delivered)
            producer.poll(PAUSE_S)
            number += 1
        assert producer.flush(120) == 0

    def transact(self) -> None:
        """Transactions, every second one aborted; after an error with another producer."""
        number = 0
        while not self.ending.is_set():
            producer = Producer({"bootstrap.servers": self.servers, "transactional.id": "kill-archive"})
            try:
                producer.init_transactions(60)
                while not self.ending.is_set():
                    producer.begin_transaction()
                    for _ in range(5):
                        producer.produce(TOPIC, f"t{number}".encode(), partition=number % PARTITIONS)
                        number += 1
                    producer.flush(30)
                    if number % 2:
                        producer.commit_transaction(30)
                    else:
                        producer.abort_transaction(30)
                    time.sleep(5 * PAUSE_S)
            except KafkaException:
                continue  # its open transaction is aborted by the next one

    def read(self) -> None:
        """Look at the table: each place once, and all that was acknowledged before the table's offsets."""
        while not self.ending.wait(0.3):
            known = dict(self.acknowledged)
            try:
                table = DeltaTable(self.table)
                offsets = table_offsets(self.table)
                rows = table.to_pyarrow_table(columns=["_partition", "_offset"])
            except (TableNotFoundError, FileNotFoundError):
                continue  # not made yet, or vacuumed while it was read
            assert offsets is not None
            places = Counter(zip(rows["_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True))
            doubled = [place for place, times in places.items() if times > 1]
            assert not doubled, f"version {table.version()}: twice: {sorted(doubled)[:5]}"
            if offsets.version == table.version():
                passed = {place for place in known if place[1] < offsets.ends.get(place[0], 0)}
                assert passed <= places.keys(), f"missing: {sorted(passed - places.keys())[:5]}"
            self.looks += 1

    def compact(self) -> None:
        """Compact and vacuum the table, as an administrator's tool does; on a local disk under the table's lock.

        Only files that a compaction has replaced are removed at once: those of a round are not in the table yet.
        """
        while not self.ending.wait(2.0):
            try:
                with table_lock(self.table):
                    table = DeltaTable(self.table)
                    table.optimize.compact()
                    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
                self.compactions += 1
            except (DeltaError, FileNotFoundError, OSError):
                continue  # no table yet

    def close(self) -> None:
        self.ending.set()
        self.kill_archiver()


@pytest.fixture
def world(tmp_path: Path, start_broker: StartBroker) -> Iterator[World]:
    made = World(tmp_path, start_broker)
    yield made
    made.close()


def test_kill_9_of_archiver_and_broker_leave_each_record_once(world: World, headwater: Headwater) -> None:
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    rng = random.Random(SEED)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(each) for each in (world.produce, world.transact, world.read, world.compact)]
        try:
            world.start_archiver()
            for number in range(ROUNDS):
                victim = VICTIMS[number % len(VICTIMS)]
                commits = world.commits()
                if rng.random() < 0.7:
                    until(lambda seen=commits: world.commits() > seen, running=running, patience_s=BEGIN_S)  # type: ignore[misc]
                time.sleep(rng.uniform(0.0, 2.5))
                print(f"round {number}: {victim} after {world.commits() - commits} commits")
                if victim == "archiver":
                    world.kill_archiver()
                    world.start_archiver()
                else:
                    world.kill_broker()
            commits = world.commits()
            until(lambda: world.commits() > commits, running=running, patience_s=BEGIN_S)
        except BaseException:
            print(world.log.read_text(errors="replace"))
            raise
        finally:
            world.ending.set()
        for each in running:
            each.result()
    world.kill_archiver()
    done = headwater("archive", "run", "archive.yaml", "--once", "-b", world.servers)
    assert done.returncode == 0, done.stderr
    rows = DeltaTable(world.table).to_pyarrow_table(columns=["_partition", "_offset", "value"]).to_pylist()
    stored = {(row["_partition"], row["_offset"]): row["value"].encode() for row in rows}
    assert len(stored) == len(rows), "a record is there twice"
    committed = {(e.partition(), e.offset()): e.value() for e in committed_records(world.servers, TOPIC)}
    assert stored == committed
    assert world.acknowledged.items() <= stored.items()
    assert world.looks
    print(f"{len(stored):,} records, {world.looks} looks, {world.compactions} compactions")
