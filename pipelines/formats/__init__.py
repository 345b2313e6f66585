"""Values of records <-> columns. `format_of` finds the module for a topic's `value:`.

A decoder takes frames with the columns of `format("headwater")` and gives the value's columns, those of
`columns.ORIGIN` and `columns.ERROR`. An encoder gives one column from a stage's rows; what it must know beside them
(a schema, its id) is the business of `headwater.pipelines.formats.topic_encoding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headwater.pipelines import columns
from headwater.pipelines.formats import csv, framed_json, json, raw, string

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from headwater.pipelines.formats.framed_tasks import Reader


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """The columns of a value, and which of them must not be null. Formats without fields take an empty one.

    `options` are those of Spark's parser and writer of JSON or CSV. A `reader` is what Avro and Protobuf need.
    """

    schema: StructType | None = None
    required: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    reader: Reader | None = None


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
