"""Parses JSON to Avro types, and checks every rule of the specification for schemas."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from headwater.pipelines.schemas.avro.defaults import DefaultCheck
from headwater.pipelines.schemas.avro.types import (
    ABSENT,
    PRIMITIVES,
    ArrayType,
    AvroType,
    EnumType,
    Field,
    FixedType,
    MapType,
    Name,
    NamedType,
    PrimitiveType,
    Props,
    RecordType,
    UnionType,
    type_name,
)
from headwater.pipelines.schemas.errors import DEPTH_MAX, InvalidSchemaError
from headwater.pipelines.schemas.json_text import JsonTextError, parse_json

NAME_LENGTH_MAX: Final = 2_000
"""Characters of a full name. Each name inside a namespace repeats it, so its length multiplies."""

NAME_SHOWN_MAX: Final = 100
"""Characters of a name in a path."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ORDERS: Final = ("ascending", "descending", "ignore")
_RESERVED: Final = frozenset(
    {"aliases", "doc", "fields", "items", "name", "namespace", "size", "symbols", "type", "values"}
)
_RESERVED_OF_ENUM: Final = _RESERVED | {"default"}
_RESERVED_OF_FIELD: Final = frozenset({"aliases", "default", "doc", "name", "order", "type"})
_NAMED: Final = frozenset({"enum", "error", "fixed", "record"})


def parse(text: str, known: Mapping[str, NamedType], *, check_defaults: bool) -> tuple[AvroType, dict[str, NamedType]]:
    """Parse a schema that may use the types in `known`; return its type, and all named types by full name.

    `check_defaults` is for new schemas: older registries accepted defaults that do not match their types.

    Raises:
        InvalidSchemaError: the text is not an Avro schema.
    """
    try:
        document = parse_json(text, object_pairs_hook=_without_duplicates)
    except JsonTextError as error:
        raise InvalidSchemaError(f"not JSON that can be taken: {error}") from None
    except json.JSONDecodeError as error:
        if re.fullmatch(r"\s*[A-Za-z_][\w.]*\s*", text) and text.strip() not in ("true", "false", "null"):
            document = text.strip()  # a bare name, which Avro's own parsers accept
        elif text.strip() == "null":
            document = "null"
        else:
            raise InvalidSchemaError(f"not JSON: {error}") from None
    if document is None:
        document = "null"
    parser = _Parser(dict(known), check_defaults)
    parsed = parser.type(document, "", "$", 0)
    return parsed, parser.names


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidSchemaError(f"{_repeated(name for name, _ in pairs)!r} is given twice in one JSON object")
    return fields


def _repeated(names: Iterable[str]) -> str:
    """Return the first duplicate name."""
    return next(name for name, count in Counter(names).items() if count > 1)


class _Parser:
    """One pass over a document; `names` collects the named types."""

    def __init__(self, names: dict[str, NamedType], check_defaults: bool) -> None:
        self.names = names
        self._check_defaults = DefaultCheck() if check_defaults else None

    def type(self, node: Any, space: str, path: str, depth: int) -> AvroType:
        """Parse one type; `space` is the enclosing namespace."""
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"the schema nests deeper than {DEPTH_MAX}")
        if isinstance(node, str):
            return self._by_name(node, space, path)
        if isinstance(node, list):
            return self._union(node, space, path, depth)
        if not isinstance(node, dict):
            raise InvalidSchemaError(f"{path}: a type is a name, an object or a list, not {json.dumps(node)[:60]}")
        kind = node.get("type")
        if kind is None:
            raise InvalidSchemaError(f'{path}: no "type"')
        if isinstance(kind, dict | list):
            return self.type(kind, space, f"{path}.type", depth + 1)
        if not isinstance(kind, str):
            raise InvalidSchemaError(f'{path}: "type" is {json.dumps(kind)[:60]}')
        if kind in PRIMITIVES:
            return PrimitiveType(kind, _props(node, _RESERVED))
        if kind in _NAMED:
            return self._named(kind, node, space, path, depth)
        if kind == "array":
            items = self.type(_required(node, "items", path), space, f"{path}.items", depth + 1)
            return ArrayType(items, _props(node, _RESERVED))
        if kind == "map":
            values = self.type(_required(node, "values", path), space, f"{path}.values", depth + 1)
            return MapType(values, _props(node, _RESERVED))
        return self._by_name(kind, space, path)

    def _by_name(self, name: str, space: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return PrimitiveType(name)
        candidates = [name] if "." in name or not space else [f"{space}.{name}", name]
        for candidate in candidates:
            if candidate in self.names:
                return self.names[candidate]
        raise InvalidSchemaError(f"{path}: undefined name: {name!r}")

    def _union(self, nodes: list[Any], space: str, path: str, depth: int) -> UnionType:
        branches: list[AvroType] = []
        seen: set[str] = set()
        for index, node in enumerate(nodes):
            where = f"{path}[{index}]"
            branch = self.type(node, space, where, depth + 1)
            if isinstance(branch, UnionType):
                raise InvalidSchemaError(f"{where}: a union directly inside a union")
            name = type_name(branch)
            if name in seen:
                raise InvalidSchemaError(f"{where}: the union has {name!r} twice")
            seen.add(name)
            branches.append(branch)
        return UnionType(branches)

    def _named(self, kind: str, node: dict[str, Any], space: str, path: str, depth: int) -> NamedType:
        name = _name(node, space, path)
        # Each part of the schema has a path: a long name in each would make parsing quadratic.
        where = f"{path}({name.full[:NAME_SHOWN_MAX]})"
        if name.full in self.names:
            raise InvalidSchemaError(f"{where}: can't redefine {name.full!r}")
        doc = _text(node, "doc", where)
        aliases = [_alias(alias, name.space, where) for alias in _texts(node, "aliases", where)]
        if kind == "fixed":
            size = _required(node, "size", where)
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
                raise InvalidSchemaError(f'{where}: "size" is {json.dumps(size)[:60]}, not a number of bytes')
            fixed = FixedType(name, aliases, doc, size, _props(node, _RESERVED))
            self.names[name.full] = fixed
            return fixed
        if kind == "enum":
            enum = EnumType(name, aliases, doc, _symbols(node, where), None, _props(node, _RESERVED_OF_ENUM))
            if "default" in node:
                enum.default = node["default"]
                if enum.default not in enum.symbols:
                    raise InvalidSchemaError(f"{where}: the default {json.dumps(enum.default)[:60]} is no symbol of it")
            self.names[name.full] = enum
            return enum
        record = RecordType(name, aliases, doc, [], _props(node, _RESERVED))
        self.names[name.full] = record
        nodes = _required(node, "fields", where)
        if not isinstance(nodes, list):
            raise InvalidSchemaError(f'{where}: "fields" is not a list')
        taken: set[str] = set()
        for index, field_node in enumerate(nodes):
            field = self._field(field_node, record, taken, f"{where}.fields[{index}]", depth)
            taken.add(field.name)
            record.fields.append(field)
        return record

    def _field(self, node: Any, record: RecordType, taken: Container[str], path: str, depth: int) -> Field:
        if not isinstance(node, dict):
            raise InvalidSchemaError(f"{path}: a field is an object")
        name = _required(node, "name", path)
        if not isinstance(name, str) or not _NAME.match(name):
            raise InvalidSchemaError(f"{path}: {json.dumps(name)[:60]} is no name of a field")
        where = f"{path}({name[:NAME_SHOWN_MAX]})"
        if name in taken:
            raise InvalidSchemaError(f"{where}: the record has a field of this name already")
        field_type = self.type(_required(node, "type", where), record.name.space, f"{where}.type", depth + 1)
        default = node.get("default", ABSENT)
        if self._check_defaults and default is not ABSENT and not self._check_defaults.fits(default, field_type):
            raise InvalidSchemaError(f"{where}: invalid default: {json.dumps(default)[:200]} is no {field_type.kind}")
        order = _text(node, "order", where) or "ascending"
        if order.lower() not in _ORDERS:
            raise InvalidSchemaError(f'{where}: "order" is {order[:60]!r}, not one of {", ".join(_ORDERS)}')
        return Field(
            name,
            field_type,
            _text(node, "doc", where),
            default,
            order.lower(),
            _texts(node, "aliases", where),
            _props(node, _RESERVED_OF_FIELD),
        )


def _name(node: dict[str, Any], space: str, path: str) -> Name:
    text = _required(node, "name", path)
    if not isinstance(text, str):
        raise InvalidSchemaError(f'{path}: "name" is {json.dumps(text)[:60]}')
    if "." in text:
        space, _, text = text.rpartition(".")
    elif "namespace" in node:
        space = _text(node, "namespace", path) or ""
    return _checked(Name(text, space), path)


def _alias(alias: str, space: str, path: str) -> Name:
    if "." in alias:
        space, _, alias = alias.rpartition(".")
    return _checked(Name(alias, space), path)


def _checked(name: Name, path: str) -> Name:
    if len(name.simple) + len(name.space) > NAME_LENGTH_MAX:
        raise InvalidSchemaError(f"{path}: the name {name.full[:60]!r}... is longer than {NAME_LENGTH_MAX}")
    if not all(_NAME.match(part) for part in name.full.split(".")):
        raise InvalidSchemaError(f"{path}: illegal name: {name.full[:200]!r}")
    return name


def _symbols(node: dict[str, Any], path: str) -> list[str]:
    _required(node, "symbols", path)
    symbols = _texts(node, "symbols", path)
    for symbol in symbols:
        if not _NAME.match(symbol):
            raise InvalidSchemaError(f"{path}: illegal symbol: {symbol[:200]!r}")
    if len(set(symbols)) != len(symbols):
        raise InvalidSchemaError(f"{path}: the symbol {_repeated(symbols)!r} is given twice")
    return symbols


def _required(node: dict[str, Any], name: str, path: str) -> Any:
    if node.get(name) is None:
        raise InvalidSchemaError(f'{path}: no "{name}"')
    return node[name]


def _text(node: dict[str, Any], name: str, path: str) -> str | None:
    value = node.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidSchemaError(f'{path}: "{name}" is {json.dumps(value)[:60]}, not a text')
    return value


def _texts(node: dict[str, Any], name: str, path: str) -> list[str]:
    values = node.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidSchemaError(f'{path}: "{name}" is not a list of texts')
    return list(values)


def _props(node: dict[str, Any], reserved: frozenset[str]) -> Props:
    return {name: value for name, value in node.items() if name not in reserved}
