"""docs/reference/pipeline_yaml.md describes every field, and its examples are pipelines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwater.pipelines.definition.loading import parse
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.definition.reference import PARTS, renewed

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "pipeline_yaml.md"


def test_the_tables_are_those_of_the_models() -> None:
    page = PAGE.read_text()
    assert renewed(page) == page, "run `make docs`"


def test_a_page_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="0 headings `pipeline`"):
        renewed("# Nothing\n")


def test_every_field_says_what_it_means() -> None:
    for model in PARTS.values():
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_every_source_and_every_sink_has_an_example() -> None:
    kinds = [heading for heading in PARTS if heading.startswith(("from: ", "to: "))]
    assert len(kinds) == 10
    for heading in kinds:
        place, _, kind = heading.partition(": ")
        section = PAGE.read_text().partition(f"### `{heading}`\n")[2].partition("\n#")[0]
        example = re.search(r"```yaml\npipeline: (.*?)```", section, flags=re.DOTALL)
        assert example, heading
        assert re.search(rf"\b{place}:\s+{{?{kind}:", example[1]), heading


def test_the_examples_are_correct() -> None:
    examples = re.findall(r"```yaml\n(pipeline: .*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) > 1
    common = "topics: {customers: {value: json, schema: customer.json}}\n"
    for example in examples:
        given = {name: name for name in ("data", "lake") if f"${{{name}}}" in example}
        loaded = parse(example, "example.yaml", given, folder="/flows", read_file=lambda path: common)
        assert [str(warning) for warning in loaded.warnings if "${" not in str(warning)] == []
        assert make_plan(loaded).stages
