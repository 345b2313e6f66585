"""Whether columns fit those that a target has. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headwater.pipelines.loads.errors import LoadError

__all__ = ["Misfit", "check_schema", "merged_schema", "misfit", "schema_text"]


def schema_text(schema: str) -> str:
    """Spark's JSON of a schema, its keys sorted: two texts of one schema are equal."""
    return json.dumps(json.loads(schema), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A column that does not fit: its type in the target, '' if it is a new one, and its type now."""

    column: str
    before: str
    now: str

    def __str__(self) -> str:
        """A column's change of type in words."""
        return f"column {self.column} was {self.before} and is {self.now} now"


def misfit(before: str, now: str, *, merge: bool) -> Misfit | None:
    """Compare two schemas in Spark's JSON; '' fits everything. None if they fit.

    A column's type never changes; new columns are added with `merge` only; missing columns read as null.
    """
    if not before:
        return None
    had, has = _fields(before), _fields(now)
    for name, kind in has.items():
        if name in had and had[name] != kind:
            return Misfit(name, _shown(had[name]), _shown(kind))
    new = next((name for name in has if name not in had), None)
    return None if new is None or merge else Misfit(new, "", _shown(has[new]))


def check_schema(before: str, now: str, *, merge: bool) -> None:
    """Raise LoadError if a load's columns do not fit its target."""
    found = misfit(before, now, merge=merge)
    if found is not None and found.before:
        raise LoadError(f"{found}: load into another target")
    if found is not None:
        raise LoadError(
            f"the target has no column {found.column}: add it with --merge-schema, or load into another target"
        )


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
    """A type in words, with the types in it.

    >>> _shown({"type": "array", "elementType": {"type": "struct", "fields": [{"name": "a", "type": "long"}]}})
    'array<struct<a: long>>'
    """
    if not isinstance(kind, dict):
        return str(kind)
    match kind.get("type"):
        case "struct":
            fields = ", ".join(f"{each['name']}: {_shown(each['type'])}" for each in kind["fields"])
            return f"struct<{fields}>"
        case "array":
            return f"array<{_shown(kind['elementType'])}>"
        case "map":
            return f"map<{_shown(kind['keyType'])}, {_shown(kind['valueType'])}>"
    return str(kind.get("type", kind))
