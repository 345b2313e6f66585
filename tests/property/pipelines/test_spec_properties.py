"""Whatever a file says, it is a pipeline or a list of problems with places; text survives substitution."""

from __future__ import annotations

import re

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.pipelines.definition import Pipeline, fields_of
from headwater.pipelines.definition.editor_schema import editor_schema
from headwater.pipelines.definition.loading import parse
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.errors import PipelineError

SCHEMA = editor_schema()
NAMES = sorted(
    {name for part in SCHEMA["$defs"].values() for name in part.get("properties", {})} | set(fields_of(Pipeline))
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5_000_000_000),
    st.floats(allow_nan=False),
    st.dates(),
    st.sampled_from(["a", "b", "json", "avro", "1 hour", "${a}", "${env:A}", "$${b}", "SELECT * FROM a", "lake/x", ""]),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)),
    max_leaves=30,
)
STAGES = st.fixed_dictionaries(
    {"name": SCALARS, "from": VALUES, "to": VALUES},
    optional={"sql": SCALARS, "steps": VALUES, "expect": VALUES, "python": VALUES, "mode": SCALARS},
)

OPTIONAL = ("topics", "tables", "variables", "environments", "registry", "spark", "tests", "include")


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.fixed_dictionaries(
        {"pipeline": st.one_of(st.just("p"), SCALARS), "stages": st.one_of(st.lists(STAGES, max_size=3), VALUES)},
        optional=dict.fromkeys(
            ("topics", "tables", "variables", "environments", "registry", "spark", "tests", "include"), VALUES
        ),
    )
)
def test_any_values_are_a_pipeline_or_problems_with_places(values: dict[str, object]) -> None:
    text = yaml.safe_dump(values, allow_unicode=True)
    try:
        make_plan(parse(text, "f.yaml", folder="/flows"))
    except PipelineError as error:
        lines = text.count("\n") + 1
        for problem in error.problems:
            assert problem.message
            assert "\0" not in str(problem)
            assert 0 <= problem.line <= lines


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_pipeline_or_problems(text: str) -> None:
    try:
        parse(text, "f.yaml")
    except PipelineError as error:
        assert error.problems


SAFE = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85\xa0"), max_size=30)


@settings(deadline=None)
@given(SAFE, SAFE, SAFE)
def test_text_and_variables_come_out_as_they_went_in(before: str, value: str, after: str) -> None:
    def escaped(text: str) -> str:
        # A `$` right before the variable would escape it.
        return text.replace("${", "$${") + ("." if text.endswith("$") else "")

    path = f"x{escaped(before)}${{v}}{escaped(after)}"
    text = yaml.safe_dump(
        {
            "pipeline": "p",
            "variables": {"v": escaped(value)},
            "topics": {"a": {"value": "string"}},
            "stages": [{"name": "s", "from": {"topic": "a"}, "to": {"delta": path}}],
        },
        allow_unicode=True,
    )
    (sink,) = parse(text, "f.yaml").pipeline.stages[0].to
    plain = [re.sub(r"\$\$\{", "${", escaped(part)) for part in (before, value, after)]
    assert getattr(sink, "delta") == "x" + "".join(plain)  # noqa: B009 - a union
