"""Merges of random changes in random batches beside a model in plain Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.sinks import delta_merge
from pipelines.spec import DeltaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEYS, CHANGES, BATCHES = 4, 40, 6
DDL = "id INT, v INT, name STRING, gone BOOLEAN, _offset BIGINT"

Change = tuple[int, int, str, bool, int]


def changes(seed: int, *, deletes: bool, in_order: bool) -> list[Change]:
    """Changes with sequence numbers of their own, in the order of their arrival."""
    dice = random.Random(seed)
    made = [(dice.randrange(KEYS), n, f"n{n}", deletes and dice.random() < 0.3) for n in range(CHANGES)]
    if not in_order:
        dice.shuffle(made)
    return [(*change, offset) for offset, change in enumerate(made)]


def histories(given: list[Change]) -> list[tuple[Any, ...]]:
    """Every state of each key with its time."""
    rows = []
    for key in range(KEYS):
        own = sorted((v, name, gone) for k, v, name, gone, _ in given if k == key)
        for (v, name, gone), after in zip(own, [*own[1:], None], strict=True):
            if not gone:
                end = None if after is None else after[0]
                rows.append((key, v, name, v, end, end is None))
    return sorted(rows, key=repr)


def latest(given: list[Change]) -> list[tuple[Any, ...]]:
    last = {key: max((c for c in given if c[0] == key), key=lambda c: c[1], default=None) for key in range(KEYS)}
    return sorted(((c[0], c[1], c[2]) for c in last.values() if c is not None and not c[3]), key=repr)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("deletes", "in_order"), [(True, True), (False, False)])
@pytest.mark.parametrize("scd", [1, 2])
def test_the_table_is_what_the_changes_amount_to_however_they_come(
    delta_spark: SparkSession, tmp_path: Path, seed: int, deletes: bool, in_order: bool, scd: int
) -> None:
    sink = DeltaSink.model_validate(
        {"delta": "t", "merge": {"keys": "id", "sequence": "v", "delete_when": "gone", "scd": scd}}
    )
    given = changes(seed, deletes=deletes, in_order=in_order)
    cuts = sorted(random.Random(seed).sample(range(1, CHANGES), BATCHES - 1))
    path = str(tmp_path / "t")
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, CHANGES], strict=True)):
        frame = delta_spark.createDataFrame(given[start:end], DDL)
        delta_merge.write(frame, sink, path, "app", number)
        delta_merge.write(frame, sink, path, "app", number)
    table = delta_spark.read.format("delta").load(path)
    names = ("id", "v", "name") if scd == 1 else ("id", "v", "name", "_valid_from", "_valid_to", "_current")
    rows = sorted((tuple(row) for row in table.select(*names).collect()), key=repr)
    assert rows == (latest(given) if scd == 1 else histories(given))
