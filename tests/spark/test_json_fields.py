"""JSON that the reading tasks parse says what Spark's parser would have said: compared value by value."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SEED = 20131
VALUES = 30_000
DDL = "id BIGINT, small INT, price DOUBLE, open BOOLEAN, name STRING, at TIMESTAMP, day DATE"
REQUIRED = ("id", "name")

# Written as they stand into values: of every kind some that fit a field, and some that almost do.
NUMBERS = [
    "0", "-0", "1", "-1", "7", "42", "-42", "007", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "999999999999999", "1234567890123456", "999999999999999999", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "0.0", "-0.0", "0.1", "1.5", "-2.25", "3.14159265", "0.000001", "123456789.012345",
    "99999999999999.9", "0.1000000000000000055", "1e3", "1E-3", "1.5e308", "1e400", "-1e400", "5e-324", "1.", ".5",
    "+", "-", "1-",
]  # fmt: skip
TEXTS = [
    "", "a", "Grüße", "日本", "\U0001f6eb", "true", "null", "1", "1.5", "a b", " a", "\\n",
    "\\\"q\\\"", "\\u20ac\\t", "\\ud83d\\ude00", "\\ud83d\\u0041", "\\ude00", "\\u00e9", "\\ud83d", "\\/", "\\x", "\t",
    "2013-01-01", "2013-1-1", "2013-02-29", "2024-02-29", "0001-01-01", "9999-12-31",
    "0000-01-01", "10000-01-01", "2013-01", "2013-01-01T10:00:00Z", "2013-01-01T10:00:00.5Z",
    "2013-01-01T10:00:00.123456Z", "2013-01-01T10:00:00.1234567Z", "2013-01-01T10:00:00", "2013-01-01 10:00:00",
    "2013-01-01T10:00:00+02:00", "2013-01-01T24:00:00Z", "1582-10-10T00:00:00Z", "1969-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00Z", "2013-01-01T10:00:60Z", "2013-01-01T10:00Z", "NaN", "Infinity",
]  # fmt: skip
OTHERS = [
    '{"a":[1,{"b":[]},{}],"c":null}', '[[["x\\n"]]]', '{"a":}', "[1,]", '{"a" 1}', "[1}", '{"a":"\\ud83d"}',
    "[1e3]", "[ { } ]",
    "true", "false", "null", "True", "nul", "{}", '{"id":1}', "[]", "[1,2]", '"', "NaN", "Infinity", "", "'a'",
]  # fmt: skip
NAMES = ["id", "small", "price", "open", "name", "at", "day", "ID", "other", "", "na\\u006de", "größe"]
SPACES = ["", "", "", "", " ", "\t", "\r\n"]
BYTES = [b",", b'"', b"{", b"}", b":", b" ", b"\f", b"\xff", b"\x00", b"\xc3", b"1", b"\\"]
FITTING: dict[str, list[str]] = {
    "id": ["0", "7", "-42", "999999999999999999"],
    "small": ["0", "-2147483648", "2147483647"],
    "price": ["0.1", "1.5", "-2.25", "3.14159265", "99999999999999.9", "7", "123456789.012345"],
    "open": ["true", "false"],
    "name": ['"a"', '""', '"\\u00e9\\n"', '"say \\"hi\\""', '"Grüße"', '"日本"', '"a b"', '" a"'],
    "at": [f'"{at}Z"' for at in ("2013-01-01T10:00:00", "1969-12-31T23:59:59.999999", "1582-10-10T00:00:00.5")],
    "day": ['"2013-01-01"', '"2024-02-29"', '"1582-10-10"', '"0001-01-01"', '"9999-12-31"'],
}  # fmt: skip


def one_of(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(NUMBERS)
    return f'"{chance.choice(TEXTS)}"' if kind < 0.8 else chance.choice(OTHERS)


def value(chance: random.Random) -> bytes:
    """An object: mostly one that fits, some with values of other kinds, some with bytes that were changed."""
    oddity = chance.random()
    fields = []
    for name in chance.sample(NAMES[:7] if oddity < 0.5 else NAMES, chance.randint(0, 7)):
        strange = name not in FITTING or (oddity > 0.4 and chance.random() < 0.2)
        text = one_of(chance) if strange else chance.choice([*FITTING[name], "null"])
        fields.append(f'{chance.choice(SPACES)}"{name}"{chance.choice(SPACES)}:{chance.choice(SPACES)}{text}')
    if fields and chance.random() < 0.02:
        fields.append(fields[0])
    found = bytearray((chance.choice(SPACES) + "{" + ",".join(fields) + "}" + chance.choice(SPACES)).encode())
    if oddity > 0.8:
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(found) + 1)
            if chance.random() < 0.5:
                del found[at : at + 1]
            else:
                found[at:at] = chance.choice(BYTES)
    return bytes(found)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with times as the numbers that they are: Python's own end with the year 9999."""
    for name, type_ in (("at", "int64"), ("day", "int32")):
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(type_))
    return table.to_pylist()


def test_what_is_parsed_while_reading_is_what_spark_parses(spark: SparkSession) -> None:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headwater.logtier.records.columns import column_schema
    from headwater.pipelines.datasource.json_fields import TAKEN
    from headwater.pipelines.formats import ValueColumns, json

    chance = random.Random(SEED)
    values: list[bytes | None] = [value(chance) for _ in range(VALUES)]
    values[5] = None
    schema = StructType.fromDDL(DDL)
    assert isinstance(schema, StructType)
    wanted = ValueColumns(schema, required=REQUIRED)
    fields = json.fields_of(wanted)
    assert fields is not None
    columns: dict[str, Any] = {
        "key": pa.nulls(VALUES, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["t"] * VALUES),
        "partition": pa.array([0] * VALUES, pa.int32()),
        "offset": pa.array(range(VALUES), pa.int64()),
        "timestamp": pa.array([0] * VALUES, pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * VALUES, pa.int32()),
    }
    records = pa.RecordBatch.from_arrays(list(columns.values()), schema=column_schema())
    with_fields = fields.added_to(records)

    by_spark = json.decode(spark.createDataFrame(pa.Table.from_batches([records])), wanted)
    by_both = json.decode(spark.createDataFrame(pa.Table.from_batches([with_fields])), wanted)

    assert by_both.schema == by_spark.schema
    expected, found = (rows(frame.toArrow()) for frame in (by_spark, by_both))
    different = [(e["_value"], e, f) for e, f in zip(expected, found, strict=True) if repr(e) != repr(f)]
    assert not different, different[:3]
    taken = [bool(one) for one in with_fields.column(TAKEN).to_pylist()]
    refused = [row["_error"] is not None for row in expected]
    # Neither way was spared: of both there are thousands, and of those that are taken some lack a required field.
    assert sum(taken) > VALUES / 4
    assert sum(not one for one in taken) > VALUES / 10
    assert sum(one and there for one, there in zip(refused, taken, strict=True)) > VALUES / 100
