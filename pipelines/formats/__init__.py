"""Values of records <-> columns. `format_of` returns the module for a topic's `value:`.

A decoder receives the columns of `format("headwater")` and returns the value's columns, the columns of `columns.ORIGIN`
and `columns.ERROR`. An encoder returns one column from a stage's rows; `headwater.pipelines.formats.topic_encoding`
adds the schema and its id.
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
    """The interface of a format's module."""

    def decode(self, records: DataFrame, wanted: ValueColumns) -> DataFrame:
        """Decode records to columns. Only formats with fields use `wanted`."""

    def encode(self, rows: DataFrame, wanted: ValueColumns) -> Column:
        """Return the value's column, binary. Raises ValueError if the rows do not fit the format."""


class _Framed:
    """Avro and Protobuf: Spark's tasks decode values by their writer's schema."""

    @staticmethod
    def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:
        """Decode records to columns."""
        from headwater.pipelines.formats import framed

        assert wanted.schema is not None, "an analysis has found the columns"
        if wanted.reader is None:
            return framed.undecoded(records, wanted.schema)
        return framed.decode(records, wanted.reader, wanted.schema)

    @staticmethod
    def encode(rows: DataFrame, wanted: ValueColumns) -> Column:  # noqa: ARG004 - one signature for all
        """Never called: framed values need a schema id, which `topic_encoding` adds."""
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
    """Return the format of a topic's `value:` field."""
    return _FORMATS[value]


def data_columns(rows: DataFrame) -> list[str]:
    """Return the columns of a stage's rows without the columns of the record's origin."""
    return [name for name in rows.columns if name not in columns.RESERVED]
