"""Pipelines on three brokers that are killed: in each window of a micro-batch, and again and again beside the flights.

A broker is killed only when all ISRs are full. KILL_ROUNDS and KILL_SEED set how often and when: each window of a
micro-batch is run with the broker of each role by KILL_ROUNDS=21, and a run of the suite takes three of them in turn.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.cli.demo import flights
from headwater.cli.demo.files import conf_file
from headwater.cli.demo.produce import produce
from headwater.logtier.client.cluster import ClientConfig, ClusterClient, parse_bootstrap_servers
from headwater.logtier.client.coordinators import GROUP, TRANSACTION, find_coordinator
from headwater.logtier.client.errors import BrokerError
from headwater.pipelines.sinks.exactly_once.exactly_once_fence import FENCES_TOPIC, stage_owner
from tests.end_to_end.delta_log import delta_rows
from tests.end_to_end.kill.killed_processes import CLUSTER, END_S, committed_records
from tests.end_to_end.kill.numbers_pipeline import NumbersPipeline, differences
from tests.faults.full_isrs import await_full_isrs
from tests.faults.processes import SESSION_S, FaultyCluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SHORT_ROUNDS = 3
ROUNDS = int(os.environ.get("KILL_ROUNDS") or SHORT_ROUNDS)
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(2**32))

BROKERS = (1, 2, 3)
OWN_PARTITIONS = 12
WINDOWS = ("records_sent", "transaction_open", "committed", "tables_written", "computed", "begun", "done")
#: What the killed broker is to the stage whose windows these are.
ROLES = ("coordinator of the transaction", "coordinator of the group", "leader of the fences")
BATCH = 150
#: Lines for the steps of the batches that are left after the last kill.
STEPS_MAX = 1_000
WHOLE_S = 300
#: Time for a driver to write where its threads are.
TRACES_S = 5.0

#: Small, and with so few tasks that one process after the other starts fast.
SPARK = (
    "spark.driver.memory=1g",
    "spark.master=local[2]",
    "spark.sql.shuffle.partitions=2",
    "spark.sql.adaptive.enabled=false",
)
#: So many flights, in two micro-batches, see the kills of a short run, one in each stage; all flights see those of a
#: long one.
SHORT_FLIGHTS, SHORT_BATCH = 16_000, 8_000
LONG_BATCH = 40_000
WATERMARK_DELAY = timedelta(hours=6)
PLACES = 10


@pytest.fixture
def cluster(started_cluster: FaultyCluster) -> FaultyCluster:
    """The cluster of all tests, with all brokers."""
    started_cluster.start_missing()
    return started_cluster


@pytest.fixture(scope="module")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    made = FaultyCluster(tmp_path_factory.mktemp("cluster"), properties=CLUSTER)
    try:
        made.start()
        yield made
    finally:
        made.end()


class Lines:
    """What a process prints, as it comes; None at its end. Its errors are passed on: an unread pipe would stop it."""

    def __init__(self, process: subprocess.Popen[str], cluster: FaultyCluster) -> None:
        self._process = process
        self._cluster = cluster
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._passing = threading.Thread(target=self._pass_on, daemon=True)
        self._passing.start()

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def next(self) -> str:
        try:
            line = self._lines.get(timeout=END_S)
        except queue.Empty:
            self._process.send_signal(signal.SIGUSR1)
            self._passing.join(TRACES_S)
            logs = "\n".join(f"broker {each.node_id}:\n{each.tail()}" for each in self._cluster.brokers.values())
            raise AssertionError(f"no stage has begun or ended a step for {END_S} s\n{logs}") from None
        assert line is not None, "the run ended by itself"
        return line


def test_any_broker_may_die_in_any_window_of_a_micro_batch(cluster: FaultyCluster, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    pipeline = NumbersPipeline(tmp_path, cluster.bootstrap_servers, replicas=3)
    left = kills_of(ROUNDS)
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}: {left}")
    waiting = [argument for window in WINDOWS for argument in ("--wait-at", window)]
    try:
        process = pipeline.start("--continuous", *waiting)
        assert process.stdin is not None
        lines = Lines(process, cluster)
        pipeline.produce(BATCH)
        dead: int | None = None
        while left or dead is not None:
            step = lines.next()
            if not step.startswith("step first"):
                continue
            window = step.rpartition(" ")[2]
            if window == "done" and dead is not None:
                # It has finished a batch without that broker.
                cluster.brokers[dead].start()
                cluster.brokers[dead].await_ready()
                dead = None
            elif left and dead is None and window == left[0][0]:
                await_full_isrs(admin, len(BROKERS), OWN_PARTITIONS)
                dead = broker_of(cluster, admin, left.pop(0)[1])
                print(f"broker {dead} killed: {window}")
                cluster.brokers[dead].kill()
                # For the batch that ends without that broker, and for the one in which the next is killed.
                pipeline.produce(2 * BATCH if window == "done" else BATCH)
            process.stdin.write("\n")
            process.stdin.flush()
        process.stdin.write("\n" * STEPS_MAX)
        process.stdin.flush()
        await_no_faults(pipeline)
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        pipeline.close()


def kills_of(rounds: int) -> list[tuple[str, str]]:
    """Windows with the role of the broker that is killed in them: all 21, from a start that the seed gives."""
    kills = [(window, ROLES[(number + turn) % 3]) for turn in range(3) for number, window in enumerate(WINDOWS)]
    start = SEED % len(kills)
    return [kills[(start + number) % len(kills)] for number in range(rounds)]


def broker_of(cluster: FaultyCluster, admin: AdminClient, role: str) -> int:
    """The broker that has a role for the pipeline's first stage."""
    if role == "leader of the fences":
        topic = admin.list_topics(timeout=30).topics.get(FENCES_TOPIC)
        # Before the first batch there is no fence; the coordinator of the transaction will write to its leader.
        if topic is not None:
            return topic.partitions[0].leader
    owner = stage_owner("killed", "first")
    kind, name = (GROUP, owner.group) if "group" in role else (TRANSACTION, owner.transactional_id)
    deadline_s = time.monotonic() + WHOLE_S
    with ClusterClient(ClientConfig(parse_bootstrap_servers(cluster.bootstrap_servers))) as client:
        while True:
            try:
                return find_coordinator(client, kind, name)
            except BrokerError:  # it moves
                until(deadline_s, f"the {role} was not found")


def await_no_faults(pipeline: NumbersPipeline) -> None:
    """The run has read everything once its outputs are whole: from then on it has nothing to write."""
    deadline_s = time.monotonic() + WHOLE_S
    while faults := pipeline.faults():
        assert time.monotonic() < deadline_s, faults
        time.sleep(2)


class Killer:
    """Kills one broker after the other, each when all ISRs are full, so often; at the end all brokers run.

    Each waits for a turn, which `stage_began` gives for each stage that begins: a driver takes long to start. In a long
    run the first turn is for all kills.
    """

    def __init__(self, cluster: FaultyCluster) -> None:
        self.kills = 0
        self.error: BaseException | None = None
        self._cluster = cluster
        self._chance = random.Random(SEED)
        self._pause_s = 3 * SESSION_S if ROUNDS > SHORT_ROUNDS else SESSION_S  # a short run is soon over
        self._turns = threading.Semaphore(0)
        self._stages: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._turns.release(ROUNDS)
        self._thread.join()

    def stage_began(self, stage: str) -> None:
        """Give a turn, unless this stage has begun before."""
        if stage not in self._stages:
            self._stages.add(stage)
            self._turns.release(1 if ROUNDS <= SHORT_ROUNDS else ROUNDS)

    def await_kills(self, count: int) -> None:
        """Wait until so many brokers have been killed, or it fails."""
        while self.kills < count and self.error is None:
            time.sleep(0.1)
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers})
            while self.kills < ROUNDS and not self._stopped.is_set():
                self._turns.acquire()
                await_full_isrs(admin, len(BROKERS), OWN_PARTITIONS)
                self._stopped.wait(self._chance.uniform(0, self._pause_s))
                broker = self._cluster.brokers[self._chance.choice(BROKERS)]
                broker.kill()
                self.kills += 1
                # Now and then it is back before its session is over.
                self._stopped.wait(self._chance.uniform(0, 2 * SESSION_S))
                broker.start()
                broker.await_ready()
        except BaseException as error:
            self.error = error
            raise


Row = dict[str, Any]


def test_the_flights_come_out_as_computed_though_brokers_are_killed(
    cluster: FaultyCluster, headwater: Any, tmp_path: Path
) -> None:
    """Counts over windows with state in checkpoints, a ranking, and an archive, beside a computation without Spark."""
    print(f"\nKILL_SEED={SEED} KILL_ROUNDS={ROUNDS}")
    servers = cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("flights", 6, 3)])["flights"].result(30)
    table = flights.flights_table(flights.data_folder())
    batch = LONG_BATCH
    if ROUNDS <= SHORT_ROUNDS:
        table, batch = table.slice(0, SHORT_FLIGHTS), SHORT_BATCH
    runs = max(1, ROUNDS // 3)
    size = -(-table.num_rows // runs)
    with Killer(cluster) as killer:
        for number in range(runs):
            part = table.slice(number * size, size)
            produce(servers, "flights", flights.records(part), lambda count: None)
            run_flights(headwater, servers, tmp_path, batch, killer.stage_began)
            killer.await_kills(ROUNDS * (number + 1) // runs)
    killer.await_kills(ROUNDS)
    print(f"{killer.kills} brokers killed in {runs} runs")
    found = {topic: values_of(servers, topic) for topic in ("flights_clean", "delays", "rising")}
    assert flight_faults(table.to_pylist(), found, delta_rows(tmp_path / "lake" / "flights")) == []


def run_flights(headwater: Any, servers: str, folder: Path, batch: int, stage_began: Callable[[str], None]) -> None:
    """Process what is there, as a user does who starts the demo's pipeline; `stage_began` hears of each stage."""
    variables = {"data": flights.data_folder(), "lake": str(folder / "lake"), "most": str(batch)}
    options = [option for name, value in variables.items() for option in ("--set", f"{name}={value}")]
    options += [option for conf in SPARK for option in ("--conf", conf)]
    command = ["pipeline", "run", conf_file("pipelines", "flights.yaml"), "-b", servers, "--once"]

    def on_line(line: str) -> None:
        stage, _, told_of_it = line.partition(": ")
        if told_of_it.startswith(("running", "batch ")):
            stage_began(stage)

    done = headwater(*command, "--state", str(folder / "state"), *options, on_line=on_line, within_s=END_S)
    assert done.returncode == 0, done.stderr


def values_of(servers: str, topic: str) -> list[Row]:
    """The values of a topic's committed records."""
    return [json.loads(message.value()) for message in committed_records(servers, topic)]


def flight_faults(source: list[Row], found: dict[str, list[Row]], archived: list[Row]) -> list[str]:
    """What is wrong with the outputs; empty when nothing is."""
    departed = [row for row in source if row["dep_time"] is not None]
    for row in departed:
        row["at"] = datetime.fromisoformat(row["time_hour"])
    closed = max(row["at"] for row in departed) - WATERMARK_DELAY
    faults = differences("flights_clean", map(identity, found["flights_clean"]), map(identity, departed))
    faults += differences("the table", map(identity, archived), map(identity, departed))
    delays = [(row["hour"]["start"], row["carrier"], row["flights"], round(row["delay"], 6)) for row in found["delays"]]
    faults += differences("delays", map(str, delays), map(str, hourly_delays(departed, closed)))
    rising = [(row["until"], row["place"], row["route"], row["flights"]) for row in found["rising"]]
    return faults + differences("rising", map(str, rising), map(str, busiest_routes(departed, closed)))


def identity(row: Row) -> str:
    """What tells a flight from all others."""
    hour = row["time_hour"]
    return f"{hour} {row['carrier']}{row['flight']} {row['origin']}-{row['dest']} {row['tailnum']}"


def hourly_delays(departed: list[Row], closed: datetime) -> list[tuple[str, str, int, float]]:
    """The mean delay of each carrier and hour, of the hours that the watermark has passed."""
    delays: dict[tuple[datetime, str], list[float]] = defaultdict(list)
    for row in departed:
        delays[row["at"], row["carrier"]].append(row["dep_delay"])
    return [
        (as_json(hour), carrier, len(each), round(sum(each) / len(each), 6))
        for (hour, carrier), each in delays.items()
        if hour + timedelta(hours=1) <= closed
    ]


def busiest_routes(departed: list[Row], closed: datetime) -> list[tuple[str, int, str, int]]:
    """The ten busiest routes of each 24 hours that the watermark has passed; they begin every 6 hours."""
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    for row in departed:
        last = row["at"].replace(hour=row["at"].hour // 6 * 6)
        for back in range(4):
            counts[last - timedelta(hours=6 * back)][f"{row['origin']}-{row['dest']}"] += 1
    ranked = []
    for start, routes in counts.items():
        until = start + timedelta(hours=24)
        if until <= closed:
            best = sorted(routes.items(), key=lambda item: (-item[1], item[0]))[:PLACES]
            ranked += [(as_json(until), place, route, count) for place, (route, count) in enumerate(best, 1)]
    return ranked


def as_json(moment: datetime) -> str:
    """As Spark writes a timestamp of UTC in JSON."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
