"""Values of records <-> columns. `decoder` and `encoder` find the module for a topic's `value:`.

A decoder takes frames with the columns of `format("headwater")` and gives the value's columns, those of
`columns.ORIGIN` and `columns.ERROR`. An encoder gives one column from a stage's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pipelines import columns
from pipelines.formats import json, raw, string

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """The columns of a JSON value, and which of them must not be null. Formats without fields take an empty one."""

    schema: StructType | None = None
    required: tuple[str, ...] = ()


class Format(Protocol):
    """What a module of this package offers."""

    def decode(self, records: DataFrame, wanted: ValueColumns) -> DataFrame:
        """Records to columns. Only formats with fields look at `wanted`."""

    def encode(self, rows: DataFrame) -> Column:
        """The value's column, as binary, or ValueError if these rows cannot be written so."""


_FORMATS: dict[str, Format] = {"json": json, "string": string, "raw": raw}


def format_of(value: str) -> Format:
    """The format of a topic's `value:` field."""
    return _FORMATS[value]


def data_columns(rows: DataFrame) -> list[str]:
    """Columns of a stage's rows without those that carry the record's origin."""
    return [name for name in rows.columns if name not in columns.RESERVED]
