"""Records become rows of the table's columns where their values are beyond doubt; all others are left as they are."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.logtier.records.columns import column_schema
from headwater.pipelines.archive.arrow_rows import ArrowRows, ValueKind
from headwater.pipelines.datasource.json_fields import TAKEN, JsonFields, field_column

RECORDS = column_schema(include_headers=True)
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000

#: As Spark's `to_arrow_schema` makes them of a table's columns.
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
FIRST: list[Any] = [
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", "UTC")),
    pa.field("_key", pa.binary()),
]
HEADERS: Any = pa.field("_headers", pa.list_(pa.field("element", HEADER)))
FAULT: list[Any] = [pa.field("_error", pa.string()), pa.field("_value", pa.binary())]

RAW = pa.schema([*FIRST, pa.field("value", pa.binary()), HEADERS])
STRING = pa.schema([*FIRST, pa.field("value", pa.string()), HEADERS, *FAULT])
JSON = pa.schema([*FIRST, pa.field("id", pa.int64()), pa.field("name", pa.string()), HEADERS, *FAULT])


def records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] | None = None,
) -> pa.RecordBatch:
    """Records of flights-3 from offset 100 on, a second apart."""
    count = len(values)
    found = headers or [None] * count
    columns: dict[str, Any] = {
        "key": list(keys) if keys else [b"k%d" % number for number in range(count)],
        "value": list(values),
        "topic": ["flights"] * count,
        "partition": [3] * count,
        "offset": list(range(100, 100 + count)),
        "timestamp": [NOON_US + number * 1_000_000 for number in range(count)],
        "timestampType": [0] * count,
        "headers": [
            None if each is None else [{"key": name, "value": value} for name, value in each] for each in found
        ],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[column.name], column.type) for column in RECORDS], schema=RECORDS
    )


def with_fields(batch: pa.RecordBatch, taken: Sequence[bool], *columns: Any) -> pa.RecordBatch:
    """Records with the columns of parsed JSON values."""
    named = {TAKEN: pa.array(taken, pa.bool_())} | {field_column(place): column for place, column in enumerate(columns)}
    return pa.RecordBatch.from_arrays([*batch.columns, *named.values()], names=[*batch.schema.names, *named])


def of(rows: ArrowRows, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Rows with the table's columns, and the rest with those of the records; both together are all of them."""
    made, rest = rows.of(batch)
    assert made.schema.equals(rows.schema, check_metadata=True)
    assert rest.schema.equals(batch.schema)
    made.validate(full=True)
    rest.validate(full=True)
    assert sorted(offsets(made, "_offset") + offsets(rest)) == offsets(batch)
    return made, rest


def columns(batch: pa.RecordBatch, *names: str) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in names]


def offsets(batch: pa.RecordBatch, name: str = "offset") -> list[int]:
    found: list[Any] = batch.column(name).to_pylist()
    return found


# -- values as they are ------------------------------------------------------------------------------------------------


def test_raw_values_are_kept_with_the_place_of_their_records() -> None:
    batch = records([b"\xff\x00", None, b""], [b"a", None, b""])
    rows, rest = of(ArrowRows(ValueKind.RAW, RAW, ("value",)), batch)
    assert rest.num_rows == 0
    assert rows.to_pylist() == [
        {
            "_partition": 3,
            "_offset": 100 + number,
            "_timestamp": NOON + dt.timedelta(seconds=number),
            "_key": key,
            "value": value,
            "_headers": None,
        }
        for number, (key, value) in enumerate(((b"a", b"\xff\x00"), (None, None), (b"", b"")))
    ]


def test_headers_are_kept_in_order_with_repeated_names_and_without_values() -> None:
    found = [[("a", b"1"), ("b", None), ("a", b"\xff")], None, []]
    rows, _ = of(ArrowRows(ValueKind.RAW, RAW, ("value",)), records([b"1", b"2", b"3"], headers=found))
    kept = rows.column("_headers").to_pylist()
    assert kept[0] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b"\xff"}]
    assert kept[1:] == [None, []]


@pytest.mark.parametrize(
    ("kind", "schema"), [(ValueKind.RAW, RAW), (ValueKind.STRING, STRING)], ids=lambda each: getattr(each, "name", "")
)
def test_a_table_without_headers_has_rows_without_them(kind: ValueKind, schema: pa.Schema) -> None:
    without = pa.schema([column for column in schema if column.name != "_headers"])
    rows, rest = of(ArrowRows(kind, without, ("value",)), records([b"1"], headers=[[("a", b"1")]]))
    assert (rows.num_rows, rest.num_rows) == (1, 0)


def test_keys_of_a_table_need_not_be_bytes() -> None:
    schema = pa.schema([*FIRST[:3], pa.field("_key", pa.string()), pa.field("value", pa.binary())])
    rows, _ = of(ArrowRows(ValueKind.RAW, schema, ("value",)), records([b"1", b"2"], [b"a", None]))
    assert columns(rows, "_key") == [["a", None]]


# -- texts -------------------------------------------------------------------------------------------------------------


def test_texts_are_decoded_and_have_no_fault() -> None:
    rows, rest = of(ArrowRows(ValueKind.STRING, STRING, ("value",)), records(["Grüße\0 €".encode(), b"", None]))
    assert rest.num_rows == 0
    assert columns(rows, "value", "_error", "_value") == [["Grüße\0 €", "", None], [None] * 3, [None] * 3]


@pytest.mark.parametrize("value", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"])
def test_values_that_are_not_utf_8_are_left_with_all_others_of_their_batch(value: bytes) -> None:
    batch = records([b"a", value, None], headers=[[("h", b"1")], None, None])
    rows, rest = of(ArrowRows(ValueKind.STRING, STRING, ("value",), keeps_value=True), batch)
    assert rows.num_rows == 0
    assert rest.equals(batch)


def test_a_value_that_is_not_utf_8_outside_of_a_slice_is_nobodys_doubt() -> None:
    batch = records([b"\xff", b"a", b"b", b"\xff"]).slice(1, 2)
    rows, rest = of(ArrowRows(ValueKind.STRING, STRING, ("value",)), batch)
    assert columns(rows, "value", "_offset") == [["a", "b"], [101, 102]]
    assert rest.num_rows == 0


def test_bytes_of_every_value_are_kept_where_that_is_wanted() -> None:
    batch = records([b"a", None])
    rows, _ = of(ArrowRows(ValueKind.STRING, STRING, ("value",), keeps_value=True), batch)
    assert columns(rows, "value", "_value", "_error") == [["a", None], [b"a", None], [None, None]]


# -- fields ------------------------------------------------------------------------------------------------------------


FIELDS = JsonFields((("id", "bigint"), ("name", "string")))


def json_rows(*required: str, keeps_value: bool = False, schema: pa.Schema = JSON) -> ArrowRows:
    return ArrowRows(ValueKind.JSON, schema, ("id", "name"), required, FIELDS, keeps_value=keeps_value)


def test_parsed_fields_are_the_values_columns() -> None:
    batch = with_fields(records([b"1", b"2"]), [True, True], pa.array([1, None], pa.int64()), pa.array(["a", "b"]))
    rows, rest = of(json_rows(), batch)
    assert rest.num_rows == 0
    assert columns(rows, "id", "name", "_offset", "_error", "_value") == [
        [1, None],
        ["a", "b"],
        [100, 101],
        [None, None],
        [None, None],
    ]


def test_values_that_were_not_parsed_are_left() -> None:
    batch = with_fields(
        records([b"1", b"{", None, b"4"], headers=[[("h", b"1")], [("h", b"2")], None, None]),
        [True, False, False, True],
        pa.array([1, 0, 0, 4], pa.int64()),
        pa.array(["a", "", "", None]),
    )
    rows, rest = of(json_rows(keeps_value=True), batch)
    assert columns(rows, "id", "name", "_value") == [[1, 4], ["a", None], [b"1", b"4"]]
    assert columns(rows, "_headers") == [[[{"key": "h", "value": b"1"}], None]]
    assert offsets(rest) == [101, 102]
    assert columns(rest, "value", "headers") == [[b"{", None], [[{"key": "h", "value": b"2"}], None]]


def test_values_that_lack_a_required_field_are_left() -> None:
    ids, names = pa.array([1, None, 3, None], pa.int64()), pa.array([None, "b", "c", None], pa.string())
    batch = with_fields(records([b"1", b"2", b"3", b"4"]), [True] * 4, ids, names)
    assert offsets(of(json_rows(), batch)[1]) == []
    assert offsets(of(json_rows("id"), batch)[1]) == [101, 103]
    assert offsets(of(json_rows("name"), batch)[1]) == [100, 103]
    assert offsets(of(json_rows("id", "name"), batch)[1]) == [100, 101, 103]


def test_a_batch_in_doubt_as_a_whole_has_no_rows() -> None:
    batch = with_fields(records([b"1", b"2"]), [False, False], pa.array([0, 0]), pa.array(["", ""]))
    rows, rest = of(json_rows(), batch)
    assert rows.num_rows == 0
    assert rest.equals(batch)


def test_a_column_that_values_lack_is_null() -> None:
    """The table has a column of an earlier schema."""
    schema = JSON.insert(6, pa.field("gone", pa.list_(pa.float64())))
    batch = with_fields(records([b"1"]), [True], pa.array([1]), pa.array(["a"]))
    assert columns(of(json_rows(schema=schema), batch)[0], "gone", "id") == [[None], [1]]


def test_columns_are_found_by_name_whatever_their_order() -> None:
    schema = pa.schema([*FIRST, pa.field("name", pa.string()), pa.field("id", pa.int64()), *FAULT])
    batch = with_fields(records([b"1"]), [True], pa.array([1]), pa.array(["a"]))
    assert columns(of(json_rows(schema=schema), batch)[0], "name", "id") == [["a"], [1]]


def test_parsed_fields_may_be_in_another_order_than_the_values_columns() -> None:
    fields = JsonFields((("name", "string"), ("gone", "boolean"), ("id", "bigint")))
    rows = ArrowRows(ValueKind.JSON, JSON, ("id", "name"), ("id",), fields)
    batch = with_fields(
        records([b"1", b"2"]),
        [True, True],
        pa.array(["a", "b"]),
        pa.array([True, None], pa.bool_()),
        pa.array([1, None], pa.int64()),
    )
    made, rest = of(rows, batch)
    assert columns(made, "id", "name") == [[1], ["a"]]
    assert offsets(rest) == [101]


def test_fields_with_the_names_of_a_records_parts_are_the_values() -> None:
    schema = pa.schema([*FIRST, pa.field("key", pa.string()), pa.field("offset", pa.int64()), *FAULT])
    rows = ArrowRows(
        ValueKind.JSON, schema, ("key", "offset"), fields=JsonFields((("key", "string"), ("offset", "bigint")))
    )
    batch = with_fields(records([b"1"], [b"k"]), [True], pa.array(["own"]), pa.array([7]))
    assert columns(of(rows, batch)[0], "key", "offset", "_key", "_offset") == [["own"], [7], [b"k"], [100]]


def test_columns_become_the_types_of_the_table() -> None:
    schema = pa.schema([*FIRST, pa.field("id", pa.int64()), pa.field("name", pa.large_string()), *FAULT])
    batch = with_fields(records([b"1"]), [True], pa.array([1], pa.int32()), pa.array(["a"]))
    assert columns(of(json_rows(schema=schema), batch)[0], "id", "name") == [[1], ["a"]]


CELLS = st.lists(
    st.tuples(st.booleans(), st.none() | st.integers(-5, 5), st.none() | st.sampled_from(["", "a", "é"])), max_size=12
)


@given(CELLS, st.sets(st.sampled_from(["id", "name"])), st.booleans(), st.integers(0, 3), st.integers(0, 3))
def test_every_record_is_a_row_or_left_and_keeps_its_own_value(
    cells: list[tuple[bool, int | None, str | None]], required: set[str], keeps_value: bool, before: int, behind: int
) -> None:
    ids, names = pa.array([cell[1] for cell in cells], pa.int64()), pa.array([cell[2] for cell in cells], pa.string())
    values = [b"value %d" % number for number in range(len(cells))]
    whole = with_fields(records(values), [cell[0] for cell in cells], ids, names)
    batch = whole.slice(before, max(whole.num_rows - before - behind, 0))
    rows, rest = of(json_rows(*sorted(required), keeps_value=keeps_value), batch)
    expected = []
    for offset in offsets(batch):
        is_parsed, id_, name = cells[offset - 100]
        if is_parsed and not ("id" in required and id_ is None) and not ("name" in required and name is None):
            expected.append((offset, id_, name, values[offset - 100] if keeps_value else None))
    found = columns(rows, "_offset", "id", "name", "_value")
    assert list(zip(*found, strict=True)) == expected
    assert columns(rest, "value") == [[values[offset - 100] for offset in offsets(rest)]]


# -- everything else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [RAW, STRING, JSON], ids=["raw", "string", "json"])
def test_what_only_spark_decodes_is_left_without_a_look(schema: pa.Schema) -> None:
    batch = records([b"1", None], headers=[[("a", b"1")], None])
    rows, rest = of(ArrowRows(ValueKind.SPARK, schema), batch)
    assert rows.num_rows == 0
    assert rest is batch


KINDS: Mapping[str, ArrowRows] = {
    "raw": ArrowRows(ValueKind.RAW, RAW, ("value",)),
    "string": ArrowRows(ValueKind.STRING, STRING, ("value",), keeps_value=True),
    "json": json_rows("id"),
    "spark": ArrowRows(ValueKind.SPARK, JSON),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_records_has_no_rows_and_no_rest(kind: str) -> None:
    batch = with_fields(records([]), [], pa.array([], pa.int64()), pa.array([], pa.string()))
    rows, rest = of(KINDS[kind], batch)
    assert (rows.num_rows, rest.num_rows) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_they_can_be_sent_to_tasks(kind: str) -> None:
    sent = pickle.loads(pickle.dumps(KINDS[kind]))
    assert sent == KINDS[kind]
    batch = with_fields(records([b"1"]), [True], pa.array([1]), pa.array(["a"]))
    assert [each.to_pylist() for each in sent.of(batch)] == [each.to_pylist() for each in KINDS[kind].of(batch)]
