"""The tables of docs/reference/pipeline_yaml.md, generated from the models.

`python -m headwater.pipelines.definition.reference PAGE` regenerates them. A test compares the page with the models.
Pure except for `main`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from headwater.pipelines import definition as spec
from headwater.pipelines.definition.model import Model, Shown
from headwater.pipelines.definition.sinks import SinkModel
from headwater.pipelines.definition.sources import Input
from headwater.pipelines.definition.steps import BatchStep

PARTS: Mapping[str, type[Model]] = {
    "pipeline": spec.Pipeline,
    "environments": spec.Environment,
    "registry": spec.Registry,
    "topics": spec.Topic,
    "topics: events": spec.Event,
    "topics: event_type": spec.EventType,
    "tables: files": spec.FilesTable,
    "tables: delta": spec.DeltaTable,
    "tables: topic": spec.TopicTable,
    "tables: jdbc": spec.JdbcTable,
    "stages": spec.Stage,
    "from: topic": spec.TopicSource,
    "from: delta": spec.DeltaSource,
    "from: files": spec.FilesSource,
    "from: jdbc": spec.JdbcSource,
    "from: rate": spec.RateSource,
    "watermark": spec.TopicWatermark,
    "steps: sql": spec.SqlStep,
    "steps: python": spec.PythonStep,
    "python": spec.PythonFunction,
    "deduplicate": spec.Deduplicate,
    "stateful": spec.Stateful,
    "expect": spec.Expectation,
    "restart": spec.Restart,
    "to: topic": spec.TopicSink,
    "to: delta": spec.DeltaSink,
    "merge": spec.Merge,
    "to: files": spec.FilesSink,
    "to: jdbc": spec.JdbcSink,
    "to: python": spec.PythonSink,
    "tests": spec.PipelineTest,
}
"""Headings of the page, each with the model of its fields. The text describes parts with only one field."""

_HEAD = ("| field | type | default | meaning |", "|---|---|---|---|")


def table(model: type[Model]) -> list[str]:
    """Return the lines of the table for a model's fields."""
    rows = []
    # The model's own fields come before inherited ones.
    shared = {name for base in (Input, SinkModel, BatchStep) if issubclass(model, base) for name in base.model_fields}
    for name, field in sorted(model.model_fields.items(), key=lambda item: item[0] in shared):
        shown = next((data for data in field.metadata if isinstance(data, Shown)), Shown(""))
        kind = shown.kind or kind_shown(field.annotation)
        rows.append(f"| `{field.alias or name}` | {kind} | {shown.default or _default(field)} | {field.description} |")
    return [*_HEAD, *rows]


def kind_shown(annotation: Any) -> str:
    """Describe a field's type in words.

    >>> kind_shown(int | None)
    'number'
    """
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is Annotated:
        return next((data.kind for data in parts[1:] if isinstance(data, Shown)), "") or kind_shown(parts[0])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(kind_shown(part) for part in parts)
    if get_origin(annotation) is dict:
        is_model = isinstance(parts[1], type) and issubclass(parts[1], Model)
        return f"name: {kind_shown(parts[1])}" if is_model else "name: value"
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return next((f"[{heading}](#{_anchor(heading)})" for heading, m in PARTS.items() if m is annotation), "mapping")
    names = {str: "text", int: "number", bool: "`true`, `false`"}
    return names.get(annotation, "text")


def _anchor(heading: str) -> str:
    return heading.replace(":", "").replace(" ", "-")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True) if field.default_factory is None else None
    if value is None or value == ():
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def renewed(page: str) -> str:
    """Regenerate the table under each heading of PARTS. Raises ValueError if a heading is missing."""
    lines = page.splitlines()
    for heading, model in PARTS.items():
        starts = [i for i, line in enumerate(lines) if line.lstrip("#") == f" `{heading}`"]
        if len(starts) != 1:
            raise ValueError(f"the page has {len(starts)} headings `{heading}`")
        first = next((i for i in range(starts[0] + 1, len(lines)) if lines[i].startswith("|")), len(lines))
        next_heading = next((i for i in range(starts[0] + 1, len(lines)) if lines[i].startswith("#")), len(lines))
        if first >= next_heading:
            raise ValueError(f"the page has no table under `{heading}`")
        last = next((i for i in range(first, len(lines)) if not lines[i].startswith("|")), len(lines))
        lines[first:last] = table(model)
    return "\n".join(lines) + "\n"


def main(path: str) -> None:
    """Regenerate the tables of the page at `path`."""
    page = Path(path)
    page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
