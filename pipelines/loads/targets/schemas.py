"""Whether a load's columns fit those that its target has. Pure."""

from __future__ import annotations

import json
from typing import Any

from headwater.pipelines.loads.errors import LoadError

__all__ = ["check_schema", "merged_schema", "schema_text"]


def schema_text(schema: str) -> str:
    """Spark's JSON of a schema, its keys sorted: two texts of one schema are equal."""
    return json.dumps(json.loads(schema), sort_keys=True)


def check_schema(before: str, now: str, *, merge: bool) -> None:
    """Compare two schemas in Spark's JSON; '' fits everything. Raises LoadError.

    A column's type never changes; new columns are added with `merge` only; missing columns read as null.
    """
    if not before:
        return
    had, has = _fields(before), _fields(now)
    for name, kind in has.items():
        if name in had and had[name] != kind:
            raise LoadError(
                f"column {name} was {_shown(had[name])} and is {_shown(kind)} now: load into another target"
            )
    new = [name for name in has if name not in had]
    if new and not merge:
        raise LoadError(f"the target has no column {new[0]}: add it with --merge-schema, or load into another target")


def merged_schema(before: str, now: str) -> str:
    """The columns of both, those of `before` first: what the files of a target have in all."""
    had, has = json.loads(before), json.loads(now)
    names = {field["name"] for field in had["fields"]}
    had["fields"] += [field for field in has["fields"] if field["name"] not in names]
    return json.dumps(had, sort_keys=True)


def _fields(schema: str) -> dict[str, Any]:
    return {str(field["name"]): _nullable(field["type"]) for field in json.loads(schema)["fields"]}


def _nullable(kind: Any) -> Any:
    """A type without what does not matter to a reader: nullability and metadata."""
    if isinstance(kind, dict):
        dropped = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: _nullable(value) for key, value in kind.items() if key not in dropped}
    return [_nullable(each) for each in kind] if isinstance(kind, list) else kind


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", kind))
