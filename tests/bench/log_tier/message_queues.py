"""Brokers of queues beside logs: RabbitMQ and ActiveMQ with a queue, Apache Kafka and Headwater with a partition."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier.throughput import SETTLE_S, keep, one_round
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.processes import POLL_S, Child, Failed, cpu_seconds, free_port
from tests.bench.report import Figures, Table, number, spread, table
from tests.jars import FetchError, fetched, java

RABBITMQ, ACTIVEMQ = "RabbitMQ", "ActiveMQ"
ACTIVEMQ_VERSION = "5.17.7"
#: What a broker on KahaDB and a client need; Ivy would ask for what is optional, too.
ACTIVEMQ_JARS = [
    *(
        ("org.apache.activemq", f"activemq-{part}", ACTIVEMQ_VERSION)
        for part in ("broker", "client", "kahadb-store", "openwire-legacy")
    ),
    ("org.apache.activemq.protobuf", "activemq-protobuf", "1.1"),
    ("org.apache.geronimo.specs", "geronimo-j2ee-management_1.1_spec", "1.0.1"),
    ("org.apache.geronimo.specs", "geronimo-jms_1.1_spec", "1.1.1"),
    ("org.fusesource.hawtbuf", "hawtbuf", "1.11"),
    ("org.slf4j", "slf4j-api", "1.7.36"),
]
PERF_TEST_VERSION = "2.22.1"
#: Not acknowledged at a time, and handed to a consumer before it has acknowledged.
WINDOW = 10_000
PREFETCH = 1000
#: Queues take a twentieth of what the logs do, or less; with as many messages they would be measured for minutes.
QUEUE_SHARE = 5
START_S = 90
RATES = re.compile(r"(sending|receiving) rate avg: (\d+) msg/s")
FIGURES = ("produce, messages/s", "consume, messages/s", "produce, broker CPU s/million")


@dataclass(frozen=True)
class QueueBroker:
    """One of the two with queues; `run` does `produce` or `consume` of so many messages, and gives them a second."""

    name: str
    child: Child
    run: Callable[[str, str, int], float]


def measure(folder: Path, messages: int, rounds: int) -> tuple[list[Table], Figures]:
    """All four in turn, each with a fresh queue or topic a round."""
    figures: Figures = {}
    load = Load(messages, partitions=1)
    with contextlib.ExitStack() as stack:
        queues = [stack.enter_context(start(folder)) for start in (_rabbitmq, _activemq)]
        logs = [stack.enter_context(brokers.one(name, folder)) for name in (KAFKA, HEADWATER)]
        for round_number in range(rounds + 1):
            for queue in queues:
                row = _queue_round(queue, f"bench-{round_number}", messages // QUEUE_SHARE)
                if round_number:
                    keep(figures, queue, row)
            for broker in brokers.in_turn(logs, round_number):
                row = one_round(broker, "java", load, f"bench-{round_number}")
                if round_number:
                    keep(figures, broker, row)
    title = (
        f"{messages:,} messages of {load.message_bytes} bytes (queues: {messages // QUEUE_SHARE:,}), one partition or "
        f"queue, {rounds} rounds in turn"
    )
    return [f"{title}\n\n{_table(figures)}"], figures


def _table(figures: Figures) -> Table:
    head = ["median (min..max)"]
    for figure in FIGURES:
        head += [figure, f"{HEADWATER} / this"]
    rows = []
    for name in (RABBITMQ, ACTIVEMQ, KAFKA, HEADWATER):
        row = [name]
        for figure in FIGURES:
            ours, this = (statistics.median(figures[figure][one]) for one in (HEADWATER, name))
            row += [spread(figures[figure][name]), number(ours / this)]
        rows.append(row)
    return table(head, rows)


def _queue_round(broker: QueueBroker, queue: str, messages: int) -> dict[str, float]:
    before = cpu_seconds(broker.child.pid)
    produced = broker.run("produce", queue, messages)
    time.sleep(SETTLE_S)
    spent = cpu_seconds(broker.child.pid) - before
    consumed = broker.run("consume", queue, messages)
    print(f"  {broker.name}: produce {produced:,.0f}/s, consume {consumed:,.0f}/s", flush=True)
    return {FIGURES[0]: produced, FIGURES[1]: consumed, FIGURES[2]: spent / messages * 1e6}


def _jars(name: str, artifacts: Sequence[tuple[str, str, str]], *, transitive: bool = True) -> Path:
    try:
        return fetched(name, artifacts, transitive=transitive)
    except FetchError as error:
        raise Failed(str(error)) from None


def _await_port(child: Child, port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        child.check_running()
        if time.monotonic() > deadline:
            raise Failed(f"{child.name} did not answer on port {port} within {START_S} s:\n{child.tail()}")
        time.sleep(POLL_S)


# -- RabbitMQ: the system's package, and its own PerfTest ------------------------------------------------------------


def _rabbitmq_scripts() -> Path:
    """The package's own scripts: those on the PATH change the user."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    if not found:
        raise Failed("RabbitMQ is not there: apt-get install --no-install-recommends rabbitmq-server, as root")
    return found[-1]


@contextlib.contextmanager
def _rabbitmq(folder: Path) -> Iterator[QueueBroker]:
    """One node with its defaults: classic queues, durable."""
    place = folder / "rabbitmq"
    place.mkdir()
    scripts = _rabbitmq_scripts()
    port, distribution_port, names_port = free_port(), free_port(), free_port()
    (place / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{port}\n")
    (place / "enabled_plugins").write_text("[].\n")
    environment = os.environ | {
        "HOME": str(place),  # for its cookie
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "ERL_EPMD_PORT": str(names_port),  # a name server of its own, which ends with it
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(place / "data"),
        "RABBITMQ_LOG_BASE": str(place / "log"),
        "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(place / "none.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(place / "pid"),
    }
    jars = _jars(f"rabbitmq-perf-test-{PERF_TEST_VERSION}", [("com.rabbitmq", "perf-test", PERF_TEST_VERSION)])
    base = [java(), "-Xmx512m", "-cp", f"{jars}/*", "com.rabbitmq.perf.PerfTest"]
    base += ["--uri", f"amqp://guest:guest@127.0.0.1:{port}", "-ad", "false", "-f", "persistent"]

    def run(what: str, queue: str, messages: int) -> float:
        if what == "produce":
            sizes = ["-c", str(WINDOW), "-s", str(Load().message_bytes), "-C", str(messages)]
            out = drivers.run([*base, "-u", queue, "-x", "1", "-y", "0", *sizes])
        else:
            out = drivers.run([*base, "-u", queue, "-x", "0", "-y", "1", "-a", "-D", str(messages)])
        rates = dict(RATES.findall(out))
        name = "sending" if what == "produce" else "receiving"
        if name not in rates:
            raise Failed(f"PerfTest gave no {name} rate:\n{out[-2000:]}")
        return float(rates[name])

    child = Child(RABBITMQ, [str(scripts / "rabbitmq-server")], place / "broker.log", environment)
    try:
        _await_port(child, port)
        yield QueueBroker(RABBITMQ, child, run)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([str(scripts / "rabbitmqctl"), "-q", "stop"], env=environment, check=False, timeout=START_S)
        child.stop()
        ending = ["epmd", "-port", str(names_port), "-kill"]
        subprocess.run(ending, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


# -- ActiveMQ: its jars, and a program of ours -----------------------------------------------------------------------


@contextlib.contextmanager
def _activemq(folder: Path) -> Iterator[QueueBroker]:
    """One broker with KahaDB, which syncs once a second: its default, at every message, is not what the logs do."""
    place = folder / "activemq"
    place.mkdir()
    jars = _jars(f"activemq-{ACTIVEMQ_VERSION}", ACTIVEMQ_JARS, transitive=False)
    program = str(Path(__file__).with_name("ActiveMq.java"))
    port = free_port()

    def run(what: str, queue: str, messages: int) -> float:
        more = [str(Load().message_bytes), str(WINDOW)] if what == "produce" else [str(PREFETCH)]
        command = [java(), "-Xmx512m", "-cp", f"{jars}/*", program, what, str(port), queue, str(messages), *more]
        return messages / float(drivers.run(command).split()[-1])

    command = [java(), "-Xmx1G", "-Xms1G", "-cp", f"{jars}/*", program, "broker", str(port), str(place / "data")]
    child = Child(ACTIVEMQ, command, place / "broker.log")
    try:
        _await_port(child, port)
        yield QueueBroker(ACTIVEMQ, child, run)
    finally:
        child.stop()
