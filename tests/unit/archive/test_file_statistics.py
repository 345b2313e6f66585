"""The statistics of a file are right for every value in it, and omitted where they cannot be."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.archive.file_statistics import FileStatistics

NAN, INFINITY = float("nan"), float("inf")
LAST = "\U0010ffff"


def text_of(batches: Sequence[Any], indexed_columns: int = 32, **options: Any) -> str:
    """The statistics of a file with one row group for each batch."""
    schema = batches[0].schema
    statistics = FileStatistics(schema, indexed_columns)
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema, **options) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]))
            statistics.add(batch)
    return statistics.text(pq.read_metadata(file))


def of_column(type_: Any, *groups: Sequence[Any], **options: Any) -> tuple[Any, Any, Any]:
    """A column's minimum, maximum and number of nulls; each group of values becomes a row group."""
    batches = [pa.record_batch([pa.array(values, type_)], names=["c"]) for values in groups]
    told = json.loads(text_of(batches, **options), parse_float=Decimal)
    assert told["numRecords"] == sum(map(len, groups))
    least, greatest = told.get("minValues", {}), told.get("maxValues", {})
    return least.get("c"), greatest.get("c"), told["nullCount"].get("c")


@pytest.mark.parametrize(
    ("type_", "values", "least", "greatest"),
    [
        (pa.int8(), [1, -3], -3, 1),
        (pa.int64(), [2**63 - 1, -(2**63)], -(2**63), 2**63 - 1),
        (pa.float32(), [1.1, -1e20], Decimal("-1e20"), Decimal("1.1")),
        (pa.float64(), [1e-300, 0.1], Decimal("1e-300"), Decimal("0.1")),
        (pa.float64(), [-INFINITY, 1.0], None, 1),
        (pa.float64(), [INFINITY, 1.0], 1, None),
        (pa.float64(), [NAN, 1.0], None, None),
        (pa.float32(), [NAN, NAN], None, None),
        (pa.date32(), [date(2026, 1, 31), date(1583, 2, 3)], "1583-02-03", "2026-01-31"),
        (pa.string(), ["", "é\u2028\x00"], "", "é\u2028\x00"),
        # Beyond U+FFFF, UTF-16 and UTF-8 order differently.
        (pa.large_string(), ["\uffff", "\U00010000"], "\uffff", "\U00010000"),
        (pa.bool_(), [True, False], None, None),
        (pa.binary(), [b"a", b"b"], None, None),
        (pa.uint64(), [2**64 - 1, 0], None, None),
        (pa.time64("us"), [1, 2], None, None),
        (pa.list_(pa.int64()), [[1, None], []], None, None),
        (pa.list_(pa.int64(), 2), [[1, None], [2, 3]], None, None),
        (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])), [[{"a": 1, "b": None}], []], None, None),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []], None, None),
    ],
)
def test_each_type_has_the_bounds_that_delta_gives_it(type_: Any, values: list[Any], least: Any, greatest: Any) -> None:
    assert of_column(type_, [*values, None]) == (least, greatest, 1)
    assert of_column(type_, [None], values, [None, None]) == (least, greatest, 3)
    assert of_column(type_, values[:1], [], values[1:]) == (least, greatest, 0)
    assert of_column(type_, [None, None]) == (None, None, 2)


def test_decimals_are_written_with_all_their_digits() -> None:
    large = Decimal("12345678901234567890123456789012345.678")
    batch = pa.record_batch(
        [pa.array([large, Decimal("-0.001")], pa.decimal128(38, 3)), pa.array([Decimal(0)] * 2, pa.decimal128(38, 18))],
        names=["a", "b"],
    )
    zero = "0.000000000000000000"
    assert text_of([batch]) == (
        f'{{"numRecords":2,"minValues":{{"a":-0.001,"b":{zero}}},"maxValues":{{"a":{large},"b":{zero}}},'
        f'"nullCount":{{"a":0,"b":0}}}}'
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_timestamps_are_cut_down_to_milliseconds(unit: str) -> None:
    fraction, digits = {"s": (0, "000"), "ms": (123000, "123"), "us": (123999, "123")}[unit]
    values = [datetime(2026, 1, 31, 5, 0, 0, fraction, UTC), datetime(1969, 12, 31, 23, 59, 59, fraction, UTC)]
    bounds = (f"1969-12-31T23:59:59.{digits}", f"2026-01-31T05:00:00.{digits}")
    assert of_column(pa.timestamp(unit), [value.replace(tzinfo=None) for value in values]) == (*bounds, 0)
    elsewhere = (f"{bounds[0]}Z", f"{bounds[1]}Z", 0)
    assert of_column(pa.timestamp(unit, "UTC"), values) == of_column(pa.timestamp(unit, "+02:00"), values) == elsewhere


def test_a_microsecond_before_1970_is_not_cut_up() -> None:
    assert of_column(pa.timestamp("us", "UTC"), [-1, 999]) == (
        "1969-12-31T23:59:59.999Z",
        "1970-01-01T00:00:00.000Z",
        0,
    )


def test_timestamps_that_parquet_stores_without_bounds_have_none() -> None:
    assert of_column(pa.timestamp("ns"), [1]) == (None, None, 0)
    assert of_column(pa.timestamp("us"), [1], use_deprecated_int96_timestamps=True) == (None, None, None)


@pytest.mark.parametrize("type_", [pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_a_year_that_python_lacks_is_no_bound(type_: Any) -> None:
    before, after = -62135596800000001, 253402300800000000
    last = "9999-12-31T23:59:59.999"
    assert of_column(type_, [before, after, None]) == (None, None, 1)
    assert of_column(type_, [before, after - 1])[1].startswith(last)
    assert of_column(type_, [before + 1, after])[0].startswith("0001-01-01T00:00:00.000")
    # What one row group has beyond that, another does not make good.
    assert of_column(type_, [before], [0], [after]) == (None, None, 0)


def test_a_date_that_python_lacks_is_no_bound() -> None:
    days = pa.array([-719528, 2932897], pa.int32()).cast(pa.date32())
    told = json.loads(text_of([pa.record_batch([days], names=["c"])]))
    assert told == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"c": 0}}


@pytest.mark.parametrize(
    ("value", "greatest"),
    [
        ("a" * 32, "a" * 32),
        ("a" * 33, "a" * 32 + "\x7f"),
        ("a" * 32 + "\x7f", "a" * 32 + LAST),
        ("a" * 32 + "é", "a" * 32 + LAST),
        ("\U0001f600" * 16, "\U0001f600" * 16),
        ("\U0001f600" * 17, "\U0001f600" * 16 + LAST),
        ("a" + "\U0001f600" * 17, "a" + "\U0001f600" * 16 + LAST),
        ("a" * 32 + LAST + "b", "a" * 32 + LAST + "\x7f"),
        ("a" * 32 + LAST + "\x7f", "a" * 32 + LAST * 2),
        ("a" * 32 + LAST, "a" * 32 + LAST),
        (LAST * 32, LAST * 32),
        (LAST * 32 + "a", LAST * 32 + "\x7f"),
        (LAST * 33, None),
    ],
)
def test_the_maximum_of_long_strings_is_rounded_up(value: str, greatest: str | None) -> None:
    assert of_column(pa.string(), [value]) == (value[:32], greatest, 0)


WORDS = st.text(st.sampled_from(["a", "\x7e", "\x7f", "\x80", "\ud7ff", "\uffff", "\U00010000", LAST]), max_size=70)
LONG = st.builds(
    lambda base, count, end: base * count + end, st.sampled_from("a\x7f\uffff" + LAST), st.integers(28, 70), WORDS
)


@given(st.lists(st.lists(st.none() | WORDS | LONG | st.text(), max_size=4), min_size=1, max_size=3))
def test_strings_are_between_their_bounds_in_the_order_of_utf_8(groups: list[list[str | None]]) -> None:
    least, greatest, nulls = of_column(pa.string(), *groups)
    values = [value.encode() for group in groups for value in group if value is not None]
    assert nulls == sum(map(len, groups)) - len(values)
    if not values:
        assert (least, greatest) == (None, None)
        return
    assert least.encode() <= min(values)
    assert len(least) <= 32
    if greatest is None:
        assert max(values).decode().count(LAST) >= 16
    else:
        assert max(values) <= greatest.encode()
        assert len(greatest) <= 65


def test_bytes_that_are_no_text_have_no_bounds() -> None:
    strings = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    told = json.loads(text_of([pa.record_batch([strings], names=["c"])]))
    assert told == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": {"c": 0}}


def test_bounds_need_every_row_group() -> None:
    large = "b" * 5000  # Parquet's writer leaves such bounds out
    assert of_column(pa.string(), ["a"], [large, None], ["c"]) == (None, None, 1)
    assert of_column(pa.string(), ["a"], [None], ["c"]) == ("a", "c", 1)
    assert of_column(pa.int64(), [1], [2], write_statistics=False) == (None, None, None)
    assert of_column(pa.list_(pa.int64()), [None], [[2]], write_statistics=False) == (None, None, 1)


def test_one_nan_in_any_batch_is_enough() -> None:
    assert of_column(pa.float64(), [1.0], [2.0, NAN], [3.0]) == (None, None, 0)


INNER = pa.struct([("d", pa.float64()), ("list", pa.list_(pa.int64())), ("flag", pa.bool_())])
OUTER = pa.struct([("n", pa.int32()), ("inner", INNER), ("map", pa.map_(pa.string(), pa.int64()))])


def test_structs_nest_the_statistics() -> None:
    rows = [{"n": 2, "inner": {"d": 0.5, "list": [1], "flag": True}, "map": []}, {"n": 1, "inner": None}, None]
    batch = pa.record_batch([pa.array(rows, OUTER)], names=["s"])
    assert json.loads(text_of([batch])) == {
        "numRecords": 3,
        "minValues": {"s": {"n": 1, "inner": {"d": 0.5}}},
        "maxValues": {"s": {"n": 2, "inner": {"d": 0.5}}},
        "nullCount": {"s": {"n": 1, "inner": {"d": 2, "list": 2, "flag": 2}, "map": 2}},
    }


def test_nan_in_a_struct_counts_unless_the_struct_is_null() -> None:
    fields = pa.struct([("d", pa.float64())])
    values = pa.array([NAN, 1.0])
    hidden = pa.StructArray.from_arrays([values], fields=list(fields), mask=pa.array([True, False]))
    for struct, bounds in ((hidden, {"s": {"d": 1.0}}), (hidden.slice(1), {"s": {"d": 1.0}})):
        told = json.loads(text_of([pa.record_batch([struct], names=["s"])]))
        assert told["minValues"] == told["maxValues"] == bounds
    told = json.loads(
        text_of([pa.record_batch([pa.StructArray.from_arrays([values], fields=list(fields))], names=["s"])])
    )
    assert told["minValues"] == told["maxValues"] == {"s": {}}


ROWS = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-3, 3),
            "inner": st.none()
            | st.fixed_dictionaries(
                {
                    "d": st.none() | st.sampled_from([0.5, -1.0, NAN]),
                    "list": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=2),
                    "flag": st.none() | st.booleans(),
                }
            ),
            "map": st.none() | st.just([("k", 1)]) | st.just([]),
        }
    ),
    max_size=6,
)


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(0, 2))
def test_structs_with_nulls_at_any_depth(groups: list[list[Any]], skipped: int) -> None:
    batches = [
        pa.record_batch([pa.array([*[None] * skipped, *rows], OUTER).slice(skipped)], names=["s"]) for rows in groups
    ]
    told = json.loads(text_of(batches))
    rows = [row or {} for group in groups for row in group]
    inner = [row.get("inner") or {} for row in rows]
    assert told["numRecords"] == len(rows)
    assert told["nullCount"]["s"] == {
        "n": sum(row.get("n") is None for row in rows),
        "map": sum(row.get("map") is None for row in rows),
        "inner": {name: sum(row.get(name) is None for row in inner) for name in ("d", "list", "flag")},
    }
    numbers = [row["n"] for row in rows if row.get("n") is not None]
    doubles = [row["d"] for row in inner if row.get("d") is not None]
    if any(value != value for value in doubles):
        doubles = []
    for name, choose in (("minValues", min), ("maxValues", max)):
        told_inner = {"d": choose(doubles)} if doubles else {}
        assert told[name]["s"] == {"inner": told_inner} | ({"n": choose(numbers)} if numbers else {})


@pytest.mark.parametrize(
    ("indexed", "counts"),
    [
        (0, None),
        (1, {"a": 1}),
        (2, {"a": 1, "s": {"n": 1}}),
        (4, {"a": 1, "s": {"n": 1, "inner": {"d": 1, "list": 1}}}),
        (6, {"a": 1, "s": {"n": 1, "inner": {"d": 1, "list": 1, "flag": 1}, "map": 1}}),
        (-1, {"a": 1, "s": {"n": 1, "inner": {"d": 1, "list": 1, "flag": 1}, "map": 1}, "z": 0}),
    ],
)
def test_the_first_leaf_columns_have_statistics(indexed: int, counts: Any) -> None:
    columns = [pa.array([None], pa.list_(pa.int64())), pa.array([None], OUTER), pa.array([1])]
    told = json.loads(text_of([pa.record_batch(columns, names=["a", "s", "z"])], indexed))
    assert told.get("nullCount") == counts
    assert ("minValues" in told) == (indexed not in (0, 1))
    assert told.get("maxValues", {}).get("z") == (1 if indexed == -1 else None)


def test_a_column_of_nothing_but_nulls_without_a_type() -> None:
    batch = pa.record_batch([pa.nulls(2), pa.array([1, 2])], names=["void", "n"])
    assert text_of([batch]) == ('{"numRecords":2,"minValues":{"n":1},"maxValues":{"n":2},"nullCount":{"void":2,"n":0}}')


def test_a_file_without_rows() -> None:
    batch = pa.record_batch([pa.array([], pa.int64()), pa.array([], OUTER)], names=["n", "s"])
    told = json.loads(text_of([batch]))
    assert told["numRecords"] == 0
    assert told["minValues"] == told["maxValues"] == {"s": {"inner": {}}}
    assert told["nullCount"] == {"n": 0, "s": {"n": 0, "inner": {"d": 0, "list": 0, "flag": 0}, "map": 0}}
    file = io.BytesIO()
    pq.ParquetWriter(file, batch.schema).close()
    assert json.loads(FileStatistics(batch.schema).text(pq.read_metadata(file))) == told


def test_a_footer_of_another_file_is_refused() -> None:
    batch = pa.record_batch([pa.array([1, 2])], names=["n"])
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), file)
    footer = pq.read_metadata(file)
    with pytest.raises(ValueError, match="the file has 2 rows, its batches 0"):
        FileStatistics(batch.schema).text(footer)
    with pytest.raises(ValueError, match="the file has 1 Parquet columns, its schema 2"):
        FileStatistics(pa.schema({"a": pa.int64(), "b": pa.int64()})).text(footer)
