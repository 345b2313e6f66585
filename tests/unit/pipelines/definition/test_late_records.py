"""Records that are too late for a watermark: which stages can keep them, where they go, what a change of that means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headwater.cli.pipeline.run_display import summary
from headwater.pipelines.definition import Loaded, Stage
from headwater.pipelines.definition.graph import known_topics, late_topics, places_written, upstream
from headwater.pipelines.definition.late_rule import NoLateRuleError, late_rule
from headwater.pipelines.definition.plan import made_when_needed, make_plan, topics_of
from headwater.pipelines.deployment.changes import Deployed, Effect, changes_of_stage
from headwater.pipelines.deployment.stage_record import StageRecord, record_of
from headwater.pipelines.deployment.state_proof import state_form
from headwater.pipelines.drawing.model import graph_of
from headwater.pipelines.engine.late_records import check_rule
from headwater.pipelines.errors import PipelineFailed, Problem
from headwater.pipelines.monitoring.metrics import families
from headwater.pipelines.monitoring.openlineage import stage_lineage
from headwater.pipelines.monitoring.progress import StageTotals
from headwater.pipelines.monitoring.stage_state import StageState
from headwater.pipelines.sql_text.event_time import NotFollowedError, followed

WINDOWS = "SELECT window(at, '1 hour') AS hour, count(*) AS n FROM orders GROUP BY 1"
FILE = """\
pipeline: shop
topics:
  orders: {partitions: 3, value: string}
stages:
  - name: hourly
    from: {topic: orders, watermark: {column: at, delay: 10 minutes, late: orders_late}}
    sql: SELECT window(at, '1 hour') AS hour, count(*) AS n FROM orders GROUP BY 1
    to: {topic: hourly}
"""
FROM = "{topic: orders, watermark: {column: at, delay: 10 minutes, late: orders_late}}"

JOINED = """orders LEFT JOIN (SELECT id FROM shops GROUP BY id) s ON s.id = shop LATERAL VIEW explode(x) AS y
WHERE n NOT IN (SELECT n FROM shops) AND trim(BOTH ' ' FROM shop) <> ''"""

Load = Callable[..., Loaded]
Problems = Callable[..., list[Problem]]


def stage(**more: Any) -> Stage:
    source = {"topic": "orders", "watermark": {"column": "At", "delay": "1 hour", "late": "orders_late"}}
    return Stage.model_validate({"name": "s", "from": source, "to": {"topic": "out"}} | more)


def selects(**more: Any) -> list[str]:
    rule = late_rule(stage(**more))
    assert rule is not None
    return [text for _, text in rule.selects]


def fault(**more: Any) -> str:
    with pytest.raises(NoLateRuleError) as caught:
        late_rule(stage(**more))
    assert caught.value.hint
    return str(caught.value)


# -- the way of the event time through SQL -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        (WINDOWS, "window(`at`, '1 hour') AS `_headwater_event_time` FROM orders"),
        (
            "SELECT count(*) FROM orders AS o GROUP BY window(o.at, '1 hour', '30 minutes', '15 minutes'), o.shop",
            "window(`o`.`at`, '1 hour', '30 minutes', '15 minutes') AS `_headwater_event_time` FROM orders AS o",
        ),
        (
            "SELECT shop, session_window(AT, '5 minutes') AS s, count(*)\nFROM `orders` -- all of them\nGROUP BY 1, 2",
            "session_window(`at`, '5 minutes') AS `_headwater_event_time` FROM `orders` -- all of them",
        ),
        ("SELECT at, count(*) AS n FROM input GROUP BY at", "`at` AS `_headwater_event_time` FROM input"),
        (
            f"SELECT a IS DISTINCT FROM b, window(at, '1 day'), max(extract(hour FROM at)) FROM {JOINED} GROUP BY 1, 2",
            f"window(`at`, '1 day') AS `_headwater_event_time` FROM {JOINED}",
        ),
        (
            "SELECT 1 FROM orders GROUP BY (window(at, '1 hour'))",
            "window(`at`, '1 hour') AS `_headwater_event_time` FROM orders",
        ),
    ],
    ids=["tumbling", "sliding", "session", "moment", "joins and conditions", "in parentheses"],
)
def test_the_rows_of_a_group_by_are_selected_with_their_sources_and_conditions(sql: str, rows: str) -> None:
    assert selects(sql=sql) == [f"SELECT `_headwater_record`, {rows}"]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT shop, count(*) FROM orders GROUP BY shop", "no event time, and Spark drops no rows"),
        ("SELECT count(*) FROM orders GROUP BY window(_timestamp, '1 hour')", "no event time"),
        ("SELECT count(*) FROM orders GROUP BY date_trunc('hour', at)", "no event time"),
        ("SELECT at, count(*) FROM orders GROUP BY at, window(at, '1 hour')", "several event times"),
        ("SELECT count(*) FROM orders GROUP BY session_window(at, gap)", "no text such as"),
        ("SELECT count(*) FROM orders GROUP BY CUBE (window(at, '1 hour'), shop)", "CUBE"),
        ("SELECT count(*) FROM orders GROUP BY window(at, '1 hour'), ROLLUP (shop)", "ROLLUP"),
        ("SELECT count(*) FROM orders GROUP BY window(at, '1 hour'), shop WITH CUBE", "CUBE"),
        ("SELECT DISTINCT shop, at FROM orders", "distinct"),
        ("WITH x AS (SELECT * FROM orders) SELECT count(*) FROM x GROUP BY window(at, '1 hour')", "more than one"),
        ("SELECT count(*) FROM (SELECT * FROM orders) GROUP BY window(at, '1 hour')", "subquery"),
        (f"{WINDOWS} UNION ALL {WINDOWS}", "more than one SELECT"),
        ("SELECT 1 FROM orders a JOIN input b ON a.id = b.id GROUP BY window(a.at, '1 hour')", "twice"),
        ("SELECT count(*) FROM orders TABLESAMPLE (10 PERCENT) GROUP BY window(at, '1 hour')", "TABLESAMPLE"),
        ("SELECT 1 FROM shops GROUP BY window(at, '1 hour')", "does not read the stream"),
        ("SELECT 1 FROM orders GROUP BY 1.5", "no event time"),
        ("SELEC", "sqlglot cannot read it"),
    ],
)
def test_sql_whose_late_rows_cannot_be_told_is_refused(sql: str, why: str) -> None:
    assert why in fault(sql=sql)


def test_steps_before_the_operator_carry_the_record_and_the_event_time() -> None:
    grouped = {"sql": "SELECT window(departed, '1 hour') AS w, count(*) FROM input GROUP BY 1"}
    assert selects(steps=[{"sql": "SELECT id, at AS departed FROM orders WHERE id > 1"}, grouped]) == [
        "SELECT id, at AS departed\n, `_headwater_record` FROM orders WHERE id > 1",
        "SELECT `_headwater_record`, window(`departed`, '1 hour') AS `_headwater_event_time` FROM input",
    ]
    starred = "SELECT o.*, upper(shop) AS s, at AS departed FROM orders o"
    assert selects(steps=[{"sql": starred}, grouped]) == [
        starred,
        "SELECT `_headwater_record`, window(`departed`, '1 hour') AS `_headwater_event_time` FROM input",
    ]
    assert "no event time" in fault(steps=[{"sql": "SELECT date_trunc('day', at) AS departed FROM orders"}, grouped])
    assert "no event time" in fault(steps=[{"sql": "SELECT s.* FROM orders JOIN shops s USING (id)"}, grouped])


def test_the_first_operator_decides_and_what_follows_it_does_not_matter() -> None:
    then = [{"sql": "SELECT DISTINCT id FROM input"}, {"python": {"file": "a.py", "function": "f"}}]
    rule = late_rule(stage(steps=[{"deduplicate": {"by": ["id"]}}, *then]))
    assert rule is not None
    assert (rule.selects, rule.by, rule.topic) == ((), "at", "orders_late")
    rule = late_rule(stage(steps=[{"sql": "SELECT at AS t FROM orders"}, {"deduplicate": {"by": ["t"]}}, *then]))
    assert rule is not None
    assert rule.by == "t"
    counted = {"file": "a.py", "processor": "P", "by": ["id"], "output": "id INT", "time": "event_time"}
    rule = late_rule(stage(steps=[{"stateful": counted}]))
    assert rule is not None
    assert rule.by == "at"
    # Spark gives a processor late rows unless its timers go by event time.
    assert "gets late rows, too" in fault(steps=[{"stateful": counted | {"time": "none"}}])


def test_stages_whose_late_rows_cannot_be_told_are_refused() -> None:
    assert "keeps no state" in fault(sql="SELECT * FROM orders")
    assert "keeps no state" in fault()
    assert "keeps no state" in fault(steps=[{"sql": WINDOWS, "each_batch": True}])
    assert "mode: complete" in fault(sql=WINDOWS, mode="complete")
    assert "Python step" in fault(python={"file": "a.py", "function": "f"})
    assert "do not keep" in fault(steps=[{"sql": "SELECT id FROM orders"}, {"deduplicate": {"by": ["id"]}}])
    assert "another watermark" in fault(
        steps=[{"watermark": {"column": "b", "delay": "1 hour"}}, {"deduplicate": {"by": ["id"]}}]
    )
    inputs = [{"topic": "orders", "watermark": {"column": "at", "delay": "1 hour", "late": "l"}}, {"topic": "paid"}]
    assert "one input" in fault(**{"from": inputs}, sql="SELECT * FROM orders JOIN paid USING (id)")


def test_a_stage_without_late_has_no_rule() -> None:
    assert late_rule(stage(**{"from": {"topic": "orders", "watermark": {"column": "at", "delay": "1 hour"}}})) is None
    assert late_rule(stage(**{"from": {"rate": 1, "watermark": {"column": "at", "delay": "1 hour"}}})) is None


def test_a_select_that_sqlglot_takes_for_another_is_not_used() -> None:
    with pytest.raises(NotFollowedError):
        followed("FROM orders SELECT id, window(at, '1 hour')", ["orders"], ["at"])


class Merging:
    """A session whose settings are all true."""

    class conf:
        @staticmethod
        def get(name: str, default: str) -> str:
            return "true"


def test_sessions_that_spark_merges_with_late_rows_are_refused_by_a_run() -> None:
    sessions = late_rule(stage(sql="SELECT shop FROM orders GROUP BY session_window(at, '1 hour'), shop"))
    assert sessions is not None
    assert sessions.has_sessions
    with pytest.raises(PipelineFailed, match="session windows cannot be told"):
        check_rule(Merging(), "s", sessions, None)  # type: ignore[arg-type]
    windows = late_rule(stage(sql=WINDOWS))
    assert windows is not None
    assert not windows.has_sessions


# -- the file ------------------------------------------------------------------------------------------------------


def test_late_is_a_field_of_topics_alone(problems: Problems) -> None:
    (found,) = problems(FILE.replace("topic: orders, w", 'files: in, format: csv, schema: "at TIMESTAMP", w'))
    assert "late is of an input that is a topic" in found.message
    assert "watermark" in found.field
    mark = "watermark: {column: at, delay: 1 hour, late: l}"
    text = FILE.replace(FROM, "{topic: orders}").replace("sql: S", f"steps:\n      - {mark}\n      - sql: S")
    (found,) = problems(text)
    assert "late is of an input that is a topic" in found.message
    assert found.field.startswith("stages[0].steps[0].watermark")


def test_mistakes_are_told_at_the_field(problems: Problems) -> None:
    (found,) = problems(FILE.replace("1 hour') AS hour, count(*) AS n FROM orders GROUP BY 1", "1 hour') FROM orders"))
    assert (found.field, "keeps no state" in found.message) == ("stages[0].from.watermark.late", True)
    (found,) = problems(FILE.replace("late: orders_late", "late: hourly"))
    assert "has the rows of stage hourly" in found.message
    (found,) = problems(FILE.replace("late: orders_late", "late: orders"))
    assert "cycle" in found.message
    (found,) = problems(FILE.replace("late: orders_late", "late: 'a b'"))
    assert "is not a topic name" in found.message


def test_the_topic_is_an_output_that_is_made_with_its_first_record(load: Load) -> None:
    loaded = load(FILE)
    pipeline, (hourly,) = loaded.pipeline, loaded.pipeline.stages
    assert late_topics(hourly) == ("orders_late",)
    assert ("topic", "orders_late") in places_written(pipeline, hourly)
    assert "orders_late" in known_topics(pipeline)
    assert (topics_of(pipeline)["orders_late"].partitions, topics_of(pipeline)["orders_late"].value) == (1, "raw")
    assert "orders_late" in made_when_needed(pipeline)
    declared = load(FILE.replace("topics:\n", "topics:\n  orders_late: {partitions: 6, value: string}\n"))
    assert "orders_late" not in made_when_needed(declared.pipeline)
    assert topics_of(declared.pipeline)["orders_late"].partitions == 6
    plan = make_plan(loaded)
    assert plan.stages[0].reads[0].watermark == "at, 10 minutes, late records to orders_late"
    assert plan.stages[0].dead_letters == ("orders.dead_letters",)
    edges = [(edge.source, edge.target, edge.label) for edge in graph_of(loaded).edges]
    assert ("stage:hourly", "topic:orders_late", "late records") in edges
    lineage = stage_lineage(loaded, hourly, "localhost:1", {}, is_streaming=True)
    assert "orders_late" in [each.name for each in lineage.outputs]


def test_a_stage_that_reads_the_late_records_follows(load: Load) -> None:
    again = "  - name: again\n    from: {topic: orders_late}\n    to: {delta: lake/late}\n"
    loaded = load(FILE + again)
    hourly, late = loaded.pipeline.stages
    assert upstream(loaded.pipeline, late) == [hourly]
    assert "orders_late" not in made_when_needed(loaded.pipeline)


def test_late_records_are_counted_beside_the_rows_that_spark_dropped() -> None:
    totals = StageTotals("hourly", late_rows=2)
    totals.add_outcome(5, 0, {}, 1, 3)
    totals.add_outcome(5, 0, {}, 0, 1)
    assert (totals.late_records, totals.dead_letters) == (4, 1)
    assert summary(totals).endswith("2 late, 4 late records kept")
    found = {family.name: family.samples for family in families([StageState("shop", "hourly", totals=totals)], 0)}
    assert [sample.value for sample in found["headwater_pipeline_late_records"] if sample.name.endswith("_total")] == [
        4
    ]


# -- changes -------------------------------------------------------------------------------------------------------


def record(load: Load, text: str) -> StageRecord:
    loaded = load(text)
    return record_of(loaded, loaded.pipeline.stages[0], {})


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("", ", late: orders_late", "none is orders_late now"),
        (", late: orders_late", "", "orders_late is none now"),
        (", late: orders_late", ", late: other", "orders_late is other now"),
    ],
)
def test_another_topic_of_late_records_is_safe_and_leaves_the_state(
    load: Load, before: str, now: str, said: str
) -> None:
    old, new = (record(load, FILE.replace(", late: orders_late", late)) for late in (before, now))
    (change,) = changes_of_stage("hourly", Deployed(has_checkpoint=True, record=old), new)
    assert (change.effect, change.what) == (Effect.SAFE, "topic of late records")
    assert said in change.reason
    assert state_form(old.steps, 0) == state_form(new.steps, 0)
    assert (old.steps, old.operators, old.inputs) == (new.steps, new.operators, new.inputs)
    assert StageRecord.decode(new.encode()) == new


def test_records_without_late_are_what_they_were(load: Load) -> None:
    mark = "watermark: {column: at, delay: 1 hour}"
    text = FILE.replace(FROM, "{topic: orders}").replace("sql: S", f"steps:\n      - {mark}\n      - sql: S")
    found = record(load, text)
    assert found.watermarks == ({"of": "steps", "column": "at", "delay": "1 hour"},)
    assert found.steps[0] == {"kind": "watermark", "column": "at", "delay": "1 hour"}
    assert record(load, FILE.replace(", late: orders_late", "")).watermarks == (
        {"of": "orders", "column": "at", "delay": "10 minutes"},
    )


def test_names_that_need_backquotes_keep_them() -> None:
    sql = "SELECT 1 FROM `page-views` GROUP BY window(`page-views`.`@timestamp`, '1 hour')"
    made = followed(sql, ["page-views"], ["@timestamp"])
    assert "window(`page-views`.`@timestamp`, '1 hour')" in made.text


def test_a_comment_before_from_does_not_hide_the_record() -> None:
    made = followed("SELECT id, at -- the event time\nFROM orders", ["orders"], ["at"])
    assert made.text == "SELECT id, at -- the event time\n, `_headwater_record` FROM orders"


def test_a_column_that_the_star_leaves_out_is_not_passed_on() -> None:
    assert followed("SELECT * EXCEPT (at), at AS event_at FROM orders", ["orders"], ["at"]).names == {"event_at"}
