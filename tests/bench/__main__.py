"""`make bench`: the tables of docs/benchmarks.md on this machine; the raw figures as JSON under build/bench/."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.bench import apache_kafka, spark_throughput, start_up, throughput
from tests.bench.drivers import DRIVERS
from tests.bench.processes import Failed

RESULTS = Path(__file__).resolve().parents[2] / "build" / "bench"
PARTS = ("throughput", "start-up", "spark")


def main(arguments: Sequence[str]) -> int:
    """Runs the parts asked for; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="make bench BENCH='...'", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and with one round: to see that it works")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be repeated (default: all)")
    parser.add_argument("--drivers", default="java,python", help="java, python or both (default)")
    parser.add_argument("--messages", type=int, help="messages a round (default 3 million)")
    parser.add_argument("--rounds", type=int, help="rounds that count (default 5)")
    options = parser.parse_args(arguments)
    drivers = options.drivers.split(",")
    if not set(drivers) <= set(DRIVERS):
        parser.error(f"--drivers {options.drivers}: java, python or java,python")
    messages = options.messages or (200_000 if options.quick else 3_000_000)
    rounds = options.rounds or (1 if options.quick else 5)
    # So that the brokers are ended, too.
    signal.signal(signal.SIGTERM, _exit)

    RESULTS.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": machine(), "arguments": list(arguments)}
    failed = False
    figures: object
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as name:
        folder = Path(name)
        for part in options.only or PARTS:
            print(f"== {part}", flush=True)
            try:
                if part == "throughput":
                    tables, figures = throughput.measure(folder, drivers, messages, rounds)
                elif part == "start-up":
                    tables, figures = start_up.measure(folder, 3 if options.quick else 9)
                else:
                    tables, figures = spark_throughput.measure(folder, options.quick)
            except Failed as problem:
                print(f"{part} failed: {problem}", file=sys.stderr)
                failed = True
                continue
            results[part] = figures
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
