"""Fits a stage's columns to a schema: fields by name, numbers to wider types, without narrowing or loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


def fitted(column: Column, have: DataType, want: DataType, path: str, *, is_present: bool = False) -> Column:
    """Convert a column to another type. `is_present` means that the column is never null.

    Raises ValueError with the path of a missing or unknown field, or of a lossy conversion.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    if have == want:
        return column
    if isinstance(have, StructType) and isinstance(want, StructType):
        made = f.struct(*_fields(column, have, want, path))
        return made if is_present else f.when(column.isNotNull(), made)
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        inner, outer = have.elementType, want.elementType
        fitted(f.lit(None), inner, outer, f"{path}[]")  # its mistakes are told here, not in a lambda
        return f.transform(column, lambda item: fitted(item, inner, outer, f"{path}[]"))
    if isinstance(have, MapType) and isinstance(want, MapType) and have.keyType == want.keyType:
        inner, outer = have.valueType, want.valueType
        fitted(f.lit(None), inner, outer, f"{path}.*")
        return f.transform_values(column, lambda _, value: fitted(value, inner, outer, f"{path}.*"))
    if isinstance(have, NullType) or _is_wider(have, want):
        return column.cast(want)
    raise ValueError(
        f"column {path} is {have.simpleString()}, and the topic's schema has {want.simpleString()} there: CAST it"
    )


def _fields(column: Column, have: Any, want: Any, path: str) -> list[Column]:
    from pyspark.sql import functions as f

    places = {name.lower(): name for name in have.fieldNames()}
    prefix = f"{path}." if path else ""
    found = []
    for field in want.fields:
        name = places.pop(field.name.lower(), None)
        where = f"{prefix}{field.name}"
        if name is not None:
            part = fitted(column.getField(name), have[name].dataType, field.dataType, where)
        elif field.nullable:
            part = f.lit(None).cast(field.dataType)
        else:
            raise ValueError(f"the rows have no column {where}, which the topic's schema needs")
        found.append(part.alias(field.name))
    if places:
        names = ", ".join(f"{prefix}{name}" for name in places.values())
        raise ValueError(f"the topic's schema has no {names}: add it there, or leave it out of the rows")
    return found


def _is_wider(have: DataType, want: DataType) -> bool:
    """Return whether every value of type `have` is also a value of `want`."""
    from pyspark.sql.types import DecimalType

    own, other = have.simpleString(), want.simpleString()
    if own in _WHOLE:
        if other in _WHOLE:
            return _WHOLE.index(own) <= _WHOLE.index(other)
        if isinstance(want, DecimalType):
            return want.precision - want.scale >= _DIGITS[own]
        return other in ("float", "double")
    if isinstance(have, DecimalType) and isinstance(want, DecimalType):
        return have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale
    if isinstance(have, DecimalType):
        return other == "double"
    return (own, other) in (("float", "double"), ("string", "binary"))
