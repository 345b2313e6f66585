"""The pipelines of conf/pipelines are correct, and their tests speak of columns that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headwater.cli.demo.files import conf_file
from headwater.pipelines.definition.editor_schema import editor_schema
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.definition.yaml_source import read
from headwater.pipelines.validation.pipeline_file import load

FOLDER = Path(conf_file("pipelines", "flights.yaml")).parent
EXAMPLES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_has_neither_problems_nor_warnings(path: Path) -> None:
    loaded = load(str(path), environ={})
    assert loaded.warnings == ()
    assert loaded.pipeline.pipeline == path.stem
    assert len(make_plan(loaded).stages) == len(loaded.pipeline.stages)
    known = editor_schema()["properties"]
    assert set(loaded.document.values) <= set(known)


def plain(values: Any) -> Any:
    """Values as an editor sees them: moments are text."""
    return json.loads(json.dumps(values, default=lambda value: value.isoformat()))


def test_editors_find_no_mistake_in_the_examples_and_in_those_of_the_reference() -> None:
    validator = jsonschema.Draft202012Validator(editor_schema())
    page = (FOLDER.parents[1] / "docs" / "reference" / "pipeline_yaml.md").read_text()
    texts = [path.read_text() for path in EXAMPLES] + re.findall(r"```yaml\n(pipeline: .*?)```", page, re.DOTALL)
    assert len(texts) > len(EXAMPLES) + 1
    for text in texts:
        assert [error.message for error in validator.iter_errors(plain(read(text, "f").values))] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": [{"nam": "s"}]},
        {"topics": {"a": {"partitions": 0}}},
        {"topics": {"a": {"value": "xml"}}},
        {"stages": [{"name": "s", "from": {"topic": "a"}, "to": {"delt": "x"}}]},
    ],
)
def test_editors_find_mistakes(wrong: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(editor_schema()).is_valid({"pipeline": "p", **wrong})


def test_there_is_an_example_of_each_kind() -> None:
    assert {path.stem for path in EXAMPLES} == {"activity", "cdc", "flights", "metrics"}
