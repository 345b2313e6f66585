"""A refused text names the field that does not fit its schema, and the type that it has there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headwater.pipelines import columns
from headwater.pipelines.formats import ValueColumns, format_of
from headwater.pipelines.formats.origin import records_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

FITS = "the value does not fit the schema: "
JSON_DDL = (
    "id BIGINT, name STRING, `a.b` INT, at TIMESTAMP, tags ARRAY<INT>, items ARRAY<STRUCT<n: INT>>, "
    "more MAP<STRING, BIGINT>, home STRUCT<zip: INT, place: STRUCT<lat: DOUBLE>>"
)
JSON = {
    '{"id": 1, "name": {"any": "text"}, "tags": [], "home": {"zip": null}}': None,
    "{no json": "the value is not JSON",
    "[]": f"{FITS}it is no JSON object",
    "5": f"{FITS}it is no JSON object",
    '{"name": "n", "id": "x"}': f"{FITS}the field id is no BIGINT",
    '{"id": 1.5}': f"{FITS}the field id is no BIGINT",
    '{"id": "x", "at": "soon"}': f"{FITS}the field id is no BIGINT",
    '{"id": null, "at": "soon"}': f"{FITS}the field at is no TIMESTAMP",
    '{"a.b": true}': f"{FITS}the field a.b is no INT",
    '{"tags": [1, "x"]}': f"{FITS}the field tags is no ARRAY<INT>",
    '{"items": [{"n": 1}, {"n": "x"}]}': f"{FITS}the field items is no ARRAY<STRUCT>",
    '{"more": {"k": "x"}}': f"{FITS}the field more is no MAP<STRING, BIGINT>",
    '{"home": 5}': f"{FITS}the field home is no STRUCT",
    '{"home": {"zip": "x"}}': f"{FITS}the field home.zip is no INT",
    '{"home": {"zip": 1, "place": {"lat": "x"}}}': f"{FITS}the field home.place.lat is no DOUBLE",
}
CSV_DDL = "id BIGINT, name STRING, day DATE"
CSV = {
    "1;a;2026-01-01": None,
    "1;;": None,
    "x;a;": f"{FITS}the field id is no BIGINT",
    "1;a;soon": f"{FITS}the field day is no DATE",
    "1;a": f"{FITS}it has more or fewer fields than 3",
    "1;a;2026-01-01;": f"{FITS}it has more or fewer fields than 3",
    "": f"{FITS}it has more or fewer fields than 3",
}


def test_the_field_and_its_type_are_named(delta_spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    for name, ddl, options, wanted in (("json", JSON_DDL, {}, JSON), ("csv", CSV_DDL, {"sep": ";"}, CSV)):
        schema = records_schema()
        rows = []
        for offset, text in enumerate(wanted):
            row = {"value": text.encode(), "topic": "t", "partition": 0, "offset": offset}
            rows.append(tuple(row.get(field) for field in schema.fieldNames()))
        own = StructType.fromDDL(ddl)
        assert isinstance(own, StructType)
        decoded = format_of(name).decode(delta_spark.createDataFrame(rows, schema), ValueColumns(own, options=options))
        found = decoded.select(columns.VALUE, columns.ERROR).collect()
        assert {bytes(value).decode(): error for value, error in found} == wanted
