"""Encodes rows as framed Avro values, and derives a schema for rows without one."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from headwater.pipelines.formats.avro.arrays import arrow_type
from headwater.pipelines.formats.avro.columns import Node, columns, parsed
from headwater.pipelines.formats.avro.flat import RowWriter
from headwater.pipelines.formats.framing import ArrowArray
from headwater.pipelines.formats.registry_client import RegisteredSchema
from headwater.pipelines.schemas.schema_ids import header


class AvroEncoder:
    """Writes rows of one schema's `row_type`."""

    def __init__(self, writer: RegisteredSchema) -> None:
        self._writer = RowWriter(columns(parsed(writer.text, writer.references)))

    def encode(self, rows: ArrowArray, schema_id: int) -> ArrowArray:
        """Encode rows as a binary array of framed values; null for a null row. Raises UnwritableError."""
        return self._writer.values(rows, header(schema_id))


def row_type(writer: RegisteredSchema) -> pa.DataType:
    """Return the rows' Arrow type; fields without a null branch are not nullable. Raises ValueError."""
    return _needing(columns(parsed(writer.text, writer.references)))


def _needing(node: Node) -> pa.DataType:
    match node.sql:
        case "STRUCT":
            return pa.struct([pa.field(child.name, _needing(child), child.nullable) for child in node.children])
        case "ARRAY":
            return pa.list_(pa.field("element", _needing(node.children[0])))
        case "MAP":
            return pa.map_(pa.string(), _needing(node.children[1]))
        case _:
            return arrow_type(node)


def schema_for(kind: pa.DataType, name: str) -> str:
    """Derive a schema for a type; every field is nullable, so later schemas may have other fields.

    Raises ValueError with the path of a part that Avro cannot represent.

    >>> schema_for(pa.struct([("n", pa.int32())]), "flights.clean")
    '{"type": "record", "name": "flights_clean", "fields": [{"name": "n", "type": ["null", "int"], "default": null}]}'
    """
    return json.dumps(_schema(kind, _identifier(name), ""))


def _identifier(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return found if re.match(r"[A-Za-z_]", found) else f"_{found}"


_PLAIN: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


def _schema(kind: Any, name: str, path: str) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        local = "local-" if kind.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _schema(kind.value_type, f"{name}_element", f"{path}[]")]}
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise ValueError(f"column {path}: the keys of a map are text in Avro")
        return {"type": "map", "values": ["null", _schema(kind.item_type, f"{name}_value", f"{path}.*")]}
    if pa.types.is_struct(kind):
        fields = []
        for part in kind:
            where = f"{path}.{part.name}" if path else part.name
            if part.name != _identifier(part.name):
                raise ValueError(f"column {where}: Avro's names have letters, digits and _ only; rename it, with AS")
            inner = _schema(part.type, f"{name}_{part.name}", where)
            fields.append({"name": part.name, "type": ["null", inner], "default": None})
        return {"type": "record", "name": name, "fields": fields}
    raise ValueError(f"column {path}: Avro has no type for {kind}")
