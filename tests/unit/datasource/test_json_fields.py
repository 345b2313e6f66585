"""Which JSON values the tasks that read take to pieces themselves, and what they find in those."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from headwater.pipelines.datasource.errors import OptionError
from headwater.pipelines.datasource.json_fields import FIELDS_MAX, TAKEN, JsonFields
from headwater.pipelines.datasource.options import ReadOptions

FIELDS = JsonFields((
    ("id", "bigint"), ("small", "int"), ("price", "double"), ("open", "boolean"), ("name", "string"),
    ("at", "timestamp"), ("day", "date"),
))  # fmt: skip
NAMES = [name for name, _ in FIELDS.fields]


def parsed(*values: bytes | None) -> list[dict[str, Any] | None]:
    """The fields of each value that has some; None for those that are left to Spark."""
    records = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
    found = FIELDS.added_to(records)
    found.validate(full=True)
    taken = found.column(TAKEN).to_pylist()
    rows = zip(*(column.to_pylist() for column in found.columns[2:]), strict=True)
    return [
        {name: cell for name, cell in zip(NAMES, row, strict=True) if cell is not None} if there else None
        for there, row in zip(taken, rows, strict=True)
    ]


def test_a_value_of_every_type() -> None:
    value = (
        b'{"id": -7, "small": 2147483647, "price": 12.50, "open": true, "name": "Gr\xc3\xbc\xc3\x9fe",'
        b'"at": "2013-01-01T10:00:00.5Z", "day": "2024-02-29"}'
    )
    assert parsed(value) == [
        {
            "id": -7,
            "small": 2147483647,
            "price": 12.5,
            "open": True,
            "name": "Grüße",
            "at": dt.datetime(2013, 1, 1, 10, 0, 0, 500_000, dt.UTC),
            "day": dt.date(2024, 2, 29),
        }
    ]


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b"{}", {}),
        (b' \t\r\n{ \n"id"\t:\r1 ,"name" : "" } ', {"id": 1, "name": ""}),
        (b'{"name":"b","id":2}', {"id": 2, "name": "b"}),
        (b'{"other":1.5,"id":2,"more":"x","none":null,"yes":false}', {"id": 2}),
        (b'{"id":null,"name":null,"open":null,"price":null,"at":null}', {}),
        (b'{"ID":1,"i":2,"idd":3}', {}),
        (b'{"id":0,"price":0}', {"id": 0, "price": 0.0}),
        (b'{"id":999999999999999999,"price":999999999999999}', {"id": 10**18 - 1, "price": 1e15 - 1}),
        (b'{"price":-0.001}', {"price": -0.001}),
        (b'{"price":123456789.012345}', {"price": 123456789.012345}),
        (b'{"open":false}', {"open": False}),
        (rb'{"name":"a\"b\\c\/d\n\t\r\b\f"}', {"name": 'a"b\\c/d\n\t\r\b\f'}),
        (rb'{"name":"\u00e9 \u20AC \ud83d\uDE00 \u0000","id":1}', {"name": "é € \U0001f600 \0", "id": 1}),
        (rb'{"other":"a\"b\u00e9","id":2}', {"id": 2}),
        (b'{"other":{"id":1,"a":[1, {"b":[ ] },{},"x",null,true] , "c":-1.5},"id":2}', {"id": 2}),
        (b'{"other":[],"more":{ },"id":2}', {"id": 2}),
        (b'{"other":' + b"[" * 60 + b"]" * 60 + b',"id":2}', {"id": 2}),
        (b'{"at":"1969-12-31T23:59:59Z"}', {"at": dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)}),
        (
            b'{"at":"0001-01-01T00:00:00.000001Z","day":"0001-01-01"}',
            {"at": dt.datetime(1, 1, 1, 0, 0, 0, 1, dt.UTC), "day": dt.date(1, 1, 1)},
        ),
        (b'{"day":"2000-02-29"}', {"day": dt.date(2000, 2, 29)}),
        (b'{"day":"9999-12-31"}', {"day": dt.date(9999, 12, 31)}),
    ],
)
def test_taken(value: bytes, fields: dict[str, Any]) -> None:
    assert parsed(value) == [fields]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"  ",
        b"null",
        b"1",
        b'"id"',
        b"[]",
        b'[{"id":1}]',
        b"{",
        b'{"id"',
        b'{"id":',
        b'{"id":1',
        b'{"id":1,',
        b'{"id":1,}',
        b'{,"id":1}',
        b'{"id":1 "name":"x"}',
        b'{"id":1}}',
        b'{"id":1} {"id":2}',
        b'{"id":1}x',
        b"{id:1}",
        b"{'id':1}",
        b'{"id":1,"id":1}',
        b'{"id":null,"id":1}',
        b'{"id":"1"}',
        b'{"id":1.0}',
        b'{"id":1e3}',
        b'{"id":01}',
        b'{"id":-}',
        b'{"id":+1}',
        b'{"id":-0}',
        b'{"id":.5}',
        b'{"id":1000000000000000000}',
        b'{"id":true}',
        b'{"id":nul}',
        b'{"id":nulll}',
        b'{"id":{}}',
        b'{"small":2147483648}',
        b'{"small":-2147483649}',
        b'{"price":1.}',
        b'{"price":1.5.5}',
        b'{"price":1e400}',
        b'{"price":-0.0}',
        b'{"price":1234567890123456}',
        b'{"price":NaN}',
        b'{"price":"NaN"}',
        b'{"open":1}',
        b'{"open":"true"}',
        b'{"open":truE}',
        b'{"name":1}',
        b'{"name":true}',
        rb'{"name":"\x"}',
        rb'{"name":"\u12"}',
        rb'{"name":"\u12g4"}',
        rb'{"name":"\ud83d"}',
        rb'{"name":"\ud83d\n"}',
        rb'{"name":"\ud83d\u0041"}',
        rb'{"name":"\ude00"}',
        rb'{"name":"\"}',
        b'{"name":"\\',
        rb'{"at":"2013-01-01T10:00:00\u005a"}',
        rb'{"other":"\x","id":2}',
        b'{"na\\u006de":"b"}',
        b'{"name":"line\nbreak"}',
        b'{"name":"\x00"}',
        b'{"name":"\xff"}',
        b'{"name":"\xc0\xaf"}',
        b'{"name":"\xed\xa0\x80"}',
        b'{"name":"\xf4\x90\x80\x80"}',
        b'{"name":"\xe2\x82"}',
        b'{"name":"open}',
        b'{"name":{"id":1}}',
        b'{"id":[1]}',
        b'{"other":{"id":1,},"id":2}',
        b'{"other":{,"id":1},"id":2}',
        b'{"other":{"id"},"id":2}',
        b'{"other":{"id":},"id":2}',
        b'{"other":{1:1},"id":2}',
        b'{"other":{"id":1]},"id":2}',
        b'{"other":[1,],"id":2}',
        b'{"other":[,1],"id":2}',
        b'{"other":[1 2],"id":2}',
        b'{"other":[1},"id":2}',
        b'{"other":[nul],"id":2}',
        b'{"other":[01],"id":2}',
        b'{"other":["\xff"],"id":2}',
        b'{"other":[[[]],"id":2}',
        b'{"other":[1',
        b'{"other":{"a":1',
        b'{"other":' + b"[" * 61 + b"]" * 61 + b',"id":2}',
        b'{"other":tru}',
        b'{"other":01}',
        b'{"at":"2013-01-01 10:00:00Z"}',
        b'{"at":"2013-01-01T10:00:00"}',
        b'{"at":"2013-01-01T10:00:00+01:00"}',
        b'{"at":"2013-01-01T24:00:00Z"}',
        b'{"at":"2013-01-01T10:00:60Z"}',
        b'{"at":"2013-01-01T10:00:00.Z"}',
        b'{"at":"2013-01-01T10:00:00.1234567Z"}',
        b'{"at":"2013-02-29T10:00:00Z"}',
        b'{"at":""}',
        b'{"at":1}',
        b'{"day":"1900-02-29"}',
        b'{"day":"2013-13-01"}',
        b'{"day":"2013-00-01"}',
        b'{"day":"2013-04-31"}',
        b'{"day":"0000-01-01"}',
        b'{"day":"2013-1-01"}',
        b'{"day":"2013-01-01T"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_left_to_spark(value: bytes | None) -> None:
    assert parsed(b'{"id":1}', value, b'{"name":"after"}') == [{"id": 1}, None, {"name": "after"}]


def test_strings_with_and_without_escapes_stand_beside_each_other() -> None:
    values = [rb'{"name":"one"}', rb'{"name":"t\u0077o\n"}', b"{}", b"[", rb'{"name":"\\"}', rb'{"name":"five"}']
    assert parsed(*values) == [{"name": "one"}, {"name": "two\n"}, {}, None, {"name": "\\"}, {"name": "five"}]


def test_no_byte_behind_a_value_is_looked_at() -> None:
    # What is cut off here stands in the next value's first bytes: a loop that read on would find it.
    whole = rb'{"id":12,"name":"a\u0041\n","open":true,"x":[{"y":-1.5},null],"at":"2013-01-01T10:00:00Z"}'
    for cut in range(1, len(whole)):
        assert parsed(whole[:cut], whole[cut:])[0] is None, whole[:cut]


def test_a_part_of_a_batch_is_parsed_as_the_whole() -> None:
    values = [b'{"id":%d,"name":"n%d"}' % (i, i) for i in range(10)]
    records = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])
    whole, part = FIELDS.added_to(records), FIELDS.added_to(records.slice(3, 4))
    assert part.equals(whole.slice(3, 4))
    assert part.column(2).to_pylist() == [3, 4, 5, 6]


def test_json_behind_the_id_of_a_schema() -> None:
    framed = JsonFields((("id", "bigint"),), framed=True)
    values = [b'\0\0\0\0\7{"id":1}', b'\1\0\0\0\7{"id":2}', b'{"id":3}', b"\0\0\0\0\7", b"\0\0", b"", None]
    found = framed.added_to(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"]))
    assert found.column(TAKEN).to_pylist() == [True, False, False, False, False, False, False]
    assert found.column(2)[0].as_py() == 1


def test_an_empty_batch_has_the_columns() -> None:
    records = pa.RecordBatch.from_arrays([pa.array([], pa.binary())], names=["value"])
    assert FIELDS.added_to(records).schema.names == ["value", *(field.name for field in FIELDS.columns())]


def test_a_name_that_is_the_beginning_of_another_is_told_from_it() -> None:
    fields = JsonFields((("a", "bigint"), ("ab", "bigint"), ("größe", "bigint")))
    value = '{"größe":3,"ab":2,"a":1}'.encode()
    found = fields.added_to(pa.RecordBatch.from_arrays([pa.array([value], pa.binary())], names=["value"]))
    assert [found.column(i)[0].as_py() for i in range(2, 5)] == [1, 2, 3]


def test_a_schema_with_a_type_of_spark_alone_has_no_such_fields() -> None:
    whole = StructType([StructField("id", LongType()), StructField("name", StringType())])
    assert JsonFields.of(whole) == JsonFields((("id", "bigint"), ("name", "string")))
    assert JsonFields.of(StructType([*whole.fields, StructField("sum", DecimalType(10, 2))])) is None
    assert JsonFields.of(StructType([*whole.fields, StructField("in", whole)])) is None
    assert JsonFields.of(StructType([])) is None
    many = [StructField(f"f{number}", LongType()) for number in range(FIELDS_MAX + 1)]
    assert JsonFields.of(StructType(many)) is None
    assert JsonFields.of(StructType(many[1:])) is not None


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a\nb", "\x00"])
def test_a_name_that_json_writes_with_an_escape_is_left_to_spark(name: str) -> None:
    assert JsonFields.of(StructType([StructField(name, LongType())])) is None


def test_the_option_is_checked() -> None:
    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
    assert ReadOptions.parse(given).json_fields is None
    assert ReadOptions.parse(given | {"headwater.jsonFields": FIELDS.text()}).json_fields == FIELDS
    for wrong in (
        "",
        "x",
        "[]",
        "{}",
        '{"fields":[]}',
        '{"fields":["id"]}',
        '{"fields":[["id","decimal(10,2)"]]}',
        '{"fields":[[1,2]]}',
        '{"fields":[["a\\\\b","int"]]}',
        '{"fields":[["id","int"]],"framed":1}',
        '{"fields":[["id","int"]],"other":1}',
        json.dumps({"fields": [[f"f{number}", "int"] for number in range(FIELDS_MAX + 1)]}),
    ):
        with pytest.raises(OptionError, match=r"option headwater\.jsonFields"):
            ReadOptions.parse(given | {"headwater.jsonFields": wrong})
