"""kill -9 of an archiver and of brokers, while producers write and the table is compacted and vacuumed.

On one node, and on three with a ZooKeeper. All the while one reader looks at the table: no record is there twice, and
none that the table's offsets have passed is missing; and a process of its own, `unified_checker.py`, at the unified
table, which must have each committed record once. At the end, so does the table. KILL_ROUNDS and KILL_SEED set how
often and when.
"""

from __future__ import annotations

import contextlib
import json
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
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.coordinators import TRANSACTION, find_coordinator
from headwater.logtier.client.errors import BrokerError
from headwater.pipelines.locks.table_lock import table_lock
from headwater.pipelines.seam.table_offsets import table_offsets
from tests.end_to_end.conftest import Headwater
from tests.end_to_end.kill.claims import Claims
from tests.end_to_end.kill.killed_processes import CLUSTER, committed_records
from tests.faults.full_isrs import await_full_isrs
from tests.faults.processes import SESSION_S, FaultyCluster
from tests.waiting import until

if TYPE_CHECKING:
    from tests.conftest import BrokerProcess, StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("KILL_ARCHIVE_ROUNDS") or os.environ.get("KILL_ROUNDS") or 3)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))
PARTITIONS = 3
TOPIC = "flights"
TEXT = f"""
topics: {{{TOPIC}: {{value: string}}}}
archive: {{root: lake, freshness: 1 second, topics: {{{TOPIC}: }}}}
"""
BEGIN_S = 300
#: On one node, and on three, whose brokers take longer.
VICTIMS = {1: ("archiver", "broker", "archiver"), 3: ("broker", "archiver", "broker")}
#: Which broker of three is killed, one role after the other.
ROLES = ("leader", "coordinator", "any")
TRANSACTIONAL_ID = "kill-archive"
#: Looks at the unified table, of which one may fail because its files are removed.
LOOKS_A_VACUUM = 3
#: Few enough that a reader of the whole table keeps up.
PAUSE_S = 0.02


class Nodes(Protocol):
    """The brokers of a test."""

    count: int

    @property
    def servers(self) -> str: ...

    def kill_one(self, rng: random.Random) -> str:
        """Kill a broker by kill -9, and start it again; which one."""
        ...


class OneNode:
    """One broker, which keeps its port."""

    count = 1

    def __init__(self, folder: Path, start_broker: StartBroker) -> None:
        self._folder = folder
        self._start = start_broker
        self._broker: BrokerProcess = start_broker(folder)
        self._port = self._broker.port

    @property
    def servers(self) -> str:
        return self._broker.address

    def kill_one(self, rng: random.Random) -> str:
        self._broker.kill()
        self._broker = self._start(self._folder, self._port)
        return "the broker"


class ThreeNodes:
    """A cluster of which one broker after the other is killed, each when all ISRs are full."""

    count = 3

    def __init__(self, cluster: FaultyCluster) -> None:
        self._cluster = cluster
        self._kills = 0

    @property
    def servers(self) -> str:
        return self._cluster.bootstrap_servers

    def kill_one(self, rng: random.Random) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers})
        await_full_isrs(admin, self.count, PARTITIONS)
        role = ROLES[self._kills % len(ROLES)]
        self._kills += 1
        dead = self._broker_of(role, admin, rng)
        broker = self._cluster.brokers[dead]
        broker.kill()
        # Now and then it is back before its session is over.
        time.sleep(rng.uniform(0, 2 * SESSION_S))
        broker.start()
        broker.await_ready()
        return f"broker {dead} ({role})"

    def _broker_of(self, role: str, admin: AdminClient, rng: random.Random) -> int:
        if role == "leader":
            return admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[rng.randrange(PARTITIONS)].leader
        if role == "any":
            return rng.choice(sorted(self._cluster.brokers))
        found: list[int] = []

        def finds() -> bool:
            with contextlib.suppress(BrokerError):  # it moves
                found.append(find_coordinator(client, TRANSACTION, TRANSACTIONAL_ID))
            return bool(found)

        with ClusterClient(ClientConfig(parse_bootstrap_servers(self.servers))) as client:
            until(finds, "the coordinator was not found", patience_s=BEGIN_S)
        return found[0]


class World:
    """Brokers, an archiver, producers, readers, and a compactor of the table."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self.folder = folder
        self.nodes = nodes
        self.table = str(folder / "lake" / TOPIC)
        self.servers = nodes.servers
        self.archiver: subprocess.Popen[str] | None = None
        self.log = folder / "archiver.log"
        self.ending = threading.Event()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.looks = self.compactions = self.vacuums = self._vacuumed = 0
        (folder / "archive.yaml").write_text(TEXT)
        self.claims = Claims(folder / "claims")
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, nodes.count)])[TOPIC].result(30)
        self.checker = Checker(folder, self.servers)

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

    def commits(self) -> int:
        return self.log.read_text(errors="replace").count(" more rows") if self.log.exists() else 0

    # -- what goes on meanwhile

    def produce(self) -> None:
        """Numbers, acknowledged one by one."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
        )

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                self.acknowledged[partition, offset] = value
                self.claims.acknowledged(partition, offset, value.decode())

        number = 0
        while not self.ending.is_set():
            producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=delivered)
            producer.poll(0)
            time.sleep(PAUSE_S)
            number += 1
        assert producer.flush(120) == 0

    def transact(self) -> None:
        """Transactions, every second one aborted; after an error with another producer."""
        number = 0
        while not self.ending.is_set():
            producer = Producer({"bootstrap.servers": self.servers, "transactional.id": TRANSACTIONAL_ID})
            try:
                self.settle(producer)
                while not self.ending.is_set():
                    number += 5
                    self._transaction(producer, number)
                    time.sleep(5 * PAUSE_S)
            except KafkaException:
                continue  # its open transaction is aborted by the next one

    def _transaction(self, producer: Producer, number: int) -> None:
        commits = number % 2 == 1
        records: list[tuple[int, int, str]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                records.append((partition, offset, value.decode()))
                self.claims.completed()

        self.claims.begins()
        producer.begin_transaction()
        for each in range(number, number + 5):
            if not commits:
                self.claims.aborts(f"t{each}")
            producer.produce(TOPIC, f"t{each}".encode(), partition=each % PARTITIONS, on_delivery=delivered)
        producer.flush(30)
        if not commits:
            producer.abort_transaction(30)
            return
        producer.commit_transaction(30)
        assert len(records) == 5
        for record in records:
            self.claims.acknowledged(*record)

    def settle(self, producer: Producer) -> None:
        """End what an earlier producer left open; all that is acknowledged is due then."""
        self.claims.begins()
        producer.init_transactions(60)
        self.claims.completed()

    def read(self) -> None:
        """Look at the table: each place once, and all that was acknowledged before the table's offsets."""
        while not self.ending.wait(1.0):
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

        Only files that a compaction has replaced are removed at once: those of a round are not in the table yet. With
        no retention, VACUUM fails the look at the unified table that it falls into, and leaves the next ones alone:
        the checker gets on, however slow the machine is.
        """
        while not self.ending.wait(2.0):
            try:
                with table_lock(self.table):
                    table = DeltaTable(self.table)
                    table.optimize.compact()
                    looks = self.checker.begun()
                    if looks >= self._vacuumed + LOOKS_A_VACUUM:
                        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
                        self._vacuumed = looks
                        self.vacuums += 1
                self.compactions += 1
            except (DeltaError, FileNotFoundError, OSError):
                continue  # no table yet

    def close(self) -> None:
        self.ending.set()
        self.kill_archiver()
        self.checker.close()


class Checker:
    """The process that looks at the unified table. Invariant: none is left after `close`."""

    def __init__(self, folder: Path, servers: str) -> None:
        self._said = folder / "checker.jsonl"
        self._errors = folder / "checker.err"
        self._rows = folder / "rows.json"
        script = Path(__file__).with_name("unified_checker.py")
        arguments = [servers, "archive.yaml", TOPIC, str(folder / "claims"), str(self._rows)]
        with self._said.open("wb") as said, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(script), *arguments],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=errors,
                start_new_session=True,
            )

    def said(self) -> list[dict[str, Any]]:
        """The objects that it has printed, as far as their lines are whole."""
        text = self._said.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def begun(self) -> int:
        """The number of the look that began last."""
        return max((each["begins"] for each in self.said() if "begins" in each), default=0)

    def is_whole_after(self, number: int) -> bool:
        """Whether a look that began after that one has read the table, and found it right."""
        said = self.said()
        faults = [each["faults"] for each in said if each.get("faults")]
        assert not faults, f"the unified table: {faults}"
        assert self._process.poll() is None, f"the checker ended: {self._errors.read_text()[-3000:]}"
        return any(each.get("ends", 0) > number and "rows" in each for each in said)

    def last_rows(self) -> dict[tuple[int, int], bytes]:
        """What a last look finds; the process ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(BEGIN_S)
        said = self.said()
        assert code == 0, f"{[each for each in said if each.get('faults')]} {said[-2:]} {self._errors.read_text()}"
        rows = json.loads(self._rows.read_text())
        found = {(partition, offset): value.encode() for partition, offset, value in rows}
        assert len(found) == len(rows)
        return found

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@pytest.fixture(params=[1, 3], ids=["one_node", "three_nodes"])
def world(request: pytest.FixtureRequest, tmp_path: Path, start_broker: StartBroker) -> Iterator[World]:
    with contextlib.ExitStack() as ending:
        if request.param == 1:
            nodes: Nodes = OneNode(tmp_path / "data", start_broker)
        else:
            cluster = FaultyCluster(tmp_path, properties=CLUSTER)
            ending.callback(cluster.end)
            cluster.start()
            nodes = ThreeNodes(cluster)
        made = World(tmp_path, nodes)
        ending.callback(made.close)
        yield made


def test_kill_9_of_archiver_and_broker_leave_each_record_once(world: World, headwater: Headwater) -> None:
    print(f"\nKILL_SEED={SEED}, {ROUNDS} rounds on {world.nodes.count}")
    rng = random.Random(SEED)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(each) for each in (world.produce, world.transact, world.read, world.compact)]
        try:
            world.start_archiver()
            until(lambda: world.checker.is_whole_after(0), running=running, patience_s=BEGIN_S)
            for number in range(ROUNDS):
                victims = VICTIMS[world.nodes.count]
                victim = victims[number % len(victims)]
                commits = world.commits()
                if rng.random() < 0.7:
                    until(lambda seen=commits: world.commits() > seen, running=running, patience_s=BEGIN_S)  # type: ignore[misc]
                time.sleep(rng.uniform(0.0, 2.5))
                commits = world.commits() - commits
                if victim == "archiver":
                    world.kill_archiver()
                    world.start_archiver()
                else:
                    victim = world.nodes.kill_one(rng)
                print(f"round {number}: {victim} after {commits} commits", flush=True)
                # The kill fell between two looks, or into one: another has begun after it, and read the table whole.
                begun = world.checker.begun()
                until(lambda seen=begun: world.checker.is_whole_after(seen), running=running, patience_s=BEGIN_S)  # type: ignore[misc]
            commits = world.commits()
            until(lambda: world.commits() > commits and world.vacuums > 0, running=running, patience_s=BEGIN_S)
        except BaseException:
            print(world.log.read_text(errors="replace"))
            raise
        finally:
            world.ending.set()
        for each in running:
            each.result()
    world.settle(Producer({"bootstrap.servers": world.servers, "transactional.id": TRANSACTIONAL_ID}))
    unified = world.checker.last_rows()
    world.kill_archiver()
    done = headwater("archive", "run", "archive.yaml", "--once", "-b", world.servers)
    assert done.returncode == 0, done.stderr
    rows = DeltaTable(world.table).to_pyarrow_table(columns=["_partition", "_offset", "value"]).to_pylist()
    stored = {(row["_partition"], row["_offset"]): row["value"].encode() for row in rows}
    assert len(stored) == len(rows), "a record is there twice"
    committed = {(e.partition(), e.offset()): e.value() for e in committed_records(world.servers, TOPIC)}
    assert stored == committed
    assert world.acknowledged.items() <= stored.items()
    assert unified == committed, "the unified table is not what readers of committed records see"
    assert world.looks
    said = world.checker.said()
    whole = [each for each in said if "rows" in each]
    errors = Counter(each["error"][:60] for each in said if "error" in each)
    assert len(whole) > ROUNDS
    assert whole[-1]["expected"] >= world.claims.due > 0
    print(f"{len(stored):,} records, {len(whole)} looks at the unified table, {world.looks} at the table, ", end="")
    print(f"{world.compactions} compactions, {world.vacuums} VACUUMs; looks without a broker or files: {dict(errors)}")
