"""What a changed option of a sink means for what the sink has written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.deployment.changes import Deployed, Effect, changes_of_stage
from headwater.pipelines.deployment.stage_record import StageRecord, record_of

FILE = """\
pipeline: p
topics:
  orders: {value: string}
stages:
  - name: s
    from: {topic: orders}
    to:
      - {delta: lake/un, underscore_columns: keep}
      - {files: out/un, format: csv, underscore_columns: keep}
      - {jdbc: "jdbc:x://db", table: un, underscore_columns: keep}
"""
OMIT = FILE.replace("underscore_columns: keep", "underscore_columns: omit")
KEPT = "the table keeps the columns that it has; rows that are written from now on have null there"

Load = Callable[..., Loaded]


def record(load: Load, text: str) -> StageRecord:
    loaded = load(text)
    return record_of(loaded, loaded.pipeline.stages[0], {}, "6")


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (FILE, OMIT, [KEPT, "files that are written from now on have no such columns", KEPT]),
        (
            OMIT,
            FILE,
            [
                "the table gets these columns again, which are null in rows that are there; merge_schema",
                "files that are written from now on have all such columns",
                "rows that are written from now on have these columns, and the table needs them",
            ],
        ),
    ],
)
def test_the_effect_of_underscore_columns_on_what_is_there_is_told(
    load: Load, before: str, after: str, reasons: list[str]
) -> None:
    found = changes_of_stage("s", Deployed(True, record(load, before)), record(load, after))
    assert {change.effect for change in found} == {Effect.SAFE}
    assert all(change.what.startswith("underscore columns of ") for change in found)
    assert [change.reason.partition(":")[0] for change in found] == reasons


def test_a_record_of_an_earlier_release_keeps_underscore_columns(load: Load) -> None:
    before = record(load, FILE)
    for sink in before.sinks:
        del sink["more"]["underscore_columns"]
    assert changes_of_stage("s", Deployed(True, before), record(load, FILE)) == []


def test_two_sinks_that_call_one_function_are_compared_in_their_order(load: Load) -> None:
    text = """\
pipeline: p
topics: {orders: {value: string}}
stages:
  - name: s
    from: {topic: orders}
    to:
      - {python: {file: f.py, function: send}, when: a}
      - {python: {file: f.py, function: send}, when: b}
"""
    first = Deployed(has_checkpoint=True, record=record(load, text), topics=frozenset({"orders"}))
    assert changes_of_stage("s", first, record(load, text)) == []
    (change,) = changes_of_stage("s", first, record(load, text.replace("when: b", "when: c")))
    assert change.place == ("to", 1)
