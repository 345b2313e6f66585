"""Values of records <-> columns. `format_of` finds the module for a topic's `value:`.

A decoder takes frames with the columns of `format("headwater")` and gives the value's columns, those of
`columns.ORIGIN` and `columns.ERROR`. An encoder gives one column from a stage's rows; what it must know beside them
(a schema, its id) is the business of `headwater.pipelines.formats.topic_encoding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headwater.pipelines import columns
from headwater.pipelines.formats import csv, framed_json, json, raw, string
from headwater.pipelines.formats.value_columns import ValueColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


__all__ = ["Format", "ValueColumns", "data_columns", "format_of"]


class Format(Protocol):
    """What a module of this package offers."""

    def decode(self, records: DataFrame, wanted: ValueColumns) -> DataFrame:
        """Records to columns. Only formats with fields look at `wanted`."""

    def encode(self, rows: DataFrame, wanted: ValueColumns) -> Column:
        """The value's column, as binary, or ValueError if these rows cannot be written so."""


class _Framed:
    """Avro and Protobuf: values are decoded in Spark's tasks, by the schema they were written with."""

    @staticmethod
    def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:
        """Records to columns."""
        from headwater.pipelines.formats import framed

        assert wanted.schema is not None, "an analysis has found the columns"
        if wanted.reader is None:
            return framed.undecoded(records, wanted.schema)
        return framed.decode(records, wanted.reader, wanted.schema)

    @staticmethod
    def encode(rows: DataFrame, wanted: ValueColumns) -> Column:  # noqa: ARG004 - one signature for all
        """Such values carry an id, which the columns do not tell."""
        raise AssertionError("headwater.pipelines.formats.topic_encoding writes these")


_FORMATS: dict[str, Format] = {
    "json": json,
    "csv": csv,
    "string": string,
    "raw": raw,
    "json_schema": framed_json,
    "avro": _Framed,
    "protobuf": _Framed,
}


def format_of(value: str) -> Format:
    """The format of a topic's `value:` field."""
    return _FORMATS[value]


def data_columns(rows: DataFrame) -> list[str]:
    """Columns of a stage's rows without those that carry the record's origin."""
    return [name for name in rows.columns if name not in columns.RESERVED]
