"""Columns of a merged table that a history cannot track."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructField, StructType, VariantType

from headwater.pipelines.sinks.delta.delta_merge import _incomparable

MAP = MapType(StringType(), StringType())


def test_columns_that_only_the_table_has_and_spark_cannot_compare() -> None:
    fields = {
        "tags": MAP, "Rows_Tags": MAP, "any": VariantType(), "many": ArrayType(MAP), "n": IntegerType(),
        "within": StructType([StructField("at", StringType()), StructField("tags", MAP)]),
        "fine": ArrayType(StructType([StructField("n", IntegerType())])),
    }  # fmt: skip
    found = _incomparable([StructField(name, kind) for name, kind in fields.items()], ["rows_tags", "n"])
    assert found == {"tags", "any", "many", "within"}
