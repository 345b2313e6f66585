"""Messages moved from topic to topic exactly once: read, written and committed in transactions of a tenth of a second.

librdkafka on both sides, beside Kafka's three brokers. After each round the committed messages are counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench.loads import drivers
from tests.bench.loads.load import Load
from tests.bench.log_tier.cluster import with_cpu
from tests.bench.log_tier.throughput import keep
from tests.bench.peers import brokers, clusters
from tests.bench.peers.brokers import HEADWATER, KAFKA
from tests.bench.peers.clusters import Cluster
from tests.bench.processes import Failed
from tests.bench.report import Figures, Table, comparison

PERIOD_S = 0.1


def measure(folder: Path, messages: int, rounds: int, warm_up: int) -> tuple[list[Table], Figures]:
    """Both clusters in turn; fresh topics in each round."""
    load = clusters.replicated(Load(messages))
    figures: Figures = {}
    with clusters.both(folder) as pair:
        for round_number in range(warm_up + rounds):
            for cluster in brokers.in_turn(pair, round_number):
                row = _one_round(cluster, load, f"round-{round_number}")
                if round_number >= warm_up:
                    keep(figures, cluster, row)
    title = (
        f"{messages:,} messages of {load.message_bytes} bytes, {load.partitions} partitions, {clusters.REPLICATED}, "
        f"transactions of {PERIOD_S * 1e3:.0f} ms, {rounds} rounds in turn after {warm_up}"
    )
    return [comparison(title, figures, KAFKA, HEADWATER)], figures


def _one_round(cluster: Cluster, load: Load, name: str) -> dict[str, float]:
    source, target = f"{name}-source", f"{name}-target"
    for topic in (source, target):
        drivers.client("create", cluster.bootstrap, topic, load)
    try:
        drivers.client("produce", cluster.bootstrap, source, load)
        moving = ("move", cluster.bootstrap, source, target, str(load.messages), str(PERIOD_S))
        moved, spent = with_cpu(cluster, load, lambda: _client(*moving))
        committed = _client("count", cluster.bootstrap, target)["messages"]
        if committed != load.messages:
            raise Failed(f"{cluster.name}: {committed} messages are committed, {load.messages} were moved")
    finally:
        for topic in (source, target):
            drivers.client("delete", cluster.bootstrap, topic, load)
    row = {
        "moved, messages/s": load.messages / moved["seconds"],
        "transactions/s": moved["transactions"] / moved["seconds"],
        "median commit, ms": moved["commit_ms"],
        "brokers' CPU s/million": spent,
    }
    print(f"  {cluster.name}, {name}: {', '.join(f'{what} {value:,.1f}' for what, value in row.items())}", flush=True)
    return row


def _client(*arguments: str) -> dict[str, Any]:
    out = drivers.run([*drivers.PYTHON, "tests.bench.loads.transactions_client", *arguments])
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer
