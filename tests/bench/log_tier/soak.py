"""Half an hour of rising and falling load on Headwater: is memory flat, does latency grow?"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from statistics import median

from tests.bench.loads import drivers
from tests.bench.peers import brokers
from tests.bench.peers.brokers import HEADWATER, Broker
from tests.bench.processes import Failed, cpu_seconds, resident_mib
from tests.bench.report import Table, table

SAMPLE_S = 5


def measure(folder: Path, seconds: float) -> tuple[list[Table], dict[str, object]]:
    """One row for each period of the load; the raw samples."""
    with brokers.one(HEADWATER, folder) as broker:
        command = [*drivers.PYTHON, "tests.bench.log_tier.soak_client", broker.bootstrap, str(seconds)]
        memory: list[tuple[float, float, float]] = []
        done = threading.Event()
        sampler = threading.Thread(target=_sample, args=(broker, memory, done))
        sampler.start()
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
                assert client.stdout is not None
                periods = []
                for line in client.stdout:
                    periods.append(json.loads(line))
                    print(f"  {line.strip()}", flush=True)
            if client.returncode:
                raise Failed(f"the soak's client ended with {client.returncode}")
        finally:
            done.set()
            sampler.join()
    rows = []
    for period in periods:
        within = [(mib, cpu) for at, mib, cpu in memory if period["from_s"] <= at < period["to_s"]]
        rows.append(
            [
                f"{period['from_s'] / 60:.0f}-{period['to_s'] / 60:.0f}",
                f"{period['messages']:,}",
                *(f"{period[name]:.2f}" for name in ("p50", "p99", "p999", "max")),
                f"{median(mib for mib, _ in within):.1f}",
                f"{max(mib for mib, _ in within):.1f}",
                f"{(within[-1][1] - within[0][1]) / (SAMPLE_S * (len(within) - 1)):.2f}",
            ]
        )
    head = ["minutes", "messages", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "resident MiB", "largest", "cores used"]
    return [table(head, rows)], {"periods": periods, "memory": memory}


def _sample(broker: Broker, memory: list[tuple[float, float, float]], done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(SAMPLE_S):
        memory.append((time.monotonic() - start, resident_mib(broker.child.pid), cpu_seconds(broker.child.pid)))
