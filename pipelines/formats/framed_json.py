"""`value: json_schema`: JSON behind the id of its schema, as Confluent's serializers write it.

JSON says itself what its fields are, hence it is read as the schema here whichever it was written with: a record is
refused when it has no id, or where `json` refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.pipelines.formats import json
from headwater.pipelines.schemas import schema_ids

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipelines.formats.value_columns import ValueColumns

_REST = 2**31 - 1  # bytes: as many as there are


def text_of(value: Column) -> Column:
    """The JSON of a framed value."""
    from pyspark.sql import functions as f

    return f.substring(value, schema_ids.HEADER_BYTES + 1, _REST).cast("string")


def fault_of(value: Column) -> Column:
    """What is wrong with the frame; null if nothing is."""
    from pyspark.sql import functions as f

    magic = f.substring(value, 1, 1) == f.lit(bytearray(b"\0"))
    return f.when(f.octet_length(value) < schema_ids.HEADER_BYTES, f.lit(schema_ids.TOO_SHORT)).when(
        ~magic, f.lit(schema_ids.NO_MAGIC)
    )


def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:
    """Records to columns."""
    from pyspark.sql import functions as f

    value = f.col("value")
    return json.decode(records, wanted, text_of(value), fault_of(value))


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:
    """The JSON alone; `framed` puts the id before it."""
    return json.encode(rows, wanted)


def framed(value: Column, schema_id: int) -> Column:
    """JSON, in bytes, behind the id of its schema."""
    from pyspark.sql import functions as f

    return f.concat(f.lit(bytearray(schema_ids.header(schema_id))), value)
