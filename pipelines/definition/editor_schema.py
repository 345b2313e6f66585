"""JSON Schema of pipeline files, for editors: completion, hover texts, errors while typing. Pure.

Generated from the models. Numbers and choices may also be variables, `${name}`.
"""

from __future__ import annotations

from typing import Any

from headwater.pipelines.definition.pipeline import Pipeline

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_VARIABLE = {"type": "string", "pattern": r"\$\{"}


def editor_schema() -> dict[str, Any]:
    """Return the schema as plain values."""
    schema = Pipeline.model_json_schema(by_alias=True)
    # An included file needs neither a name nor stages.
    schema.pop("required", None)
    return {"$schema": DIALECT, **_with_variables(schema), "title": "Headwater pipeline"}


def _with_variables(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_variables(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_variables(part) for key, part in schema.items()}
    is_choice = "enum" in found or "const" in found
    if is_choice or found.get("type") in ("integer", "number", "boolean"):
        about = {key: found.pop(key) for key in ("description", "default", "title") if key in found}
        return {**about, "anyOf": [found, _VARIABLE]}
    return found
