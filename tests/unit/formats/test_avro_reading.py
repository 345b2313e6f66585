"""What one schema wrote, read as another; and bytes that are no value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.formats.conftest import decoder, framed, written


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field(*field) for field in fields], **more}


def _field(name: str, kind: Any, *default: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **({"default": default[0]} if default else {}), **more}


def read(reader: Any, writer: Any, value: Any) -> Any:
    found = decoder(reader, writer).decode(framed([written(writer, value)]))
    assert found.faults == {}, found.faults
    assert found.incompatible == {}, found.incompatible
    found.values.validate(full=True)
    return found.values.to_pylist()[0]


NAMED = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", -(2**63), -(2**63)),
        ("float", 0.5, 0.5),
        ("double", 1e300, 1e300),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("string", "Zürich ✈ 𝄞", "Zürich ✈ 𝄞"),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (NAMED, "C", "C"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "array", "items": "int"}, [1, 2, 3], [1, 2, 3]),
        ({"type": "array", "items": {"type": "array", "items": ["null", "string"]}},
         [["a", None], []], [["a", None], []]),
        ({"type": "map", "values": "long"}, {"a": 1, "b": 2}, [("a", 1), ("b", 2)]),
        (record(("x", "int"), ("y", ["null", "int"], None), name="In"), {"x": 1, "y": None}, {"x": 1, "y": None}),
        ({"type": "int", "logicalType": "date"}, dt.date(2026, 1, 1), dt.date(2026, 1, 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOON, NOON),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, NOON),
        ({"type": "string", "logicalType": "uuid"}, "not checked", "not checked"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, Decimal("-1.50"), Decimal("-1.50")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, Decimal(10) ** 37, Decimal(10) ** 37),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 3},
         Decimal("-12.345"), Decimal("-12.345")),
    ],
)  # fmt: skip
def test_every_type_is_read_as_it_was_written(kind: Any, value: Any, expected: Any) -> None:
    schema = record(("a", kind), ("after", "int"))
    assert read(schema, schema, {"a": value, "after": 7}) == {"a": expected, "after": 7}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "long", 1, 1),
        ("int", "double", -3, -3.0),
        ("long", "float", 2, 2.0),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"x", "x"),
        ("int", ["null", "long"], 1, 1),
        (["null", "int"], "int", 1, 1),
        (["null", "int", "string"], ["null", "long"], 5, 5),
        ({"type": "enum", "name": "E", "symbols": ["C", "A"]}, NAMED, "C", "C"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "New"]},
            {"type": "enum", "name": "E", "symbols": ["A", "Other"], "default": "Other"},
            "New",
            "Other",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            NOON,
            NOON,
        ),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "double"]}, [1, 2], [1.0, 2.0]),
    ],
)
def test_what_avro_promotes_is_promoted(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert read(record(("a", reader)), record(("a", writer)), {"a": value}) == {"a": expected}


def test_fields_are_matched_by_name_and_alias_skipped_and_defaulted() -> None:
    tree = record(("next", ["null", "Tree"], None), ("v", "int"), name="Tree")
    writer = record(
        ("gone", tree), ("old", "string"), ("skipped", {"type": "map", "values": {"type": "array", "items": "bytes"}}),
        ("u", ["null", "string", "double"]), ("kept", "int"),
    )  # fmt: skip
    inner = record(("p", "int"), ("q", ["null", "string"], None), name="In")
    reader = record(
        ("kept", "long"), ("texts", {"type": "array", "items": "string"}, ["a", "bé"]), ("flag", "boolean", True),
        ("many", {"type": "map", "values": "int"}, {"k": 1}), ("inner", inner, {"p": 3}), ("b", "bytes", "\xff"),
        ("nothing", ["null", "string"], None), ("e", NAMED, "B"), ("d", "double", 1.5),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}, 1000),
        ("money", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\x00\xc8"),
    )  # fmt: skip
    reader["fields"].append({"name": "new", "aliases": ["old"], "type": "string"})
    value = {
        "gone": {"next": {"next": None, "v": 1}, "v": 2}, "old": "moved", "skipped": {"x": [b"1", b"2"], "y": []},
        "u": 0.5, "kept": 9,
    }  # fmt: skip
    assert read(reader, writer, value) == {
        "kept": 9, "texts": ["a", "bé"], "flag": True, "many": [("k", 1)], "inner": {"p": 3, "q": None},
        "b": b"\xff", "nothing": None, "e": "B", "d": 1.5, "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
        "money": Decimal("2.00"), "new": "moved",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        (record(("a", "string")), record(("a", "long")), "field a: string, as the writer has it, cannot be read as l"),
        (record(("a", "int")), record(("a", "int"), ("b", "int")), "field b: it has no default in the reader's schema"),
        (record(("a", "int"), name="X"), record(("a", "int")), "the reader has R there, the writer X"),
        (
            record(("a", record(("b", "long"), name="In"))),
            record(("a", record(("b", "int"), name="In"))),
            "field a.b: long, as the writer has it, cannot be read as int",
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1})),
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})),
            "field a: the reader's decimal has the scale 2, the writer's 1",
        ),
    ],
)  # fmt: skip
def test_a_writer_that_cannot_be_read_is_incompatible_with_the_field_and_the_reason(
    writer: Any, reader: Any, why: str
) -> None:
    other = record(*[(f["name"], f["type"]) for f in reader["fields"]])
    found = decoder(reader, writer, other).decode(framed([b"\0\0\0\0\1\x00", None]))
    assert set(found.incompatible) == {0}
    assert found.incompatible[0].why.startswith(why)
    assert found.values.to_pylist() == [None, None]
    assert found.faults == {1: "the value is null"}


def test_a_value_that_uses_what_the_reader_does_not_have_is_incompatible_and_others_are_read() -> None:
    writer = record(("a", ["null", "int", "string"]), ("e", {"type": "enum", "name": "E", "symbols": ["A", "Z"]}))
    reader = record(("a", ["null", "int"]), ("e", NAMED))
    values = [{"a": 1, "e": "A"}, {"a": "x", "e": "A"}, {"a": None, "e": "A"}, {"a": 2, "e": "Z"}]
    found = decoder(reader, writer).decode(framed([written(writer, value) for value in values]))
    assert found.values.to_pylist() == [{"a": 1, "e": "A"}, None, {"a": None, "e": "A"}, None]
    assert {row: why.why for row, why in found.incompatible.items()} == {
        1: "field a: string, as the writer has it, cannot be read as int",
        3: "field e: the reader's enum does not have the symbol Z, nor a default",
    }


def test_writers_are_mixed_in_one_batch() -> None:
    one, two = record(("a", "int")), record(("b", "string", ""), ("a", "long"))
    reader = record(("a", "long"), ("b", ["null", "string"], None))
    values = [written(one, {"a": 1}), written(two, {"a": 2, "b": "x"}, 2), written(one, {"a": 3})] * 1000
    found = decoder(reader, one, two).decode(framed(values))
    assert not found.faults
    assert found.values.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": None}] * 1000


SCHEMA = record(("id", "int"), ("name", "string"), ("tags", {"type": "array", "items": "string"}), ("d", "double"))
VALUE = written(SCHEMA, {"id": 300, "name": "abc", "tags": ["x", "y"], "d": 0.5})


def test_every_beginning_of_a_value_is_a_fault_and_no_neighbour_is_touched() -> None:
    values: list[bytes | None] = [VALUE]
    for size in range(len(VALUE)):
        values += [VALUE[:size], VALUE]
    found = decoder(SCHEMA, SCHEMA).decode(framed(values))
    assert set(found.faults) == set(range(1, len(values), 2))
    whole = {"id": 300, "name": "abc", "tags": ["x", "y"], "d": 0.5}
    assert found.values.to_pylist() == [None if row % 2 else whole for row in range(len(values))]


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        (record(("a", "int")), b"\x80\x80\x80\x80\x10", "a number is too large"),
        (record(("a", "long")), b"\xff" * 11, "it ends too early"),
        (record(("a", "boolean")), b"\x02", "a number is too large"),
        (record(("a", "string")), b"\x04\xc3\x28", "a text is not UTF-8"),
        (record(("a", "string")), b"\x06\xed\xa0\x80", "a text is not UTF-8"),
        (record(("a", "string")), b"\x01", "it ends too early"),
        (record(("a", ["null", "int"])), b"\x06", "it names a branch that the union does not have"),
        (record(("a", NAMED)), b"\x06", "it names a symbol that the enum does not have"),
        (record(("a", {"type": "array", "items": "int"})), b"\xfe\xff\xff\xff\x0f\x00", "a list has more items"),
        (record(("a", {"type": "array", "items": record(name="E0")})), b"\xfe\xff\xff\xff\xff\x0f", "a list has more"),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 2})),
            b"\x02\x64",
            "a decimal has more digits than its type",
        ),
    ],
)
def test_damage_is_told(schema: Any, payload: bytes, why: str) -> None:
    found = decoder(schema, schema).decode(framed([b"\0\0\0\0\1" + payload]))
    assert found.faults[0].startswith(f"the value does not fit the schema with the id 1: {why}")
    assert found.values.null_count == 1


def test_blocks_with_sizes_are_read_and_skipped() -> None:
    writer = record(("s", {"type": "array", "items": "int"}), ("a", {"type": "array", "items": "int"}))
    sized = bytes([3, 4, 2, 4, 2, 6, 0])  # -2 items in 2 bytes (1, 2), then one (3)
    for reader in (writer, record(("a", {"type": "array", "items": "int"}))):
        found = decoder(reader, writer).decode(framed([b"\0\0\0\0\1" + sized * 2]))
        assert not found.faults
        assert found.values.field("a").to_pylist() == [[1, 2, 3]]


def test_frames_without_an_id_say_so() -> None:
    found = decoder(SCHEMA, SCHEMA).decode(framed([b"\0\0", b"{}{}{}", b"\0\0\0\0\x09abc", None]))
    assert [found.faults[row].split(" (")[0] for row in range(4)] == [
        "the value is too short for the id of a schema",
        "the value does not begin with the id of a schema",
        "the registry has no schema with the id 9",
        "the value is null",
    ]


def test_long_lists_make_room_for_themselves() -> None:
    schema = record(("a", {"type": "array", "items": "long"}), ("n", "int"))
    value = {"a": list(range(5000)), "n": 1}
    found = decoder(schema, schema).decode(framed([written(schema, value), written(schema, {"a": [], "n": 2})]))
    assert found.values.to_pylist() == [value, {"a": [], "n": 2}]


def test_a_slice_of_an_array_is_decoded() -> None:
    values = pa.array([VALUE, b"x", VALUE], pa.binary())[2:]
    from headwater.pipelines.formats.framing import frames

    assert decoder(SCHEMA, SCHEMA).decode(frames(values)).faults == {}


def test_a_value_that_would_take_too_much_memory_is_a_fault_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.pipelines.formats.avro.arrays.SLOT_BYTES_MAX", 17 * 3 * 100)
    schema = record(("a", {"type": "array", "items": "long"}))
    values = [written(schema, {"a": list(range(size))}) for size in (3, 5000, 2)]
    found = decoder(schema, schema).decode(framed(values))
    assert found.values.to_pylist() == [{"a": [0, 1, 2]}, None, {"a": [0, 1]}]
    assert found.faults == {1: "a value holds more items than there is room for"}
