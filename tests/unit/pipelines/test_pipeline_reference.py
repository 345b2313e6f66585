"""docs/reference/pipeline_yaml.md describes every field, and its examples are pipelines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipelines import spec
from pipelines.plan import make_plan
from pipelines.spec import fields_of, parse

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "pipeline_yaml.md"
PARTS = {
    "pipeline": spec.Pipeline,
    "topics": spec.Topic,
    "tables": spec.Table,
    "stages": spec.Stage,
    "from": spec.From,
    "watermark": spec.Watermark,
    "expect": spec.Expectation,
    "python": spec.PythonTransform,
    "to: topic": spec.TopicSink,
    "to: delta": spec.DeltaSink,
}


@pytest.mark.parametrize(("heading", "model"), PARTS.items(), ids=list(PARTS))
def test_every_field_has_a_row_and_no_row_lacks_a_field(heading: str, model: Any) -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (section,) = [part for part in sections if part.splitlines()[0].strip("` ") == heading]
    assert re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE) == fields_of(model)


def test_the_examples_are_correct() -> None:
    examples = re.findall(r"```yaml\n(pipeline: .*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert examples
    for example in examples:
        loaded = parse(example, "example.yaml", {"data": "d", "lake": "l"}, folder="/flows")
        assert loaded.warnings == ()
        assert make_plan(loaded).stages
