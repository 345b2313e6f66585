"""Compatibility of a new schema: which versions to compare, in which direction, and the result; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.api.registry.model import CompatibilityLevel, SchemaVersion
from headwater.api.registry.parsed import ParsedSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError, Problem

MESSAGE_SCHEMA_LENGTH_MAX = 2_000
"""Characters of an earlier schema repeated in a message."""


def problems(
    level: CompatibilityLevel,
    candidate: ParsedSchema,
    previous: Sequence[SchemaVersion],
    parse: Callable[[SchemaVersion], ParsedSchema],
) -> list[str]:
    """Return why a schema may not follow the versions in `previous`, oldest first; empty if it is compatible.

    A level that is not transitive compares the last version only. Versions are compared last first; the result covers
    the first incompatible version.
    """
    if level is CompatibilityLevel.NONE:
        return []
    for version in reversed(previous if level.transitive else previous[-1:]):
        found = _between(level, candidate, parse(version))
        if found:
            return [
                *found,
                f"{{oldSchemaVersion: {version.version}}}",
                f"{{oldSchema: '{version.schema.text[:MESSAGE_SCHEMA_LENGTH_MAX]}'}}",
                f"{{compatibility: '{level.value}'}}",
            ]
    return []


def _between(level: CompatibilityLevel, new: ParsedSchema, old: ParsedSchema) -> list[str]:
    if new.schema_type is not old.schema_type:
        return [f"Incompatible because of different schema type: {old.schema_type.value} and {new.schema_type.value}"]
    found: list[Problem] = []
    try:
        if level.backward:
            found += new.problems_reading(old)
        if level.forward:
            found += old.problems_reading(new)
    except InvalidSchemaError as error:
        return [str(error)]
    return [str(problem) for problem in dict.fromkeys(found)]
