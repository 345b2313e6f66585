"""Decodes framed Protobuf messages to the columns of one reader's message.

The message indexes between the schema id and the message identify the message type in the file: the number of indexes,
then the indexes; a single 0 stands for the first message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from headwater.pipelines.formats.batches import Batch, Incompatible, Schemas
from headwater.pipelines.formats.framing import ArrowArray, Frames, buffer_of
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
    conflict,
    message_at,
    message_of,
    pool_of,
    struct_type,
)
from headwater.pipelines.formats.registry_client import PROTOBUF, NotFoundError, RegisteredSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError

INDEXES_MAX: Final = 32  # nested messages
KEPT_MAX: Final = 10_000  # verdicts cached in one process
_NO_INDEXES: Final = "it does not say which message it is"


class ProtobufDecoder:
    """Decodes batches. One per reader's message and process: the decoder caches its verdicts on writers' schemas."""

    def __init__(self, reader: RegisteredSchema, message: str | None, schemas: Schemas) -> None:
        self._schemas = schemas
        self._reader = message_of(pool_of(reader.text, reader.references), message)
        self._parse = GetMessageClass(self._reader).FromString
        self._nodes = columns(self._reader)
        self.record: str = self._reader.full_name
        self._pools: dict[int, Any] = {}
        self._verdicts: dict[tuple[int, tuple[int, ...]], str | None] = {}

    @property
    def type(self) -> pa.DataType:
        """The values' Arrow type."""
        found: pa.DataType = struct_type(self._nodes)
        return found

    def decode(self, frames: Frames) -> Batch:
        """Decode the values of several frames."""
        faults: dict[int, str] = dict(frames.faults)
        incompatible: dict[int, Incompatible] = {}
        messages: list[Any] = [None] * len(frames.ids)
        data: Any = frames.data.data
        parse = self._parse
        for row, (schema_id, start, end) in enumerate(
            zip(frames.ids.tolist(), frames.starts.tolist(), frames.ends.tolist(), strict=True)
        ):
            if schema_id < 0:
                continue
            payload = bytes(data[start:end])
            try:
                indexes, begin = message_indexes(payload)
                why = self._verdict(schema_id, indexes)
                if why is None:
                    messages[row] = parse(payload[begin:])
                else:
                    incompatible[row] = Incompatible(schema_id, why)
            except NotFoundError as error:
                faults[row] = str(error)
            except (DecodeError, ValueError) as error:
                said = str(error) if isinstance(error, _IndexesError) else "it is no message of it"
                faults[row] = f"the value does not fit the schema with the id {schema_id}: {said}"
        return Batch(_struct(self._nodes, messages), faults, incompatible)

    def _verdict(self, schema_id: int, indexes: tuple[int, ...]) -> str | None:
        """Return why the reader cannot read a writer's message type; None if it can. Raises NotFoundError."""
        place = (schema_id, indexes)
        if place not in self._verdicts:
            if len(self._verdicts) >= KEPT_MAX:
                self._verdicts.clear()
                self._pools.clear()
            self._verdicts[place] = self._look(schema_id, indexes)
        return self._verdicts[place]

    def _look(self, schema_id: int, indexes: tuple[int, ...]) -> str | None:
        try:
            if schema_id not in self._pools:
                writer = self._schemas.schema(schema_id)
                if writer.schema_type != PROTOBUF:
                    return f"the schema is {writer.schema_type}, not PROTOBUF"
                self._pools[schema_id] = pool_of(writer.text, writer.references)
            message = message_at(self._pools[schema_id], indexes)
        except InvalidSchemaError as error:
            return str(error)
        if message.full_name != self._reader.full_name:
            return f"the reader has the message {self._reader.full_name}, the writer {message.full_name}"
        return conflict(message, self._reader)


class _IndexesError(ValueError):
    """The message indexes before a message are invalid."""


def message_indexes(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes of a payload, and the start of its message. Raises ValueError.

    >>> message_indexes(b"\\x00abc"), message_indexes(b"\\x04\\x02\\x00abc")
    (((0,), 1), ((1, 0), 3))
    """
    count, position = _varint(payload, 0)
    if count == 0:
        return (0,), position
    if not 0 < count <= INDEXES_MAX:
        raise _IndexesError(_NO_INDEXES)
    indexes = []
    for _ in range(count):
        index, position = _varint(payload, position)
        indexes.append(index)
    return tuple(indexes), position


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, 70, 7):
        if position >= len(payload):
            break
        byte = payload[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
    raise _IndexesError(_NO_INDEXES)


def _struct(nodes: Sequence[Node], messages: Sequence[Any]) -> ArrowArray:
    """Convert messages, some of them None, to a struct."""
    mask = np.fromiter((message is None for message in messages), np.bool_, len(messages))
    fields = [pa.field(node.name, node.type) for node in nodes]
    arrays = [_column(node, messages) for node in nodes]
    if not arrays:
        return pa.array([None if message is None else {} for message in messages], pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(mask))


def _column(node: Node, messages: Sequence[Any]) -> ArrowArray:
    get = attrgetter(node.name) if node.name.isidentifier() else _getter(node.name)
    if node.form == SINGLE:
        if node.has_presence:
            name = node.name
            values = [get(m) if m is not None and m.HasField(name) else None for m in messages]
        elif any(m is None for m in messages):
            values = [None if m is None else get(m) for m in messages]
        else:
            values = list(map(get, messages))
        return _items(node, values)
    parts = [None if m is None else get(m) for m in messages]
    sizes = np.fromiter((0 if part is None else len(part) for part in parts), np.int64, len(parts))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    mask = pa.array([part is None for part in parts], pa.bool_())
    if node.form == LIST:
        items = _items(node, [item for part in parts if part is not None for item in part])
        bits = None if not mask.true_count else buffer_of(np.packbits(~np.asarray(mask), bitorder="little"))
        return pa.Array.from_buffers(node.type, len(parts), [bits, buffer_of(offsets)], children=[items])
    assert node.form == MAP
    pairs = [(key, part[key]) for part in parts if part is not None for key in part]
    keys = _items(node.children[0], [key for key, _ in pairs])
    values = _items(node.children[1], [value for _, value in pairs])
    entries = pa.StructArray.from_arrays([keys, values], fields=[node.type.key_field, node.type.item_field])
    valid = pa.array(~np.asarray(mask)).cast(pa.uint8()) if mask.true_count else None
    bits = None if valid is None else buffer_of(np.packbits(np.asarray(valid), bitorder="little"))
    return pa.Array.from_buffers(node.type, len(parts), [bits, buffer_of(offsets)], children=[entries])


def _getter(name: str) -> Callable[[Any], Any]:
    return lambda message: getattr(message, name)


def _items(node: Node, values: list[Any]) -> ArrowArray:
    """Convert single values, some of them None, to the column of their kind."""
    kind = node.item_type
    if node.kind == MESSAGE:
        return _struct(node.children, values)
    if node.kind == ENUM:
        names = {value.number: value.name for value in reversed(node.descriptor.enum_type.values)}
        return pa.array([None if v is None else names.get(v, str(v)) for v in values], kind)
    if node.kind == INSTANT:
        micros = [None if v is None else v.seconds * 1_000_000 + v.nanos // 1_000 for v in values]
        return pa.array(micros, pa.int64()).cast(kind)
    if node.kind == WRAPPER:
        values = [None if v is None else v.value for v in values]
    if node.kind == UINT64 or pa.types.is_decimal(kind):
        return pa.array([None if v is None else Decimal(v) for v in values], kind)
    if node.kind == TEXT:
        return pa.array([None if v is None else json_format.MessageToJson(v, indent=None) for v in values], kind)
    return pa.array(values, kind)
