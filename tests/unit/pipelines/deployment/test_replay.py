"""Where a replay starts, what the log no longer has, and what is written twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.deployment.replay import (
    LogBounds,
    Origin,
    StageReplay,
    default_stages,
    histories,
    parse_origin,
    replay_of,
    written_twice,
)

FILE = """\
pipeline: shop
topics:
  orders: {value: string}
  payments: {value: string}
stages:
  - name: clean
    from: {topic: orders}
    to:
      - {topic: clean}
      - {delta: lake/orders}
  - name: latest
    from: {topic: clean}
    to: [{delta: lake/latest, merge: {keys: [id], sequence: at}}]
  - name: both
    from: [{topic: orders, as: o}, {topic: payments, as: p}]
    sql: SELECT o.value FROM o JOIN p ON o.value = p.value
    to: [{files: out, format: json}, {jdbc: "jdbc:x://db", table: t}, {jdbc: "jdbc:x://db", table: u, keys: id}]
  - name: folder
    from: {files: in, format: json, schema: id BIGINT}
    to: [{python: {file: f.py, function: f}}]
"""
BOUNDS = LogBounds(
    first={"orders": {0: 10, 1: 0}, "payments": {0: 0}},
    end={"orders": {0: 50, 1: 20}, "payments": {0: 5}},
    at_moment={"orders": {0: 30, 1: -1}, "payments": {0: 2}},
)
Load = Callable[..., Loaded]


def replayed(
    load: Load, stage: str, origin: Origin, bounds: LogBounds = BOUNDS, **known: dict[int, int]
) -> StageReplay:
    return replay_of(load(FILE).pipeline.stage(stage), origin, bounds, known)


def test_earliest_is_what_the_log_has(load: Load) -> None:
    assert replayed(load, "clean", Origin()) == StageReplay({"orders": {0: 10, 1: 0}}, ())


def test_a_moment_starts_at_its_first_record_or_at_the_end(load: Load) -> None:
    assert replayed(load, "clean", Origin(moment_ms=1)) == StageReplay({"orders": {0: 30, 1: 20}}, ())


def test_a_moment_before_the_logs_beginning_may_be_gone(load: Load) -> None:
    """What retention has taken may have been later than the moment."""
    bounds = LogBounds(BOUNDS.first, BOUNDS.end, {"orders": {0: 10, 1: 0}})
    [gone] = replayed(load, "clean", Origin(moment_ms=1), bounds).gone
    assert str(gone) == "orders-0: records since then may be gone, the log begins at offset 10"


def test_a_log_that_is_empty_by_now_may_have_had_it(load: Load) -> None:
    bounds = LogBounds({"orders": {0: 7}}, {"orders": {0: 7}}, {"orders": {0: -1}})
    [gone] = replayed(load, "clean", Origin(moment_ms=1), bounds).gone
    assert gone.first == 7


def test_a_log_that_never_lost_a_record_has_every_moment(load: Load) -> None:
    bounds = LogBounds({"orders": {0: 0, 1: 0}}, {"orders": {0: 0, 1: 3}}, {"orders": {0: -1, 1: 0}})
    assert replayed(load, "clean", Origin(moment_ms=1), bounds).gone == ()


def test_partitions_that_are_not_named_stay_where_they_are(load: Load) -> None:
    found = replayed(load, "clean", parse_origin('{"0": 17}'), orders={0: 40, 1: 12})
    assert found == StageReplay({"orders": {0: 17, 1: 12}}, ())


def test_kafkas_numbers_stand_for_both_ends(load: Load) -> None:
    assert replayed(load, "clean", parse_origin('{"0": -2, "1": -1}')).start == {"orders": {0: 10, 1: 20}}


def test_an_offset_that_retention_has_taken_is_gone(load: Load) -> None:
    [gone] = replayed(load, "clean", parse_origin('{"0": 3, "1": 0}')).gone
    assert str(gone) == "orders-0: offset 3 is gone, the log begins at offset 10"


@pytest.mark.parametrize(
    ("stage", "text", "said"),
    [
        ("clean", '{"0": 17}', "no offset is given for orders-1"),
        ("clean", '{"0": 17, "5": 1}', "topic orders has no partition 5: it has 2"),
        ("clean", '{"0": 51, "1": 0}', "orders-0 ends at offset 50; 51 lies beyond"),
        ("clean", '{"payments": {"0": 1}}', "does not read the topic 'payments', but orders"),
        ("both", '{"0": 17}', "give offsets by topic"),
        ("folder", "earliest", "reads something else than topics: `headwater pipeline run --reset folder`"),
    ],
)
def test_what_does_not_fit_the_stage_is_a_mistake(load: Load, stage: str, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        replayed(load, stage, parse_origin(text))


def test_a_stage_of_several_topics_takes_offsets_by_topic(load: Load) -> None:
    text = '{"orders": {"0": 11, "1": 1}, "payments": {"0": 3}}'
    assert replayed(load, "both", parse_origin(text)).start == {"orders": {0: 11, 1: 1}, "payments": {0: 3}}


@pytest.mark.parametrize(
    "text", ["", "soon", "17", "{", "{}", "[]", '{"0": "x"}', '{"0": -3}', '{"a": {"0": true}}', "@x"]
)
def test_a_place_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no place to start|is not of the form|no partition is named"):
        parse_origin(text)


def test_the_stages_that_no_other_feeds_are_replayed_unless_others_are_named(load: Load) -> None:
    assert default_stages(load(FILE)) == ["clean", "both", "folder"]


def test_the_tables_that_have_the_history_are_named_with_what_they_hold(load: Load) -> None:
    assert histories(load(FILE), "orders") == ["/flows/lake/orders (what stage clean made of it)"]
    assert histories(load(FILE), "clean") == [
        "/flows/lake/orders (the rows that stage clean wrote to it)",
        "/flows/lake/latest (what stage latest made of it, the latest state of each key)",
    ]
    assert histories(load(FILE), "payments") == []


def test_what_is_added_is_written_twice_and_what_is_merged_is_not(load: Load) -> None:
    loaded = load(FILE)
    assert {stage.name: written_twice(loaded, stage) for stage in loaded.pipeline.stages} == {
        "clean": [
            "records of topic clean, which stage latest reads again",
            "rows of the Delta table /flows/lake/orders",
        ],
        "latest": [],
        "both": ["rows of the files in /flows/out", "rows of t"],
        "folder": ["calls of f.py:f"],
    }
