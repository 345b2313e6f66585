"""Hours that are loaded one after the other, late records among them, and backfilled: each record once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwater.pipelines.loads.request import LoadOutcome, LoadStatus
from tests.spark.loads.conftest import Dock

if TYPE_CHECKING:
    from headwater.pipelines.loads.targets.manifest import Manifest

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
MIDNIGHT_MS = 1_356_998_400_000  # 2013-01-01


def interval(hour: int) -> str:
    return f"2013-01-01T0{hour}:00:00Z/2013-01-01T0{hour + 1}:00:00Z"


def manifest_of(outcome: LoadOutcome) -> Manifest:
    assert outcome.manifest is not None, outcome.error
    return outcome.manifest


def test_hours_follow_each_other_and_late_records_are_counted(dock: Dock, tmp_path: Path) -> None:
    dock.create()
    target, files = f"{tmp_path}/table", f"{tmp_path}/files"

    def load(hour: int) -> LoadOutcome:
        return dock.load(target, format="delta", interval=interval(hour))

    for hour in (1, 2):
        dock.produce([{"n": hour}] * 10, timestamp_ms=MIDNIGHT_MS + hour * HOUR_MS)
    first = load(1)
    assert first.outcome is LoadStatus.LOADED
    assert manifest_of(first).plan.id == "20130101T010000Z_20130101T020000Z"
    assert (manifest_of(first).rows, manifest_of(first).late) == (10, 0)
    # Three records of the hour that is loaded, behind those of the next one; then an hour without any.
    dock.produce([{"n": 1}] * 3, timestamp_ms=MIDNIGHT_MS + HOUR_MS, partition=0)
    dock.produce([{"n": 4}] * 2, timestamp_ms=MIDNIGHT_MS + 4 * HOUR_MS)
    second = load(2)
    assert (manifest_of(second).rows, manifest_of(second).late) == (13, 3)
    assert "13 rows, 3 of them late in " in str(second)
    assert load(3).outcome is LoadStatus.NOTHING_NEW
    # After the empty hour: a record that is later than it in time, and one that belongs to it.
    dock.produce([{"n": 3}], timestamp_ms=MIDNIGHT_MS + 3 * HOUR_MS, partition=1)
    fourth = load(4)
    assert (manifest_of(fourth).rows, manifest_of(fourth).late) == (3, 1)
    # An hour from before the first load: it ends where that one starts. Cleared and run again, nothing changes.
    assert load(0).outcome is LoadStatus.NOTHING_NEW
    assert load(2).outcome is load(4).outcome is LoadStatus.ALREADY_LOADED
    assert dock.offsets(target, "delta") == [(0, n) for n in range(14)] + [(1, n) for n in range(12)]
    # A first load has no interval before it: the hour's records that lie behind those of the hour before are late, too.
    alone = manifest_of(dock.load(files, interval=interval(2)))
    assert (alone.rows, alone.late) == (13, 3)
