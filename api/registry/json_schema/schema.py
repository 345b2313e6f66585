"""A JSON Schema in the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from headwater.api.registry.json_schema import differences
from headwater.api.registry.json_schema.document import Document, load
from headwater.api.registry.json_schema.nodes import Graph
from headwater.api.registry.model import SchemaType
from headwater.api.registry.parsed import Dependencies, ParsedSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError, Problem


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A parsed JSON Schema with its referenced documents."""

    raw: Any
    graph: Graph
    schema_type: SchemaType = field(default=SchemaType.JSON, init=False)

    @classmethod
    def parse(cls, text: str, dependencies: Dependencies) -> JsonSchema:
        """Parse a schema; referenced documents are known by the names of the references and by their own `$id`.

        Raises:
            InvalidSchemaError: the text is not a JSON Schema, or a reference has no target.
        """
        used: dict[str, Any] = {}
        for dependency in dependencies:
            if not isinstance(dependency.parsed, JsonSchema):
                raise InvalidSchemaError(f"the reference {dependency.name!r} is no JSON Schema")
            used[dependency.name] = dependency.parsed.raw
        raw = load(text)
        return cls(raw, Graph(Document(raw, used)))

    @property
    def canonical(self) -> str:
        """The text without insignificant whitespace."""
        return _dump(self.raw, sort_keys=False)

    def normalized(self) -> str:
        """Return the text with the keys of every object sorted."""
        return _dump(self.raw, sort_keys=True)

    def formatted(self, form: str) -> str:
        """Return the text; JSON Schema has one form only."""
        del form
        return self.canonical

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why this schema may reject data that is valid under `written`."""
        assert isinstance(written, JsonSchema)
        return [
            Problem(problem.kind, f"#/{problem.path}", problem.text)
            for problem in differences.problems(written.graph, self.graph)
        ]


def _dump(raw: Any, *, sort_keys: bool) -> str:
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
