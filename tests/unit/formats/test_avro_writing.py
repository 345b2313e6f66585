"""Rows as Avro values, read back by fastavro; and schemas of rows that have none."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headwater.pipelines.formats.avro.encoder import AvroEncoder, row_type, schema_for
from headwater.pipelines.formats.batches import UnwritableError
from tests.unit.formats.conftest import decoder, framed, registered
from tests.unit.formats.test_avro_reading import NAMED, NOON, record


def read_back(schema: Any, values: Any) -> list[Any]:
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    found = []
    for value in values.to_pylist():
        assert value[:5] == b"\0\0\0\0\7"
        found.append(fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed))
    return found


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False]),
        ("int", [0, -1, 2**31 - 1]),
        ("long", [2**63 - 1, -(2**63)]),
        ("float", [0.5, -1.0]),
        ("double", [1e300, -0.0]),
        ("string", ["", "Zürich", "x" * 1000]),
        ("bytes", [b"", b"\x00\xff"]),
        (["null", "string"], [None, "x"]),
        (["string", "null"], [None, "x"]),
        (["long"], [1, 2]),
        (NAMED, ["C", "A"]),
        ({"type": "fixed", "name": "F", "size": 2}, [b"ab", b"cd"]),
        ({"type": "array", "items": ["null", "string"]}, [[], ["a", None], ["b"]]),
        ({"type": "map", "values": "long"}, [{}, {"a": 1, "b": 2}]),
        (["null", record(("x", "int"), ("y", {"type": "array", "items": "int"}), name="In")],
         [None, {"x": 1, "y": [1, 2]}]),
        ({"type": "int", "logicalType": "date"}, [dt.date(1969, 12, 31), dt.date(2026, 1, 1)]),
        ({"type": "long", "logicalType": "timestamp-millis"}, [NOON]),
        ({"type": "long", "logicalType": "timestamp-micros"}, [NOON + dt.timedelta(microseconds=1)]),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
         [Decimal(n) / 100 for n in (0, 1, -1, 127, 128, -128, -129, 10**20, -(10**30))]),
        ({"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9},
         [Decimal(0), Decimal(-1), Decimal(999_999_999)]),
    ],
)  # fmt: skip
def test_every_type_is_written_as_fastavro_reads_it(kind: Any, values: list[Any]) -> None:
    schema = record(("a", kind), ("after", "int"))
    rows = [{"a": list(v.items()) if isinstance(v, dict) and "x" not in v else v, "after": 7} for v in values]
    array = pa.array(rows, row_type(registered(schema)))
    found = AvroEncoder(registered(schema)).encode(array, 7)
    assert read_back(schema, found) == [{"a": value, "after": 7} for value in values]


def test_a_row_that_is_null_has_no_value_and_a_slice_is_its_own() -> None:
    schema = record(("a", "string"))
    array = pa.array([{"a": "0"}, None, {"a": "1"}, {"a": "2"}], row_type(registered(schema)))
    assert AvroEncoder(registered(schema)).encode(array[1:], 7).to_pylist() == [
        None, b"\0\0\0\0\7\x021", b"\0\0\0\0\7\x022"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "arrow", "value", "why"),
    [
        ("string", pa.string(), None, "column a: it is null, and the schema has no null there"),
        (NAMED, pa.string(), "Z", "column a: the schema's enum does not have its text"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"abc", "column a: its bytes are not as many"),
        (
            {"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 2},
            pa.decimal128(2, 0),
            None,
            "column a: it is null",
        ),
    ],
)
def test_a_row_that_the_schema_does_not_take_is_told_with_its_column(
    kind: Any, arrow: pa.DataType, value: Any, why: str
) -> None:
    encoder = AvroEncoder(registered(record(("a", kind))))
    with pytest.raises(UnwritableError, match=why):
        encoder.encode(pa.array([{"a": value}], pa.struct([("a", arrow)])), 7)


def test_rows_without_a_schema_get_one_that_reads_them_back() -> None:
    kind = pa.struct([
        ("b", pa.bool_()), ("s", pa.int16()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32()),
        ("d", pa.float64()), ("t", pa.string()), ("y", pa.binary()), ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")), ("day", pa.date32()), ("m", pa.decimal128(9, 2)),
        ("many", pa.list_(pa.field("element", pa.struct([("x", pa.int32())])))),
        ("map", pa.map_(pa.string(), pa.int64())),
    ])  # fmt: skip
    text = schema_for(kind, "flights.clean-1")
    row = {
        "b": True, "s": 1, "i": 2, "l": 3, "f": 0.5, "d": 1.5, "t": "x", "y": b"y", "at": NOON,
        "local": NOON.replace(tzinfo=None), "day": dt.date(2026, 1, 1), "m": Decimal("1.25"), "many": [{"x": 1}, None],
        "map": [("k", None)],
    }  # fmt: skip
    assert json.loads(text)["name"] == "flights_clean_1"
    fitting = row_type(registered(text))
    values = AvroEncoder(registered(text)).encode(pa.array([row, dict.fromkeys(row)], fitting), 1)
    found = decoder(text, text).decode(framed(values.to_pylist()))
    assert found.values.to_pylist() == [row, dict.fromkeys(row)]


def test_a_column_that_avro_cannot_name_is_refused() -> None:
    with pytest.raises(ValueError, match="column a b: Avro's names have letters"):
        schema_for(pa.struct([("a b", pa.int32())]), "t")
