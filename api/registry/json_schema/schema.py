"""A JSON Schema as the registry sees it."""

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
    """A parsed JSON Schema, with the documents it refers to."""

    raw: Any
    graph: Graph
    schema_type: SchemaType = field(default=SchemaType.JSON, init=False)

    @classmethod
    def parse(cls, text: str, dependencies: Dependencies) -> JsonSchema:
        """Parse a text; what it refers to is known by the names of the references, and by its own `$id`.

        Raises:
            InvalidSchemaError: it is no JSON Schema, or a reference leads nowhere.
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
        """The text without layout."""
        return _dump(self.raw, sort_keys=False)

    def normalized(self) -> str:
        """Return the text with every object's keys in order."""
        return _dump(self.raw, sort_keys=True)

    def formatted(self, form: str) -> str:
        """Return the text: there is one form only."""
        del form
        return self.canonical

    def problems_reading(self, written: ParsedSchema) -> list[Problem]:
        """Return why data that the other schema takes may not be taken by this one."""
        assert isinstance(written, JsonSchema)
        return [
            Problem(problem.kind, f"#/{problem.path}", problem.text)
            for problem in differences.problems(written.graph, self.graph)
        ]


def _dump(raw: Any, *, sort_keys: bool) -> str:
    return json.dumps(raw, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
