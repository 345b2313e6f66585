"""Encodes rows as Protobuf messages, preceded by their schema's id and their message indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.message import EncodeError
from google.protobuf.message_factory import GetMessageClass

from headwater.pipelines.formats.batches import UnwritableError
from headwater.pipelines.formats.framing import ArrowArray
from headwater.pipelines.formats.protobuf.columns import (
    ENUM,
    INSTANT,
    LIST,
    MAP,
    MESSAGE,
    SINGLE,
    TEXT,
    UINT64,
    WRAPPER,
    Node,
    columns,
    message_of,
    place_of,
    pool_of,
    struct_type,
)
from headwater.pipelines.formats.registry_client import RegisteredSchema
from headwater.pipelines.schemas.schema_ids import header


def row_type(writer: RegisteredSchema, message: str | None) -> Any:
    """Return the rows' Arrow type. Raises ValueError (such as InvalidSchemaError)."""
    return struct_type(columns(message_of(pool_of(writer.text, writer.references), message)))


class ProtobufEncoder:
    """Writes rows of one message's `row_type`."""

    def __init__(self, writer: RegisteredSchema, message: str | None) -> None:
        found = message_of(pool_of(writer.text, writer.references), message)
        self._nodes = columns(found)
        self._class = GetMessageClass(found)
        place = place_of(found)
        self._place = b"\0" if place == [0] else b"".join(map(_zigzag, [len(place), *place]))

    def encode(self, rows: ArrowArray, schema_id: int) -> ArrowArray:
        """Encode rows as a binary array of framed values; null for a null row. Raises UnwritableError."""
        before = header(schema_id) + self._place
        found: list[bytes | None] = []
        for row in rows.to_pylist():
            if row is None:
                found.append(None)
                continue
            message = self._class()
            _fill(message, self._nodes, row)
            try:
                found.append(before + message.SerializeToString())
            except EncodeError as error:
                raise UnwritableError(str(error).splitlines()[0]) from None
        return pa.array(found, pa.binary())


def _zigzag(value: int) -> bytes:
    raw, found = value << 1, bytearray()
    while raw >= 0x80:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*found, raw])


def _fill(message: Any, nodes: Sequence[Node], row: dict[str, Any]) -> None:
    for node in nodes:
        value = row.get(node.name)
        if value is None:
            continue
        try:
            if node.form == SINGLE:
                _set(message, node, value)
            elif node.form == LIST:
                _extend(getattr(message, node.name), node, value)
            else:
                assert node.form == MAP
                _put_all(getattr(message, node.name), node, value)
        except (TypeError, ValueError, json_format.ParseError) as error:
            if isinstance(error, UnwritableError):
                raise
            raise UnwritableError(f"column {node.path}: {str(error).splitlines()[0]}") from None


def _set(message: Any, node: Node, value: Any) -> None:
    part = getattr(message, node.name) if node.kind in (MESSAGE, INSTANT, WRAPPER, TEXT) else None
    if part is None:
        setattr(message, node.name, _scalar(node, value))
        return
    part.SetInParent()
    _fill_message(part, node, value)


def _fill_message(part: Any, node: Node, value: Any) -> None:
    if node.kind == MESSAGE:
        _fill(part, node.children, value)
    elif node.kind == INSTANT:
        part.FromDatetime(value)
    elif node.kind == TEXT:
        json_format.Parse(value, part)
    else:
        part.value = int(value) if pa.types.is_decimal(node.item_type) else value


def _extend(items: Any, node: Node, values: Sequence[Any]) -> None:
    for value in values:
        if value is None:
            raise UnwritableError(f"column {node.path}: an item of a list cannot be null")
        if node.kind in (MESSAGE, INSTANT, WRAPPER, TEXT):
            _fill_message(items.add(), node, value)
        else:
            items.append(_scalar(node, value))


def _put_all(entries: Any, node: Node, pairs: Sequence[tuple[Any, Any]]) -> None:
    key_node, value_node = node.children
    for key, value in pairs:
        own = _scalar(key_node, key)
        if value is None:
            raise UnwritableError(f"column {node.path}: a value of a map cannot be null")
        if value_node.kind in (MESSAGE, INSTANT, WRAPPER, TEXT):
            entries[own].SetInParent()
            _fill_message(entries[own], value_node, value)
        else:
            entries[own] = _scalar(value_node, value)


def _scalar(node: Node, value: Any) -> Any:
    if node.kind == ENUM:
        known = node.descriptor.enum_type.values_by_name
        if value not in known:
            raise UnwritableError(f"column {node.path}: the enum has no value {str(value)[:60]}")
        return known[value].number
    return int(value) if node.kind == UINT64 else value
