"""Three minutes of faults of a cluster's processes and links: nothing acknowledged is lost, on any replica."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.clients import Acknowledged
from tests.faults.offset_watcher import OffsetWatcher
from tests.faults.replica_logs import ReplicaLog
from tests.faults.run import FaultRun
from tests.faults.verdict import anomalies, moved_anomalies

SEED = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(2**32))
DURATION_S = 180.0


def replica(*values: bytes) -> ReplicaLog:
    return ReplicaLog(b"".join(values), dict(enumerate(values)))


def told(offset: int, value: bytes) -> Acknowledged:
    return Acknowledged("t", 0, offset, value)


def test_the_verdict_sees_what_can_go_wrong() -> None:
    good = replica(b"a:0", b"a:1", b"b:0")
    fine = {("t", 0): {1: good, 2: good}}
    assert anomalies(fine, [told(0, b"a:0"), told(-1, b"a:1")], [("t", 0, [b"a:0", b"a:1"])]) == []
    assert "lost" in anomalies(fine, [told(3, b"a:2")], [])[0]
    assert "lies at offset 0" in anomalies(fine, [told(2, b"a:0")], [])[0]
    assert "a consumer saw" in anomalies(fine, [], [("t", 0, [b"a:1"])])[0]
    assert "differs on brokers 1 and 2" in anomalies({("t", 0): {1: good, 2: replica(b"a:0")}}, [], [])[0]
    assert "2 times" in anomalies({("t", 0): {1: replica(b"a:0", b"a:0")}}, [], [])[0]
    assert "out of order" in anomalies({("t", 0): {1: replica(b"a:1", b"a:0")}}, [], [])[0]
    assert "out of order" in anomalies({("t", 0): {1: replica(b"1.8", b"1.1")}}, [], [])[0]
    assert anomalies({("t", 0): {1: replica(b"1.8", b"1.2")}}, [], []) == []
    assert moved_anomalies([b"a:0", b"b:0"], [b"a:0", b"b:0", b"b:1"]) == []
    assert "not moved" in moved_anomalies([b"a:0", b"a:1"], [b"a:0"])[0]
    assert "2 times" in moved_anomalies([b"a:0"], [b"a:0", b"a:0"])[0]
    assert "out of order" in moved_anomalies([b"a:0", b"a:1"], [b"a:1", b"a:0"])[0]


def test_the_watcher_sees_an_offset_that_goes_back() -> None:
    watcher = OffsetWatcher("127.0.0.1:1", ["g"], "t", 2)
    for offset in (3, 3, 5):
        watcher.note("g", 0, offset)
    watcher.note("other", 0, 1)
    watcher.note("g", 1, 1)
    assert watcher.errors == []
    watcher.note("g", 0, 4)
    assert watcher.errors == ["g: the committed offset of partition 0 went from 5 to 4"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_minutes_of_faults_lose_nothing(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    outcome = FaultRun(tmp_path, SEED, DURATION_S, print).run()
    assert outcome.anomalies == [], f"seed {SEED}, faults {outcome.faults}"
    assert outcome.faults
    assert outcome.acknowledged > 1000
    assert outcome.moved > 1000
    assert outcome.copied > 1000
