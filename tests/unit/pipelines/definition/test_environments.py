from __future__ import annotations

from collections.abc import Callable

from headwater.pipelines.definition import DeltaSink, Loaded
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.errors import Problem

TEXT = """\
pipeline: p
variables: {lake: lake, size: 3}
environments:
  production:
    variables: {lake: "hdfs://lake", size: 6}
    spark: {spark.master: "spark://m:7077"}
    registry: {url: "http://production"}
    checkpoints: "hdfs://lake/${size}"
  test: {}
registry: {url: "http://localhost"}
spark: {spark.master: "local[2]", spark.x: 1}
topics: {a: {value: string, partitions: "${size}"}}
stages:
  - {name: one, from: {topic: a}, to: [{delta: "${lake}/one"}]}
"""


def lake(loaded: Loaded) -> str:
    (sink,) = loaded.pipeline.stages[0].to
    assert isinstance(sink, DeltaSink)
    return sink.delta


def spark(loaded: Loaded) -> dict[str, str]:
    return {name: text.reveal() for name, text in loaded.pipeline.spark.items()}


def test_without_an_environment_the_files_own_values_count(load: Callable[..., Loaded]) -> None:
    loaded = load(TEXT)
    assert lake(loaded) == "lake/one"
    assert spark(loaded) == {"spark.master": "local[2]", "spark.x": "1"}
    assert loaded.pipeline.checkpoints == ""
    assert make_plan(loaded).environment == ""


def test_an_environment_wins_over_the_file_and_set_over_both(load: Callable[..., Loaded]) -> None:
    loaded = load(TEXT, environment="production")
    assert lake(loaded) == "hdfs://lake/one"
    assert loaded.pipeline.topics["a"].partitions == 6
    assert spark(loaded) == {"spark.master": "spark://m:7077", "spark.x": "1"}
    assert str(loaded.pipeline.registry.url if loaded.pipeline.registry else "") == "http://production"
    assert loaded.pipeline.checkpoints == "hdfs://lake/6"
    assert make_plan(loaded).environment == "production"
    assert lake(load(TEXT, variables={"lake": "mine"}, environment="production")) == "mine/one"


def test_an_environment_that_does_not_exist_is_told_with_the_nearest(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(TEXT, environment="prodction")
    assert (problem.field, problem.hint) == ("--env prodction", "did you mean 'production'?")
    without = "pipeline: p\ntopics: {a: {value: string}}\nstages: [{name: s, from: {topic: a}, to: [{topic: b}]}]\n"
    (problem,) = problems(without, environment="x")
    assert problem.hint == "the pipeline has no environments"


def test_mistakes_in_an_environment_are_told_where_it_stands_chosen_or_not(
    problems: Callable[..., list[Problem]],
) -> None:
    text = TEXT.replace('url: "http://production"', "ur: x")
    for environment in ("", "production"):
        found = problems(text, environment=environment)
        assert {problem.line for problem in found} == {7}
    (problem,) = problems(TEXT.replace("size: 6", "size: six"), environment="production")
    assert problem.field == "topics.a.partitions"


def test_a_variable_that_only_an_environment_has_is_unknown_without_it(
    load: Callable[..., Loaded], problems: Callable[..., list[Problem]]
) -> None:
    text = TEXT.replace("{lake: lake, size: 3}", "{size: 3}")
    assert lake(load(text, environment="production")) == "hdfs://lake/one"
    (problem,) = problems(text)
    assert "no value for the variable ${lake}" in problem.message


def test_checkpoints_are_kept_on_hdfs_only(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(TEXT.replace("topics:", "checkpoints: s3a://lake/checkpoints\ntopics:", 1))
    assert (problem.field, problem.line) == ("checkpoints", 12)
    assert "checkpoints are kept at an hdfs:// URL" in problem.message
