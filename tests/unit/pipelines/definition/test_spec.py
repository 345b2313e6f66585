from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.definition import FilesTable, Loaded
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.validation.pipeline_file import load as load_file


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_a_correct_pipeline_has_no_problem_and_no_warning(load: Callable[..., Loaded], correct: str) -> None:
    loaded = load(correct)
    assert [stage.name for stage in loaded.pipeline.stages] == ["clean", "totals"]
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    ("old", "new", "field", "message", "hint"),
    [
        ("from: {topic: orders}", "form: {topic: orders}", "stages[0].form", "unknown field 'form'", "'from'"),
        ("key: shop}", "keyy: shop}", "stages[0].to[0].keyy", "unknown field 'keyy'", "'key'"),
        (
            "{delta: lake/orders,",
            "{delt: lake/orders,",
            "stages[0].to[1]",
            "a sink names one of topic, delta, files, jdbc, python",
            "did you mean 'delta'?",
        ),
        ("value: json,", "value: jsn,", "topics.orders.value", "'jsn' is not allowed", "'json'"),
        ("partitions: 3", "partitions: 0", "topics.orders.partitions", "greater than or equal to 1, not 0", ""),
        ("format: csv", "format: xml", "tables.shops.format", "'xml' is not allowed", "csv"),
        ("delay: 1 hour", "delay: soon", "stages[1].from.watermark.delay", "'soon' is not an interval", ""),
        ("name: clean", "name: cl ean", "stages[0].name", "'cl ean' is not a name", ""),
        ("that: amount > 0", "that: 1", "stages[0].expect[0].that", "expected text, not 1", "quote it"),
        ("topic: orders_clean, key", "topic: 'a b', key", "stages[0].to[0].topic", "'a b' is not a topic name", ""),
        ("pipeline: orders", "pipelin: orders", "pipelin", "unknown field 'pipelin'", "'pipeline'"),
    ],
)
def test_each_mistake_is_told_with_its_line_its_field_and_what_to_do(
    problems: Callable[..., list[Problem]], correct: str, old: str, new: str, field: Any, message: str, hint: str
) -> None:
    text = correct.replace(old, new, 1)
    found = {problem.field: problem for problem in problems(text)}
    assert message in found[field].message
    assert hint in found[field].hint
    assert found[field].line == line_of(text, new.splitlines()[0])
    assert found[field].file == "orders.yaml"


def test_the_column_is_that_of_the_field(problems: Callable[..., list[Problem]], correct: str) -> None:
    (problem,) = problems(correct.replace("key: shop}", "keyy: shop}", 1))
    assert problem.column == correct.splitlines()[problem.line - 1].index("key:") + 1


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    text = (
        correct.replace("value: json", "value: xml").replace("name: clean", "nam: clean").replace("key: shop", "ky: a")
    )
    lines = [problem.line for problem in problems(text)]
    assert len(lines) >= 4
    assert lines == sorted(lines)


@pytest.mark.parametrize("field", ["from", "to", "name"])
def test_a_stage_without_a_needed_field_is_told_at_the_stage(
    problems: Callable[..., list[Problem]], field: Any
) -> None:
    stage = {"name": "name: a", "from": "from: {topic: t}", "to": "to: [{topic: u}]"}
    del stage[field]
    text = "pipeline: p\ntopics: {t: {value: string}}\nstages:\n  - " + "\n    ".join(stage.values()) + "\n"
    (problem,) = problems(text)
    assert (problem.line, problem.field) == (4, f"stages[0].{field}")
    assert "is missing" in problem.message
    assert problem.hint


def test_a_stage_with_sql_and_python_is_refused(problems: Callable[..., list[Problem]], correct: str) -> None:
    text = correct.replace("    to: [{topic: totals", "    python: {file: a.py, function: f}\n    to: [{topic: totals")
    assert "not both" in problems(text)[0].message


def test_a_schema_for_a_topic_that_is_not_json_is_refused(problems: Callable[..., list[Problem]], correct: str) -> None:
    assert "schema is for json, csv" in problems(correct.replace("value: json", "value: raw"))[0].message


def shops(loaded: Loaded) -> str:
    table = loaded.pipeline.tables["shops"]
    assert isinstance(table, FilesTable)
    return table.path


def test_variables_come_from_the_command_line_and_from_the_file(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("path: shops.csv", 'path: "${data}/shops.csv"')
    text = "variables: {data: here, other: 1}\n" + text
    assert shops(load(text)) == "here/shops.csv"
    assert shops(load(text, variables={"data": "there"})) == "there/shops.csv"


def test_an_escaped_variable_stays_as_it_is(load: Callable[..., Loaded], correct: str) -> None:
    text = correct.replace("amount > 0", "\"'$${x}' <> shop\"")
    assert load(text).pipeline.stages[0].expect[0].that == "'${x}' <> shop"


def test_an_unknown_variable_is_told_where_it_stands_with_the_nearest_name(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    text = "variables: {data: here}\n" + correct.replace("path: shops.csv", 'path: "${dta}/shops.csv"')
    (problem,) = problems(text)
    assert (problem.line, problem.field) == (6, "tables.shops.path")
    assert "${dta}" in problem.message
    assert "did you mean 'data'?" in problem.hint


def test_a_value_for_a_variable_that_the_pipeline_does_not_have_is_refused(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    text = "variables: {data: here}\n" + correct
    (problem,) = problems(text, variables={"dta": "x"})
    assert problem.field == "--set dta"
    assert "did you mean 'data'?" in problem.hint


def test_paths_are_seen_from_the_folder_of_the_file(load: Callable[..., Loaded], correct: str) -> None:
    loaded = load(correct)
    assert loaded.path("lake/orders") == "/flows/lake/orders"
    assert loaded.path("/lake/orders") == "/lake/orders"
    assert loaded.path("s3a://lake/orders") == "s3a://lake/orders"


def test_a_file_that_does_not_exist_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot read the pipeline: No such file"):
        load_file(str(tmp_path / "none.yaml"))


def test_a_file_that_is_not_text_is_one_problem(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineError, match="not UTF-8"):
        load_file(str(path))


def test_sql_that_the_parser_does_not_know_is_a_warning_only(load: Callable[..., Loaded], correct: str) -> None:
    loaded = load(correct.replace("sql: SELECT * FROM orders\n", "sql: SELEC * FRM orders\n"))
    (warning,) = loaded.warnings
    assert warning.field == "stages[0].sql"
    assert warning.line == line_of(correct, "sql: SELECT * FROM orders")


def test_an_expectation_that_the_parser_does_not_know_is_a_warning_only(
    load: Callable[..., Loaded], correct: str
) -> None:
    (warning,) = load(correct.replace("amount > 0", "amount > > (")).warnings
    assert warning.field == "stages[0].expect[0].that"


def test_a_variable_without_dollar_and_quotes_is_told_how_to_write_it(
    problems: Callable[..., list[Problem]], correct: str
) -> None:
    (problem,) = problems(correct.replace("{topic: orders_clean, key: shop}", "{topic: {clean}, key: shop}"))
    assert (problem.line, problem.column, problem.field) == (13, 17, "stages[0].to[0].topic")
    assert problem.message == "expected text, not a mapping"
    assert problem.hint == 'for the variable, write "${clean}" in quotes'
