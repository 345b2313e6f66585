"""`make bench`: the tables of docs/benchmarks.md and its second half, on this machine; raw figures in build/bench/."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.bench.loads.drivers import DRIVERS
from tests.bench.loads.load import Load
from tests.bench.log_tier import (
    brokers_per_core,
    cluster,
    cluster_reassignment,
    cluster_transactions,
    earlier,
    failover,
    fetch_sessions,
    fresh,
    kernel_share,
    large_cluster,
    latency,
    message_queues,
    new_leaders,
    pinned,
    restart,
    scale,
    send_buffer,
    soak,
    start_up,
    throughput,
)
from tests.bench.peers import apache_kafka
from tests.bench.processes import Failed
from tests.bench.spark import (
    archive_freshness,
    archives,
    delta_append,
    encode,
    exactly_once,
    flights,
    idle,
    publish,
    spark_connectors,
    spark_throughput,
    sql_shell,
    topic_loads,
    unified,
)

RESULTS = Path(__file__).resolve().parents[2] / "build" / "bench"


@dataclass(frozen=True)
class Options:
    """What the command line asks for; None leaves the choice to the part."""

    drivers: list[str]
    quick: bool
    given_messages: int | None
    given_rounds: int | None
    given_partitions: int | None = None
    earlier: Path | None = None

    def messages(self, usual: int, quick: int = 200_000) -> int:
        """Messages a round."""
        return self.given_messages or (quick if self.quick else usual)

    def partitions(self, usual: int, quick: int) -> int:
        """Partitions of one broker."""
        return self.given_partitions or (quick if self.quick else usual)

    def rounds(self, usual: int) -> int:
        """Rounds that count."""
        return self.given_rounds or (1 if self.quick else usual)

    def checkout(self) -> Path:
        """The earlier checkout to compare with."""
        if self.earlier is None:
            raise Failed("--earlier FOLDER names the checkout to compare with (git worktree add FOLDER COMMIT)")
        return self.earlier


Part = Callable[[Path, Options], tuple[list[str], object]]

PARTS: dict[str, Part] = {
    "throughput": lambda f, o: throughput.measure(f, o.drivers, Load(o.messages(3_000_000)), o.rounds(5)),
    "latency": lambda f, o: latency.measure(f, 5 if o.quick else 20, o.rounds(3)),
    "start-up": lambda f, o: start_up.measure(f, 3 if o.quick else 9),
    "spark": lambda f, o: spark_throughput.measure(f, o.quick),
    "spark-kafka": lambda f, o: spark_connectors.measure(f, o.quick),
    "encode": lambda f, o: encode.measure(o.messages(3_000_000), o.rounds(5)),
    "delta-append": lambda f, o: delta_append.measure(f, o.quick),
    "exactly-once": lambda f, o: exactly_once.measure(f, o.quick),
    "load": lambda f, o: topic_loads.measure(f, o.quick),
    "archive": lambda f, o: archives.measure(f, o.quick, o.rounds(3)),
    "unified": lambda f, o: unified.measure(f, o.messages(unified.RECORDS, unified.QUICK_RECORDS), o.rounds(3)),
    "archive-freshness": lambda f, o: archive_freshness.measure(
        f, archive_freshness.QUICK if o.quick else archive_freshness.USUAL
    ),
    "publish": lambda f, o: publish.measure(f, o.quick),
    "flights": lambda f, o: flights.measure(f, o.quick),
    "sql-shell": lambda f, o: sql_shell.measure(f, o.quick),
    "idle": lambda f, o: idle.measure(f, o.quick),
    "matrix": lambda f, o: throughput.measure_matrix(f, o.drivers, o.messages(1_000_000), o.rounds(3)),
    "fresh": lambda f, o: fresh.measure(f, o.drivers, Load(o.messages(3_000_000)), o.rounds(3)),
    "kernel-share": lambda f, o: kernel_share.measure(f, o.messages(3_000_000), o.rounds(5)),
    "pinned": lambda f, o: pinned.measure(f, o.messages(4_000_000), o.rounds(5)),
    "message-queues": lambda f, o: message_queues.measure(f, o.messages(1_000_000), o.rounds(3)),
    "cold-reads": lambda f, o: latency.measure_beside_cold_reads(f, 5 if o.quick else 15, o.rounds(3)),
    "partitions": lambda f, o: scale.measure_partitions(f, 500 if o.quick else 5000, o.rounds(3)),
    "fetch-sessions": lambda f, o: fetch_sessions.measure(f, o.partitions(2_000, 200), o.rounds(5)),
    "connections": lambda f, o: scale.measure_connections(f, 200 if o.quick else 2000, o.rounds(3)),
    "send-buffer": lambda f, o: send_buffer.measure(f, Load(o.messages(3_000_000)), o.rounds(14)),
    "restart": lambda f, o: restart.measure(f, 0.2 if o.quick else 10, o.rounds(3)),
    "earlier": lambda f, o: earlier.measure(f, o.checkout(), o.drivers, Load(o.messages(1_000_000)), o.rounds(9)),
    "cluster": lambda f, o: cluster.measure(
        f, o.drivers, Load(o.messages(1_000_000)), o.rounds(5), 1 if o.quick else cluster.WARM_UP_ROUNDS
    ),
    "cluster-latency": lambda f, o: cluster.measure_latency(
        f, 5 if o.quick else 15, o.rounds(4), 1 if o.quick else cluster.LATENCY_WARM_UP_ROUNDS
    ),
    "cluster-transactions": lambda f, o: cluster_transactions.measure(
        f, o.messages(300_000, 50_000), o.rounds(7), 1 if o.quick else cluster.WARM_UP_ROUNDS
    ),
    "cluster-reassignment": lambda f, o: cluster_reassignment.measure(
        f, cluster_reassignment.QUICK if o.quick else cluster_reassignment.USUAL, o.rounds(1)
    ),
    "cluster-start": lambda f, o: cluster.measure_start(f, 2 if o.quick else 5),
    "brokers-per-core": lambda f, o: brokers_per_core.measure(f, o.messages(3_000_000), o.rounds(5)),
    "large-cluster": lambda f, o: large_cluster.measure(f, 5_000 if o.quick else 100_000, o.rounds(3)),
    "failover": lambda f, o: failover.measure(f, o.rounds(3)),
    "new-leaders": lambda f, o: new_leaders.measure(f, o.partitions(10_000, 1_000), o.rounds(3)),
    "soak": lambda f, o: soak.measure(f, 310 if o.quick else 1810),
}
#: What runs when nothing is asked for: some ten minutes. The others take longer, or much disk.
USUAL = ("throughput", "latency", "start-up", "spark")


def main(arguments: Sequence[str]) -> int:
    """Runs the parts asked for; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="make bench BENCH='...'", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and with one round: to see that it works")
    parser.add_argument(
        "--only", choices=PARTS, action="append", help=f"a part; may be repeated (default: {', '.join(USUAL)})"
    )
    parser.add_argument("--drivers", default="java,python", help="java, python or both (default)")
    parser.add_argument("--messages", type=int, help="messages a round")
    parser.add_argument("--rounds", type=int, help="rounds that count")
    parser.add_argument("--partitions", type=int, help="partitions, for `new-leaders` and `fetch-sessions`")
    parser.add_argument("--earlier", type=Path, help="root folder of an earlier checkout, for the part `earlier`")
    given = parser.parse_args(arguments)
    drivers = given.drivers.split(",")
    if not set(drivers) <= set(DRIVERS):
        parser.error(f"--drivers {given.drivers}: java, python or java,python")
    options = Options(drivers, given.quick, given.messages, given.rounds, given.partitions, given.earlier)
    # So that the brokers are ended, too.
    signal.signal(signal.SIGTERM, _exit)

    RESULTS.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "arguments": list(arguments)}
    failed = False
    for part in given.only or USUAL:
        print(f"== {part}", flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as name:
                tables, results[part] = PARTS[part](Path(name), options)
        except Failed as problem:
            print(f"{part} failed: {problem}", file=sys.stderr)
            failed = True
            continue
        for text in tables:
            print(f"\n{text}\n", flush=True)
    path = RESULTS / f"{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"raw figures: {path.relative_to(RESULTS.parents[1])}")
    return 1 if failed else 0


def machine() -> dict[str, str | int | None]:
    """What a reader needs to judge the figures."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kafka": apache_kafka.VERSION,
    }


def _exit(signal_number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
