"""What other columns and another history of a merge mean for a deployed stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.deployment.changes import Change, Deployed, Effect, changes_of_pipeline
from headwater.pipelines.deployment.stage_record import StageRecord, record_of

FILE = """\
pipeline: shop
topics:
  orders: {value: json, schema: item.json}
stages:
  - name: plain
    from: {topic: orders}
    to: {delta: lake/plain, merge: {keys: [id], sequence: at MORE}}
"""
TRACKED = ", scd: 2, columns: [shop, id], track_history: [shop, Id]"

Load = Callable[..., Loaded]


def record(load: Load, more: str) -> StageRecord:
    loaded = load(FILE.replace(" MORE", more))
    return record_of(loaded, loaded.pipeline.stages[0], {}, "6")


def changed(load: Load, before: str, now: str) -> list[Change]:
    deployed = Deployed(True, dataclasses.replace(record(load, before), is_stateful=False))
    return changes_of_pipeline({"plain": record(load, now)}, {"plain": deployed})


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (", track_history: [shop, Id]", "", "track_history: id, shop is nothing now"),
        ("[shop, Id]", "{except: Shop}", "track_history: id, shop is * except shop now"),
        ("[shop, Id]", "shop", "track_history: id, shop is shop now"),
    ],
)
def test_other_tracked_columns_need_a_reset(load: Load, old: str, new: str, reason: str) -> None:
    [change] = changed(load, TRACKED, TRACKED.replace(old, new))
    assert (change.effect, change.what) == (Effect.NEEDS_RESET, "merge of delta /flows/lake/plain")
    assert reason in change.reason


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ("", ", columns: shop", "columns of /flows/lake/plain"),
        (", columns: shop", ", columns: [shop, city]", "columns of /flows/lake/plain"),
        (", columns: shop", ", except: city", "columns, except of /flows/lake/plain"),
    ],
)
def test_other_columns_are_safe(load: Load, before: str, now: str, what: str) -> None:
    [change] = changed(load, before, now)
    assert (change.effect, change.what) == (Effect.SAFE, what)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (", columns: shop", ", columns: [shop, city]", "columns"),
        (", columns: shop", ", except: city", "columns, except"),
        (
            "}, underscore_columns: keep, properties: {",
            "}, underscore_columns: omit, properties: {",
            "underscore columns",
        ),
    ],
)
@pytest.mark.parametrize(
    ("tracked", "starts_states"), [(", scd: 2, track_history: {except: at}", True), (", scd: 2", False)]
)
def test_other_columns_may_start_states_of_a_history_of_all_columns_but_some(
    load: Load, before: str, now: str, what: str, tracked: str, starts_states: bool
) -> None:
    [change] = changed(load, tracked + before, tracked + now)
    assert (change.effect, change.what) == (Effect.SAFE, f"{what} of /flows/lake/plain")
    assert ("the next change of each key starts a new state" in change.reason) == starts_states


def test_the_order_and_case_of_names_change_nothing(load: Load) -> None:
    assert changed(load, TRACKED, TRACKED.replace("[shop, id]", "[ID, Shop]")) == []
    assert changed(load, TRACKED, TRACKED.replace("[shop, Id]", "[id, SHOP]")) == []


def test_a_record_of_an_earlier_release_has_neither_columns_nor_tracked_columns(load: Load) -> None:
    before = record(load, "")
    [table] = before.sinks
    assert table["kept"]["merge"] == {"keys": ["id"], "sequence": ["at"], "scd": 1}
    earlier = {**table, "more": {n: value for n, value in table["more"].items() if n not in ("columns", "except")}}
    deployed = Deployed(True, dataclasses.replace(before, is_stateful=False, sinks=(earlier,)))
    assert changes_of_pipeline({"plain": record(load, "")}, {"plain": deployed}) == []


def test_a_plan_says_what_the_table_stores(load: Load) -> None:
    [sink] = load(FILE.replace(" MORE", TRACKED)).pipeline.stages[0].to
    planned = sink.planned(lambda path: path, is_complete=False)
    assert planned.how == "merge (SCD 2) by id, columns shop, id, history of id, shop"
    [sink] = load(FILE.replace(" MORE", ", except: [shop, city]")).pipeline.stages[0].to
    assert (
        sink.planned(lambda path: path, is_complete=False).how == "merge (SCD 1) by id, all columns except shop, city"
    )
