"""Parses schemas together with all referenced schemas; recent results are cached."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from headwater.api.registry.avro.schema import AvroSchema
from headwater.api.registry.json_schema.schema import JsonSchema
from headwater.api.registry.model import Reference, Schema, SchemaType
from headwater.api.registry.parsed import Dependency, ParsedSchema
from headwater.pipelines.schemas.errors import DEPTH_MAX, InvalidSchemaError

KEPT_MAX: Final = 1_000
"""Cached parsed schemas: more than most registries have subjects."""

KEPT_CHARACTERS_MAX: Final = 8 << 20
"""Total length of the cached texts; a parsed schema takes about ten times as much memory."""

Find: TypeAlias = Callable[[Reference], Schema | None]
"""Returns the schema of a reference, None if it does not exist."""

_Key: TypeAlias = tuple[SchemaType, str, bool, tuple[tuple[str, bytes], ...]]


class SchemaParser:
    """Parses schemas. Thread-safe; two threads may parse the same text concurrently, and either result is cached."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, ParsedSchema] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def parse(self, schema: Schema, find: Find, *, new: bool = False) -> ParsedSchema:
        """Parse a schema. A new schema must also satisfy rules that older registries did not check.

        Raises:
            InvalidSchemaError: the schema cannot be parsed, or a reference has no target.
        """
        used: OrderedDict[str, Schema] = OrderedDict()
        _collect(schema, find, used, 0)
        key = (schema.schema_type, schema.text, new, tuple((name, other.digest) for name, other in used.items()))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        dependencies: list[Dependency] = []
        for name, other in used.items():
            dependencies.append(Dependency(name, _parse(other, dependencies, new=False)))
        parsed = _parse(schema, dependencies, new=new)
        self._keep(key, parsed)
        return parsed

    def _keep(self, key: _Key, parsed: ParsedSchema) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = parsed
                self._characters += len(key[1])
            while len(self._kept) > KEPT_MAX or (self._characters > KEPT_CHARACTERS_MAX and len(self._kept) > 1):
                (_, text, _, _), _ = self._kept.popitem(last=False)
                self._characters -= len(text)


def _collect(schema: Schema, find: Find, used: OrderedDict[str, Schema], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidSchemaError(f"references go deeper than {DEPTH_MAX}, or in a circle")
    for reference in schema.references:
        if reference.name in used:
            continue
        other = find(reference)
        if other is None:
            raise InvalidSchemaError(
                f'no schema reference found for subject "{reference.subject}" and version {reference.version}'
            )
        _collect(other, find, used, depth + 1)
        used.setdefault(reference.name, other)


def _parse(schema: Schema, dependencies: list[Dependency], *, new: bool) -> ParsedSchema:
    try:
        match schema.schema_type:
            case SchemaType.AVRO:
                return AvroSchema.parse(schema.text, dependencies, new=new)
            case SchemaType.JSON:
                return JsonSchema.parse(schema.text, dependencies)
            case SchemaType.PROTOBUF:
                # Protobuf's classes take a while to import, and only its users need them.
                from headwater.api.registry.protobuf.schema import ProtobufSchema

                return ProtobufSchema.parse(schema.text, dependencies, new=new)
    except RecursionError:
        raise InvalidSchemaError("the schema nests too deeply") from None
