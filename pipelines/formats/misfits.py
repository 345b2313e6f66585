"""Finds the field of a refused text (JSON, CSV) that does not fit its schema.

Spark's parsers report that a text does not fit, but not the reason; they still parse the fields that fit. A field that
is present in the text but was not parsed is therefore the field that does not fit. The expressions are evaluated for
refused texts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headwater.pipelines.columns import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

CORRUPT: Final = "_corrupt"  # the field of parsed texts that Spark fills where a text does not fit
_TEXTS_DDL: Final = "MAP<STRING, STRING>"


def json_texts(text: Column, options: Mapping[str, str]) -> Column:
    """Return the fields of a JSON object by name, each as text; null for other values."""
    from pyspark.sql import functions as f

    return f.from_json(text, _TEXTS_DDL, _permissive(options))


def json_misfit(text: Column, texts: Column, parsed: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """Return why a JSON text does not fit, such as "the field id is no BIGINT"; the first such field is named.

    `texts` is the result of `json_texts`; `parsed` is Spark's result.
    """
    from pyspark.sql import functions as f

    return f.when(texts.isNull(), f.lit("it is no JSON object")).otherwise(
        f.coalesce(*_json_fields(text, texts, parsed, schema, options, ""), f.lit("a field has another type"))
    )


def _json_fields(
    text: Column, texts: Column, parsed: Column, schema: StructType, options: Mapping[str, str], prefix: str
) -> list[Column]:
    """Return the fault of each field, or null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    found = []
    for field in schema.fields:
        kind, path = field.dataType, f"{prefix}{field.name}"
        own, value = f.try_element_at(texts, f.lit(field.name)), parsed.getField(field.name)
        said = f.lit(f"the field {path} is no {shown(kind)}")
        if isinstance(kind, ArrayType | MapType):
            # Spark reads the fitting elements, so the field is parsed separately.
            alone = StructType([field]).add(CORRUPT, StringType())
            is_bad = f.from_json(text, alone, _permissive(options)).getField(CORRUPT).isNotNull()
        else:
            is_bad = own.isNotNull() & value.isNull()
        found.append(f.when(is_bad, said))
        if isinstance(kind, StructType):
            found += _json_fields(own, json_texts(own, options), value, kind, options, f"{path}.")
    return found


def csv_texts(text: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """Return the fields of a CSV line by name, each as text, and CORRUPT if their number is wrong."""
    from pyspark.sql import functions as f

    ddl = ", ".join(f"{quoted(name)} STRING" for name in [*schema.fieldNames(), CORRUPT])
    return f.from_csv(text, ddl, _permissive(options))


def csv_misfit(texts: Column, parsed: Column, schema: StructType) -> Column:
    """Return why a CSV line does not fit, such as "the field id is no BIGINT"; the first such field is named.

    `texts` is the result of `csv_texts`, null for an empty line; `parsed` is Spark's result.
    """
    from pyspark.sql import functions as f

    other = texts.isNull() | texts.getField(CORRUPT).isNotNull()
    error = f.when(other, f.lit(f"it has more or fewer fields than {len(schema.fields)}"))
    for field in schema.fields:
        is_bad = texts.getField(field.name).isNotNull() & parsed.getField(field.name).isNull()
        error = error.when(is_bad, f.lit(f"the field {field.name} is no {shown(field.dataType)}"))
    return error.otherwise(f.lit("a field has another type"))


def shown(kind: DataType) -> str:
    """Return a type's SQL name, without the fields of a struct.

    >>> from pyspark.sql.types import ArrayType, LongType, StructType
    >>> shown(ArrayType(LongType())), shown(StructType().add("a", LongType()))
    ('ARRAY<BIGINT>', 'STRUCT')
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return f"ARRAY<{shown(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{shown(kind.keyType)}, {shown(kind.valueType)}>"
    return "STRUCT" if isinstance(kind, StructType) else kind.simpleString().upper()


def _permissive(options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
