"""`value: avro` and `value: protobuf` as Spark frames; `framed_tasks` contains the workers' code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headwater.pipelines import columns
from headwater.pipelines.formats.fitting import fitted
from headwater.pipelines.formats.origin import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from headwater.pipelines.formats.framed_tasks import Reader, Writer


def spark_type(kind: Any) -> DataType:
    """Convert Arrow's type to Spark's."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def value_columns(reader: Reader) -> StructType:
    """Return the columns of values: a record's fields, or one column named after the part. Raises ValueError."""
    from pyspark.sql.types import StructType

    from headwater.pipelines.formats.framed_tasks import new_decoder

    found = spark_type(new_decoder(reader, None).type)
    return found if isinstance(found, StructType) else StructType().add(reader.part, found)


def decode(records: DataFrame, reader: Reader, schema: StructType) -> DataFrame:
    """Decode records to the value's columns, ORIGIN and ERROR."""
    from headwater.pipelines.formats.framed_tasks import decoded

    names = schema.fieldNames()
    return records.select(*origin()).mapInArrow(partial(decoded, reader, names), _whole(list(schema.fields), records))


def undecoded(records: DataFrame, schema: StructType) -> DataFrame:
    """Return the columns of decoded records without values: stage tests provide rows, and need no registry."""
    from pyspark.sql import functions as f

    values = [f.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    return records.select(*values, *origin(), f.lit(None).cast("string").alias(columns.ERROR))


def decode_events(
    records: DataFrame, readers: Mapping[str, Reader], schemas: Mapping[str, StructType], only: str | None, kind: Any
) -> DataFrame:
    """Decode records of several types, as in `events`. `kind` is the column of a header with the type, or None."""
    from pyspark.sql.types import StringType, StructField

    from headwater.pipelines.formats.framed_tasks import decoded_events

    taken = [*origin(), *([] if kind is None else [kind.alias(columns.EVENT)])]
    if only is not None:
        fields = list(schemas[only].fields)
    else:
        structs = [StructField(name, schema) for name, schema in schemas.items()]
        fields = [StructField(columns.EVENT, StringType()), *structs]
    return records.select(*taken).mapInArrow(partial(decoded_events, dict(readers), only), _whole(fields, records))


def with_key(decoded: DataFrame, reader: Reader) -> DataFrame:
    """Decoded records with the column `key`."""
    from pyspark.sql.types import StructType

    from headwater.pipelines.formats.framed_tasks import new_decoder, with_key

    schema = StructType(list(decoded.schema.fields)).add("key", spark_type(new_decoder(reader, None).type))
    return decoded.mapInArrow(partial(with_key, reader), schema)


def encode(value: Column, writer: Writer, schema_id: int) -> Column:
    """Encode a column of the writer's row type as framed values."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined] # its stub does not know it
    from pyspark.sql.types import BinaryType

    from headwater.pipelines.formats.framed_tasks import Encode

    made: Column = arrow_udf(Encode(writer, schema_id).run, BinaryType())(value)
    return made


def row_of(rows: DataFrame, writer: Writer) -> Column:
    """Convert all data columns of the rows to the writer's row type. Raises ValueError."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    wanted = spark_type(row_type(writer))
    if not isinstance(wanted, StructType):
        return fitted(f.col(writer.part), _column_type(rows, writer.part), wanted, writer.part)
    names = [name for name in rows.columns if name not in columns.RESERVED]
    have = StructType([rows.schema[name] for name in names])
    return fitted(f.struct(*(f.col(f"`{name}`") for name in names)), have, wanted, "", is_present=True)


def row_type(writer: Writer) -> Any:
    """Return the Arrow type of a writer's rows. Raises ValueError."""
    if writer.format == "avro":
        from headwater.pipelines.formats.avro import encoder

        return encoder.row_type(writer.schema)
    from headwater.pipelines.formats.protobuf import encoder as protobuf

    return protobuf.row_type(writer.schema, writer.message)


def _column_type(rows: DataFrame, name: str) -> DataType:
    if name not in rows.columns:
        raise ValueError(f"the rows have no column {name}")
    return rows.schema[name].dataType


def _whole(fields: list[Any], records: DataFrame) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    names = ("topic", "partition", "offset", "timestamp", "key", "value")
    own = [StructField(alias, records.schema[name].dataType) for name, alias in zip(names, columns.ORIGIN, strict=True)]
    return StructType([*fields, *own, StructField(columns.ERROR, StringType())])
