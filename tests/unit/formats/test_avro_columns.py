"""Which columns an Avro schema has, and what cannot be one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.pipelines.formats.avro.columns import NESTING_MAX, columns, columns_ddl, parsed


def ddl(schema: Any) -> str:
    return columns_ddl(columns(parsed(json.dumps(schema))))


def record(record_name: str = "r", **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": record_name,
        "fields": [{"name": n.strip("_"), "type": t} for n, t in fields.items()],
    }


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("boolean", "BOOLEAN"),
        ("int", "INT"),
        ("long", "BIGINT"),
        ("float", "FLOAT"),
        ("double", "DOUBLE"),
        ("bytes", "BINARY"),
        ("string", "STRING"),
        (["null", "string"], "STRING"),
        (["int", "long", "null"], "BIGINT"),
        (["float", "double"], "DOUBLE"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "STRING"),
        ({"type": "fixed", "name": "f", "size": 2}, "BINARY"),
        ({"type": "array", "items": "int"}, "ARRAY<INT>"),
        ({"type": "map", "values": ["null", "long"]}, "MAP<STRING, BIGINT>"),
        (record("inner", b="int"), "STRUCT<`b`: INT>"),
        ({"type": "int", "logicalType": "date"}, "DATE"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "TIMESTAMP_NTZ"),
        ({"type": "long", "logicalType": "time-micros"}, "BIGINT"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "DECIMAL(9, 2)"),
        ({"type": "string", "logicalType": "uuid"}, "STRING"),
        ({"type": {"type": "array", "items": "string"}}, "ARRAY<STRING>"),
    ],
)
def test_types_become_columns(kind: Any, column: str) -> None:
    assert ddl(record(a=kind)) == f"`a` {column}"


def test_a_type_is_known_by_its_name_once_it_was_given() -> None:
    inner = {"type": "record", "name": "p", "namespace": "x", "fields": [{"name": "n", "type": "int"}]}
    assert ddl(record(a=inner, b="x.p", c={"type": "enum", "name": "e", "symbols": []}, d="e")) == (
        "`a` STRUCT<`n`: INT>, `b` STRUCT<`n`: INT>, `c` STRING, `d` STRING"
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "items": "int"}, "is a record"),
        (record(a=["int", "string"]), r"\$\.a: a union of several types"),
        (record(a=["null", "r"]), r"\$\.a: the record r holds itself"),
        (record(a="nothing"), r"undefined name: 'nothing'"),
        (record(a="int", A_="int"), "differs by case only"),
        (record(a=record("inner", b=["string", "int"])), r"\$\.a\.b: a union"),
    ],
)
def test_what_cannot_be_a_column_is_told_with_its_path(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ddl(schema)


def test_deep_schemas_are_refused() -> None:
    kind: Any = "int"
    for _ in range(NESTING_MAX + 1):
        kind = {"type": "array", "items": kind}
    with pytest.raises(ValueError, match="nested deeper"):
        ddl(record(a=kind))
