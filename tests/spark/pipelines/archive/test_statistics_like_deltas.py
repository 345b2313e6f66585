"""The statistics of a file that pyarrow has written are those that Delta gives to the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.pipelines.archive.file_statistics import FileStatistics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

NAN, INFINITY = float("nan"), float("inf")
LAST, EMOJI = "\U0010ffff", "\U0001f600"
SMALL = pa.struct([("x", pa.int64())])
DEEP = pa.struct([("y", pa.string()), ("list", pa.list_(pa.int64())), ("d", pa.float64())])
OLD, NEW = datetime(1969, 12, 31, 23, 59, 59, 999001, UTC), datetime(2026, 1, 31, 5, 0, 0, 123999, UTC)

#: Column: type and values of three rows.
COLUMNS: Mapping[str, tuple[Any, list[Any]]] = {
    "byte": (pa.int8(), [1, None, -3]),
    "long": (pa.int64(), [2**60, None, -(2**63)]),
    "decimal38": (
        pa.decimal128(38, 3),
        [Decimal("12345678901234567890123456789012345.678"), None, Decimal("-0.001")],
    ),
    "decimal18": (pa.decimal128(38, 18), [Decimal("0E-18"), None, Decimal("1E-17")]),
    "decimal9": (pa.decimal128(9, 2), [Decimal("-1.50"), None, Decimal("3.25")]),
    "float": (pa.float32(), [1.1, None, -1e20]),
    "double": (pa.float64(), [1.1, None, -1e300]),
    "zeros": (pa.float64(), [0.0, -0.0, None]),
    "float_nan": (pa.float32(), [NAN, NAN, None]),
    "double_nan": (pa.float64(), [1.5, NAN, None]),
    "infinity": (pa.float64(), [INFINITY, 1.0, None]),
    "minus_infinity": (pa.float64(), [-INFINITY, 1.0, None]),
    "date": (pa.date32(), [date(2026, 1, 31), date(1583, 2, 3), None]),
    "instant": (pa.timestamp("us", "UTC"), [NEW, OLD, None]),
    "far": (pa.timestamp("us", "UTC"), [-62135596800000001, 253402300800000000, None]),
    "timestamp": (pa.timestamp("us"), [NEW.replace(tzinfo=None), OLD.replace(tzinfo=None), None]),
    "ascii": (pa.string(), ["a" * 40, "z" * 40, None]),
    "beyond_ascii": (pa.string(), ["a" * 32, "z" * 32 + "\x7fz", None]),
    "emoji": (pa.string(), [EMOJI * 40, "a" + EMOJI * 40, None]),
    "last": (pa.string(), [LAST * 16 + "x", LAST * 33, LAST * 32]),
    "almost_last": (pa.string(), [LAST * 15 + "aaa", LAST * 20 + "a" * 6, LAST * 20 + "\x7e"]),
    "split": (pa.string(), ["a" * 31 + EMOJI + "b", None, "a" * 31 + "\uffff" + "b"]),
    "escaped": (pa.string(), ['\x00"\\\u2028é', None, "é"]),
    "order": (pa.string(), ["\uffff", "\U00010000", None]),
    "empty": (pa.string(), ["", "", None]),
    "boolean": (pa.bool_(), [True, None, False]),
    "binary": (pa.binary(), [b"x", None, b""]),
    "nulls": (pa.int64(), [None, None, None]),
    "struct": (
        pa.struct([("x", pa.int64()), ("deep", DEEP)]),
        [{"x": 1, "deep": {"y": "q" * 33, "list": [1], "d": 1.0}}, {"x": None, "deep": None}, None],
    ),
    "struct_nan": (DEEP, [{"y": None, "list": None, "d": NAN}, {"y": "y", "list": [], "d": 0.5}, None]),
    "struct_nulls": (SMALL, [None, None, {"x": None}]),
    "struct_boolean": (pa.struct([("b", pa.bool_())]), [None, {"b": None}, {"b": True}]),
    "array": (pa.list_(pa.int64()), [[1, None], [], None]),
    "structs": (pa.list_(SMALL), [[{"x": 1}], [], None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
    "end": (pa.int16(), [1, 2, 3]),
}
BOUNDS = ("minValues", "maxValues")
#: Bounds that only Delta has: they are no JSON numbers, say nothing beside NaN, or have a year that Python lacks.
ONLY_DELTAS = {
    ("minValues", "float_nan"): "NaN",
    ("maxValues", "float_nan"): "NaN",
    ("minValues", "double_nan"): 1.5,
    ("maxValues", "double_nan"): "NaN",
    ("maxValues", "infinity"): "Infinity",
    ("minValues", "minus_infinity"): "-Infinity",
    ("minValues", "far"): "0000-12-31T23:59:59.999Z",
    ("maxValues", "far"): "+10000-01-01T00:00:00.000Z",
    ("minValues", "struct_nan", "d"): 0.5,
    ("maxValues", "struct_nan", "d"): "NaN",
}


def values_of(nested: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each value of nested objects, and each object without any, by its path."""
    for name, value in nested.items():
        if isinstance(value, dict) and value:
            yield from values_of(value, *path, name)
        else:
            yield (*path, name), value


def parsed(stats: str) -> dict[tuple[str, ...], Any]:
    return dict(values_of(json.loads(stats, parse_float=Decimal)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three row groups."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table({name: pa.array(values, type_) for name, (type_, values) in COLUMNS.items()}), path, 1)
    return path


def text(file: Path, indexed_columns: int) -> str:
    rows = pq.ParquetFile(file).read()
    statistics = FileStatistics(rows.schema, indexed_columns)
    for batch in rows.to_batches(max_chunksize=2):
        statistics.add(batch)
    return statistics.text(pq.read_metadata(file))


def actions_of(commit: Path) -> list[Any]:
    # Not `splitlines`: U+2028 ends a line there, and is not escaped here.
    return [json.loads(line) for line in commit.read_text().split("\n") if line]


def deltas(spark: SparkSession, file: Path, table: Path, indexed_columns: int) -> dict[tuple[str, ...], Any]:
    writer = spark.read.parquet(str(file)).coalesce(1).write.format("delta")
    writer.option("delta.dataSkippingNumIndexedCols", str(indexed_columns)).save(str(table))
    actions = actions_of(table / "_delta_log" / "00000000000000000000.json")
    [stats] = [action["add"]["stats"] for action in actions if "add" in action]
    return parsed(stats)


@pytest.mark.parametrize("indexed_columns", [-1, 0, 32])
def test_statistics_are_those_that_delta_writes(
    delta_spark: SparkSession, file: Path, tmp_path: Path, indexed_columns: int
) -> None:
    told, wanted = parsed(text(file, indexed_columns)), deltas(delta_spark, file, tmp_path / "table", indexed_columns)
    places = {path[1:] for path in wanted if path[0] == "nullCount"}
    assert len(places) == {-1: 41, 0: 0, 32: 32}[indexed_columns]
    only_deltas = {path: value for path, value in ONLY_DELTAS.items() if path[1:] in places}
    assert {path: wanted[path] for path in wanted.keys() - told.keys()} == only_deltas
    assert told == {path: value for path, value in wanted.items() if path not in only_deltas}
    # A bound is missing on both sides where no short string is great enough.
    assert ("maxValues", "last") not in wanted


def test_delta_reads_them(delta_spark: SparkSession, file: Path, tmp_path: Path) -> None:
    """With these statistics in the log, queries find the rows at the bounds, and skip the file beyond them."""
    deltas(delta_spark, file, tmp_path, -1)
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    actions = actions_of(log)
    for action in actions:
        if "add" in action:
            action["add"]["stats"] = text(file, -1)
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    log.with_name(f".{log.name}.crc").unlink()  # Hadoop's checksum of what was there
    log.with_suffix(".crc").unlink(missing_ok=True)

    def files_read(condition: str) -> int:
        frame = delta_spark.read.format("delta").load(str(tmp_path)).where(condition)
        assert frame.isEmpty() is (condition in beyond), condition
        return len(frame.inputFiles())

    at_bounds = [
        "instant >= timestamp'2026-01-31 05:00:00.123999Z'",
        "timestamp >= timestamp_ntz'2026-01-31 05:00:00.123999'",
        f"emoji = repeat('{EMOJI}', 40)",
        "decimal38 = 12345678901234567890123456789012345.678BD",
        "float = float(1.1)",
        "double_nan = double('NaN')",
        "infinity = double('Infinity')",
    ]
    beyond = ["instant > timestamp'2026-01-31 05:00:00.125Z'", "float > 1.2", "decimal18 > 1.1E-17BD", "end = 4"]
    found = {condition: files_read(condition) for condition in [*at_bounds, *beyond]}
    assert found == dict.fromkeys(at_bounds, 1) | dict.fromkeys(beyond, 0)
