from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.includes import INCLUDES_MAX
from headwater.pipelines.errors import Problem
from headwater.pipelines.validation.pipeline_file import load as load_file

MAIN = """\
pipeline: p
include: [common.yaml]
variables: {lake: lake}
topics: {a: {value: string}}
stages:
  - {name: one, from: {topic: a}, to: [{topic: b}]}
"""
COMMON = """\
variables: {other: x}
spark: {spark.a: 1}
topics: {c: {value: string, partitions: 3}}
tables: {t: {format: csv, path: t.csv}}
stages:
  - {name: two, from: {topic: c}, to: [{delta: "${lake}/two"}]}
tests:
  - {name: t, stage: two, given: {c: [{value: x}]}, expect: [{value: x}]}
"""


def files(**texts: str) -> Callable[[str], str]:
    def read(path: str) -> str:
        name = path.removesuffix(".yaml")
        if name not in texts:
            raise FileNotFoundError(2, "No such file or directory")
        return texts[name]

    return read


def test_what_an_included_file_holds_comes_in(load: Callable[..., Loaded]) -> None:
    loaded = load(MAIN, read_file=files(common=COMMON))
    assert [stage.name for stage in loaded.pipeline.stages] == ["one", "two"]
    assert set(loaded.pipeline.topics) == {"a", "c"}
    assert set(loaded.pipeline.tables) == {"t"}
    assert [test.stage for test in loaded.pipeline.tests] == ["two"]
    assert loaded.pipeline.variables == {"lake": "lake", "other": "x"}


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("topics: {c:", "topics: {a:", "common.yaml:3:10: topics.a", "'a' is given in orders.yaml:4 already"),
        ("{other: x}", "{lake: x}", "common.yaml:1:13: variables.lake", "'lake' is given in orders.yaml:3 already"),
        ("variables:", "pipeline: q\nvariables:", "common.yaml:1:1: pipeline", "'pipeline' is given in orders.yaml:1"),
    ],
)
def test_a_name_that_two_files_give_is_told_with_both_places(
    problems: Callable[..., list[Problem]], old: str, new: str, place: str, message: str
) -> None:
    (problem,) = problems(MAIN, read_file=files(common=COMMON.replace(old, new)))
    assert str(problem).startswith(place)
    assert message in str(problem)


def test_mistakes_in_an_included_file_have_its_name_and_lines(problems: Callable[..., list[Problem]]) -> None:
    common = COMMON.replace("partitions: 3", "partition: 3").replace("from: {topic: c}", "form: {topic: c}")
    found = problems(MAIN.replace("value: string", "value: strin"), read_file=files(common=common))
    assert [(p.file, p.line) for p in found] == [
        ("orders.yaml", 4),
        ("common.yaml", 3),
        ("common.yaml", 6),
        ("common.yaml", 6),
    ]
    assert found[1].hint == "did you mean 'partitions'?"


def test_two_stages_of_one_name_in_two_files_are_told(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(
        MAIN, read_file=files(common=COMMON.replace("name: two", "name: one").replace("stage: two", "stage: one"))
    )[:1]
    assert (problem.file, problem.line) == ("common.yaml", 6)
    assert "two stages named 'one'" in problem.message


def test_included_files_may_include_others_and_each_comes_in_once(load: Callable[..., Loaded]) -> None:
    read = files(
        common="include: [more.yaml, common.yaml]\n" + COMMON, more="include: common.yaml\nspark: {spark.b: 2}\n"
    )
    loaded = load(MAIN, read_file=read)
    assert {name: text.reveal() for name, text in loaded.pipeline.spark.items()} == {"spark.a": "1", "spark.b": "2"}


def test_every_file_that_cannot_be_read_is_told(problems: Callable[..., list[Problem]]) -> None:
    text = MAIN.replace("[common.yaml]", "[common.yaml, none.yaml, '${x}.yaml']")
    found = problems(text, read_file=files(common="a: [\n"))
    assert [(p.file, p.field) for p in found] == [
        ("orders.yaml", "include"),
        ("orders.yaml", "include[1]"),
        ("common.yaml", ""),
    ]
    assert "cannot read none.yaml: No such file" in found[1].message


def test_a_chain_of_files_without_end_is_cut(problems: Callable[..., list[Problem]]) -> None:
    def read(path: str) -> str:
        return f"include: [n{int(path[1:-5]) + 1}.yaml]\n"

    (problem,) = problems(MAIN.replace("common.yaml", "n0.yaml"), read_file=read)
    assert f"more than {INCLUDES_MAX} files" in problem.message


def test_a_list_where_names_belong_is_told_in_the_file_that_has_it(problems: Callable[..., list[Problem]]) -> None:
    found = problems(MAIN, read_file=files(common="topics: [a]\nstages: {a: 1}\n"))
    assert {(p.file, p.field) for p in found} == {("common.yaml", "topics"), ("common.yaml", "stages")}


def test_files_are_seen_from_the_folder_of_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "common.yaml").write_text(COMMON)
    path = tmp_path / "p.yaml"
    path.write_text(MAIN.replace("common.yaml", "parts/common.yaml"))
    loaded = load_file(str(path))
    assert [stage.name for stage in loaded.pipeline.stages] == ["one", "two"]
    assert loaded.problem(("stages", 1, "name"), "x").file == str(tmp_path / "parts" / "common.yaml")
