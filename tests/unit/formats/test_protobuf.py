"""Messages as columns and back, beside protobuf's own classes; which message a value is; damage."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from headwater.pipelines.formats.batches import UnwritableError
from headwater.pipelines.formats.protobuf.columns import message_of, place_of, pool_of
from headwater.pipelines.formats.protobuf.decoder import ProtobufDecoder, message_indexes
from headwater.pipelines.formats.protobuf.encoder import ProtobufEncoder, row_type
from headwater.pipelines.formats.registry_client import PROTOBUF
from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.schema_ids import header
from headwater.pipelines.validation.named_files import check_schema
from tests.unit.formats.conftest import Known, framed, registered

FULL = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Other { string x = 1; }
message Order {
  enum State { NEW = 0; PAID = 1; }
  message Line { string sku = 1; int32 count = 2; }
  int32 id = 1;
  uint32 small = 2;
  uint64 big = 3;
  optional string note = 4;
  State state = 5;
  repeated Line lines = 6;
  map<string, Line> by_sku = 7;
  google.protobuf.Timestamp at = 8;
  google.protobuf.Int64Value maybe = 9;
  google.protobuf.Struct extra = 10;
  oneof way { string card = 11; bytes coin = 12; }
  repeated sint64 numbers = 13;
  Line first = 14;
  double price = 15;
  bool from = 16;
}
"""
ROW = {
    "id": -5, "small": 2**32 - 1, "big": Decimal(2**64 - 1), "note": None, "state": "PAID",
    "lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 2}], "by_sku": [("a", {"sku": "a", "count": 1})],
    "at": dt.datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=dt.UTC), "maybe": 7, "extra": '{"k": 1.0}', "card": None,
    "coin": b"\x00\xff", "numbers": [-1, 2], "first": None, "price": 1.5, "from": True,
}  # fmt: skip
EMPTY = {
    "id": 0, "small": 0, "big": Decimal(0), "note": None, "state": "NEW", "lines": [], "by_sku": [], "at": None,
    "maybe": None, "extra": None, "card": None, "coin": None, "numbers": [], "first": None, "price": 0.0, "from": False,
}  # fmt: skip


def schema(text: str) -> Any:
    return registered(text, PROTOBUF)


def decode(reader: str, message: str | None, values: list[bytes | None], *writers: str) -> Any:
    known = Known(*(schema(writer) for writer in writers or (reader,)))
    return ProtobufDecoder(schema(reader), message, known).decode(framed(values))


def message(text: str, name: str, content: Any) -> bytes:
    """A value as protobuf's own class writes it, framed."""
    found = message_of(pool_of(text), name)
    place = place_of(found)
    numbers = b"\0" if place == [0] else bytes([2 * len(place), *(2 * index for index in place)])
    payload: bytes = json_format.ParseDict(content, GetMessageClass(found)()).SerializeToString()
    return header(1) + numbers + payload


def test_a_message_has_the_columns_of_its_fields_and_comes_back_as_it_was() -> None:
    writer = ProtobufEncoder(schema(FULL), "Order")
    rows = pa.array([ROW, EMPTY, None], row_type(schema(FULL), "Order"))
    values: list[Any] = writer.encode(rows, 1).to_pylist()
    assert values[0][:7] == header(1) + b"\x02\x02"
    assert values[2] is None
    found = decode(FULL, "Order", values[:2])
    assert (found.faults, found.incompatible) == ({}, {})
    found.values.validate(full=True)
    assert found.values.to_pylist() == [ROW, EMPTY]
    parsed = GetMessageClass(message_of(pool_of(FULL), "Order")).FromString(values[0][7:])
    assert json.loads(json_format.MessageToJson(parsed))["big"] == str(2**64 - 1)


def test_what_protobuf_wrote_is_read() -> None:
    content = {"id": 1, "note": "", "lines": [{"sku": "x"}], "maybe": "9", "card": "visa", "first": {}}
    (row,) = decode(FULL, "Order", [message(FULL, "Order", content)]).values.to_pylist()
    assert row == EMPTY | {
        "id": 1, "note": "", "lines": [{"sku": "x", "count": 0}], "maybe": 9, "card": "visa",
        "first": {"sku": "", "count": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    "rest",
    ["reserved 1;", 'reserved "id";', "reserved 4 to 9, 7;", "enum E { A = 0; B = 0; } E e = 7;", "int32 x = 19000;"],
)
def test_a_writers_schema_that_protoc_refuses_is_read(rest: str) -> None:
    writer = f'syntax = "proto3"; message M {{ int32 id = 1; {rest} }}'
    found = decode(NEW, None, [message(writer, "M", {"id": 3})], writer)
    assert (found.faults, found.incompatible) == ({}, {})
    assert found.values.to_pylist() == [{"id": 3, "price": None}]
    with pytest.raises(InvalidSchemaError):  # a file of the pipeline's own
        check_schema(writer, "protobuf", None)


OLD = 'syntax = "proto3"; message M { int32 id = 1; string gone = 2; }'
NEW = 'syntax = "proto3"; message M { int64 id = 1; optional double price = 3; }'


def test_an_older_writer_is_read_by_field_numbers() -> None:
    found = decode(NEW, None, [message(OLD, "M", {"id": 3, "gone": "x"})], OLD)
    assert found.values.to_pylist() == [{"id": 3, "price": None}]


@pytest.mark.parametrize(
    ("writer", "name", "why"),
    [
        ('syntax = "proto3"; message M { string id = 1; }', "M", "field id: string, as the writer has it, cannot be"),
        ('syntax = "proto3"; message M { repeated int64 id = 1; }', "M", "field id: the writer has a list there"),
        ('syntax = "proto3"; message X { int64 id = 1; }', "X", "the reader has the message M, the writer X"),
        ('syntax = "proto3"; message M { message P { int32 a = 1; } P id = 1; }', "M", "field id: M.P, as the writer"),
    ],
)
def test_a_writer_that_would_be_misread_is_incompatible(writer: str, name: str, why: str) -> None:
    found = decode(NEW, None, [message(writer, name, {}), message(NEW, "M", {"id": "1"})], writer)
    assert found.incompatible[0].why.startswith(why)
    assert found.values.to_pylist()[0] is None


def test_damage_is_a_fault_of_its_row() -> None:
    good = message(NEW, "M", {"id": "1", "price": 2.0})
    values = [good, good[:-3], good[:5], header(1) + b"\x03", header(1) + b"\x02\x08abc", header(9) + b"\0", None, good]
    found = decode(NEW, None, values)
    assert set(found.faults) == {1, 2, 3, 5, 6}
    assert set(found.incompatible) == {4}
    assert [row is None for row in found.values.to_pylist()] == [False, *[True] * 6, False]


def test_places_of_messages() -> None:
    assert message_indexes(b"\0") == ((0,), 1)
    assert message_indexes(b"\x02\x02x") == ((1,), 2)
    with pytest.raises(ValueError, match="which message"):
        message_indexes(b"\x04\x02")
    assert place_of(message_of(pool_of(FULL), "shop.Order.Line")) == [1, 0]


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        (FULL, None, r"2 messages \(Other, Order\): say which one"),
        (FULL, "Nothing", "no message Nothing"),
        ('syntax = "proto3"; message T { T next = 1; }', None, "next: the message T holds itself"),
        ('syntax = "proto3"; message T { int32 a = 1; int32 A = 2; }', None, "differs by case only"),
        ("message {", None, "1:9"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(text: str, name: str | None, why: str) -> None:
    with pytest.raises(InvalidSchemaError, match=why):
        row_type(schema(text), name)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "LOST"}, "column state: the enum has no value LOST"),
        ({"lines": [None]}, "column lines: an item of a list cannot be null"),
        ({"extra": "no json"}, "column extra: "),
    ],
)
def test_a_row_that_no_message_holds_is_told(change: dict[str, Any], why: str) -> None:
    rows = pa.array([ROW | change], row_type(schema(FULL), "Order"))
    with pytest.raises(UnwritableError, match=why):
        ProtobufEncoder(schema(FULL), "Order").encode(rows, 1)
