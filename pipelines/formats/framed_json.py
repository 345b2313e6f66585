"""`value: json_schema`: JSON after its schema's id, as in Confluent's serializers.

JSON contains its field names, so values are read by the reader's schema regardless of the writer's. A record is refused
if it has no schema id, or if `json` refuses it.
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
    """Return the JSON of a framed value."""
    from pyspark.sql import functions as f

    return f.substring(value, schema_ids.HEADER_BYTES + 1, _REST).cast("string")


def fault_of(value: Column) -> Column:
    """Return the fault of the frame; null without a fault."""
    from pyspark.sql import functions as f

    magic = f.substring(value, 1, 1) == f.lit(bytearray(b"\0"))
    return f.when(f.octet_length(value) < schema_ids.HEADER_BYTES, f.lit(schema_ids.TOO_SHORT)).when(
        ~magic, f.lit(schema_ids.NO_MAGIC)
    )


def decode(records: DataFrame, wanted: ValueColumns) -> DataFrame:
    """Decode records to columns."""
    from pyspark.sql import functions as f

    value = f.col("value")
    return json.decode(records, wanted, text_of(value), fault_of(value))


def encode(rows: DataFrame, wanted: ValueColumns) -> Column:
    """Return the JSON without the schema id, which `framed` prepends."""
    return json.encode(rows, wanted)


def framed(value: Column, schema_id: int) -> Column:
    """Return JSON as bytes, preceded by its schema id."""
    from pyspark.sql import functions as f

    return f.concat(f.lit(bytearray(schema_ids.header(schema_id))), value)
