from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.graph import topological_order
from headwater.pipelines.errors import Problem


def stage(name: str, source: str, target: str) -> str:
    return f"  - {{name: {name}, from: {{topic: {source}}}, to: [{{topic: {target}}}]}}\n"


def pipeline(*stages: str, topics: str = "{a: {value: string}}") -> str:
    return f"pipeline: p\ntopics: {topics}\nstages:\n" + "".join(stages)


def test_stages_come_after_those_that_feed_them_whatever_their_order_in_the_file(load: Callable[..., Loaded]) -> None:
    loaded = load(pipeline(stage("third", "c", "d"), stage("first", "a", "b"), stage("second", "b", "c")))
    assert [s.name for s in topological_order(loaded.pipeline)] == ["first", "second", "third"]


def test_a_stage_that_reads_dead_letters_comes_after_the_stage_that_makes_them(load: Callable[..., Loaded]) -> None:
    loaded = load(pipeline(stage("repair", "a.dead_letters", "d"), stage("first", "a", "b")))
    assert [s.name for s in topological_order(loaded.pipeline)] == ["first", "repair"]


def test_a_cycle_is_told_with_the_stages_along_it(problems: Callable[..., list[Problem]]) -> None:
    topics = "{a: {value: string}, b: {value: string}}"
    (problem,) = problems(pipeline(stage("one", "a", "b"), stage("two", "b", "a"), topics=topics))
    assert "cycle" in problem.message
    assert "one -> two" in problem.message or "two -> one" in problem.message


def test_a_stage_that_reads_its_own_output_is_a_cycle(problems: Callable[..., list[Problem]]) -> None:
    assert any("cycle: one -> one" in p.message for p in problems(pipeline(stage("one", "a", "a"))))


def test_two_stages_of_one_name_are_refused_even_if_case_differs(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(pipeline(stage("one", "a", "b"), stage("One", "a", "c")))
    assert (problem.line, problem.field) == (5, "stages[1].name")
    assert "two stages named 'One'" in problem.message


def test_a_topic_that_nobody_declares_or_writes_is_missing(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    (problem,) = problems(
        correct.replace("from: {topic: orders}", "from: {topic: ordres}").replace(
            "sql: SELECT * FROM orders\n", "sql: SELECT * FROM ordres\n"
        )
    )
    assert problem.field == "stages[0].from.topic"
    assert problem.line == 8
    assert "neither declared under topics nor written by a stage" in problem.message
    assert "did you mean 'orders'?" in problem.hint


def test_a_topic_that_exists_on_the_broker_need_not_be_declared(load: Callable[..., Loaded]) -> None:
    text = pipeline(stage("one", "there", "b"))
    assert load(text, existing_topics=frozenset({"there"})).pipeline.stages[0].inputs[0].name == "there"


def test_json_without_a_schema_from_outside_is_refused(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(pipeline(stage("one", "a", "b"), topics="{a: {value: json}}"))
    assert "no schema, and no stage writes it" in problem.message
    assert problem.hint.startswith("add a schema to topics.a")


def test_a_stage_writes_to_a_table_of_a_database_once(
    load: Callable[..., Loaded], problems: Callable[..., list[Problem]]
) -> None:
    text = """\
pipeline: p
stages:
  - name: s
    from: {rate: 1}
    to: [{jdbc: 'jdbc:snowflake://acc/?user=u&db=A B', table: t}, {jdbc: 'jdbc:snowflake://acc/?db=B B', table: t}]
"""
    assert len(load(text).pipeline.stages[0].to) == 2
    (problem,) = problems(text.replace("db=B B", "db=A B"))
    assert problem.message == "the stage writes to jdbc t of jdbc:snowflake://acc/ twice"


@pytest.mark.parametrize("event_type", ["{header: kind}", "{field: kind}"])
def test_a_topic_with_several_event_types_is_no_table(
    problems: Callable[..., list[Problem]], correct: str, event_type: str
) -> None:
    events = (
        f"{{value: json, events: {{made: {{schema: m.json}}, gone: {{schema: g.json}}}}, event_type: {event_type}}}"
    )
    text = correct.replace("tables:", f"  changes: {events}\ntables:")
    (problem,) = problems(text.replace("shops: {format: csv, path: shops.csv}", "shops: {topic: changes}"))
    assert problem.field == "tables.shops.topic"
    assert problem.message == "the topic 'changes' has several event types; a table can have only one"


def test_a_table_that_does_not_exist_is_told_with_the_nearest_name(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    (problem,) = problems(correct.replace("JOIN shops", "JOIN shps"))
    assert problem.field == "stages[1].sql"
    assert "reads 'shps'" in problem.message
    assert "did you mean 'shops'?" in problem.hint


def test_sql_that_does_not_read_the_stages_topic_is_refused(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    (problem,) = problems(correct.replace("sql: SELECT * FROM orders\n", "sql: SELECT * FROM shops\n"))
    assert "does not read the stage's input `orders`" in problem.message


def test_names_of_common_table_expressions_are_no_tables(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("SELECT * FROM orders\n", "WITH good AS (SELECT * FROM ORDERS) SELECT * FROM good\n")
    assert load(text).warnings == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("- {delta: lake/orders,", "- {topic: orders_clean,", "unknown field 'partition_by'"),
        (
            "- {delta: lake/orders, partition_by: [shop]}",
            "- {topic: orders_clean}",
            "writes to topic orders_clean twice",
        ),
        ("  shops: {format", "  Orders: {format", "'Orders' is a topic and a table"),
    ],
)
def test_clashes_are_refused(
    problems: Callable[..., list[Problem]], correct: str, old: str, new: str, message: str
) -> None:
    assert any(message in problem.message for problem in problems(correct.replace(old, new)))


def test_two_expectations_of_one_name_are_refused(problems: Callable[..., list[Problem]], correct: str) -> None:
    text = correct.replace("{name: paid, that: amount > 0}", "{name: paid, that: a}\n      - {name: paid, that: b}")
    (problem,) = problems(text)
    assert (problem.line, problem.field) == (11, "stages[0].expect[1].name")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("jdbc:redshift:iam://c:us-east-1/dev", "jdbc:redshift:iam://c:us-east-1/prod"),
        ("jdbc:postgresql://db/a%20b", "jdbc:postgresql://db/c%20d"),
        ("jdbc:unknown:a", "jdbc:unknown:b"),
        ("${env:NOT_SET}", "${env:NOT_SET_EITHER}"),
    ],
)
def test_tables_of_databases_that_may_be_others_are_written_side_by_side(
    load: Callable[..., Loaded], one: str, other: str
) -> None:
    text = f"pipeline: p\nstages:\n  - name: s\n    from: {{rate: 1}}\n    to: [{{jdbc: '{one}', table: t}}, "
    assert len(load(f"{text}{{jdbc: '{other}', table: t}}]\n").pipeline.stages[0].to) == 2


def unused(loaded: Loaded) -> list[str]:
    return [str(warning) for warning in loaded.warnings]


def test_a_declared_topic_that_no_stage_names_is_a_warning_at_its_line(load: Callable[..., Loaded]) -> None:
    topics = "\n  a: {value: string}\n  spare: {partitions: 3}\n  twoo: {value: string}"
    loaded = load(pipeline(stage("first", "a", "two"), topics=topics))
    spare, twoo = unused(loaded)
    what = "no stage reads or writes the topic"
    assert spare == f"orders.yaml:4:3: topics.spare: {what} 'spare'; remove it, or name it in a stage"
    hint = "did you mean 'two'? Else remove it, or name it in a stage"
    assert twoo == f"orders.yaml:5:3: topics.twoo: {what} 'twoo'; {hint}"


def test_topics_of_dead_letters_and_of_tables_are_used(load: Callable[..., Loaded]) -> None:
    topics = "{a: {value: string}, a.dead_letters: {partitions: 3}, k: {value: string}, k.dead_letters: {}}"
    text = pipeline(stage("first", "a", "b"), topics=topics).replace("from:", "sql: SELECT a.* FROM a JOIN t, from:")
    assert unused(load(text + "tables: {t: {topic: k}}\n")) == []


def test_a_topic_of_late_records_is_used(load: Callable[..., Loaded]) -> None:
    text = """\
pipeline: p
topics: {a: {schema: "id INT, at TIMESTAMP", value: csv}, late: {value: raw}}
stages:
  - name: s
    from: {topic: a, watermark: {column: at, delay: 1 hour, late: late}}
    steps: [{deduplicate: {by: [id, at]}}]
    to: {topic: b}
"""
    assert unused(load(text)) == []


def test_a_table_that_no_stage_reads_is_a_warning(load: Callable[..., Loaded]) -> None:
    tables = "tables:\n  t: {delta: t}\n"
    (warning,) = unused(load(pipeline(stage("first", "a", "b")) + tables))
    said = "tables.t: no stage reads the table 't'; remove it, or join it in a stage's SQL"
    assert warning == f"orders.yaml:6:3: {said}"
    python = stage("first", "a", "b").replace("from:", "python: {file: f.py, function: f}, from:")
    assert unused(load(pipeline(python) + tables)) == [], "a function may read any table"


def test_unused_names_of_an_included_file_are_no_warnings(load: Callable[..., Loaded]) -> None:
    shared = "topics: {b: {value: string}, c: {value: string}}\ntables: {t: {delta: t}}\n"
    text = pipeline(stage("first", "a", "b")) + "include: [shared.yaml]\n"
    assert unused(load(text, read_file=lambda path: shared)) == []
