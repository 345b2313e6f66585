"""Whether a default in JSON is a value of an Avro type."""

from __future__ import annotations

from typing import Any, Final

from pipelines.schemas.avro.types import (
    ABSENT,
    ArrayType,
    AvroType,
    EnumType,
    FixedType,
    MapType,
    PrimitiveType,
    RecordType,
    UnionType,
)

_WHOLE: Final = {"int": 2**31, "long": 2**63}


def fits(value: Any, avro_type: AvroType) -> bool:
    """Tell whether `value` can be the default of a field of this type; a union takes what any of its branches takes.

    >>> fits(7, PrimitiveType("int")), fits(2**31, PrimitiveType("int")), fits(True, PrimitiveType("int"))
    (True, False, False)
    """
    match avro_type:
        case PrimitiveType(kind):
            return _fits_primitive(value, kind)
        case FixedType(size=size):
            return _is_binary(value) and len(value) == size
        case EnumType(symbols=symbols):
            return value in symbols if isinstance(value, str) else False
        case ArrayType(items):
            return isinstance(value, list) and all(fits(item, items) for item in value)
        case MapType(values):
            return isinstance(value, dict) and all(fits(item, values) for item in value.values())
        case UnionType(branches):
            return any(fits(value, branch) for branch in branches)
        case RecordType(fields=fields):
            return isinstance(value, dict) and all(
                fits(value[field.name], field.type) if field.name in value else field.default is not ABSENT
                for field in fields
            )


def _fits_primitive(value: Any, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            return isinstance(value, int) and not isinstance(value, bool) and -_WHOLE[kind] <= value < _WHOLE[kind]
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bytes":
            return _is_binary(value)
        case _:
            return isinstance(value, str)


def _is_binary(value: Any) -> bool:
    # Bytes in JSON are the code points 0 to 255.
    return isinstance(value, str) and all(ord(character) < 256 for character in value)
