"""Checks whether a JSON default is a valid value of an Avro type."""

from __future__ import annotations

from typing import Any, Final

from headwater.pipelines.schemas.avro.types import (
    ABSENT,
    ArrayType,
    AvroType,
    EnumType,
    Field,
    FixedType,
    MapType,
    PrimitiveType,
    RecordType,
    UnionType,
)
from headwater.pipelines.schemas.errors import InvalidSchemaError

STEPS_MAX: Final = 1_000_000
"""Steps for all defaults of one schema: thirty times the fields that fit into a mebibyte."""

_WHOLE: Final = {"int": 2**31, "long": 2**63}


class DefaultCheck:
    """Checks defaults against their types, within a step limit for all defaults of one schema.

    A default may be as large as its type, and both may be used many times; the product of both sizes needs a limit.
    """

    def __init__(self, steps_max: int = STEPS_MAX) -> None:
        self._steps_left = steps_max

    def fits(self, value: Any, avro_type: AvroType) -> bool:
        """Return whether `value` is a valid default for a field of this type; a union accepts the values of any branch.

        Raises:
            InvalidSchemaError: the limit of steps is reached.

        >>> check = DefaultCheck()
        >>> check.fits(7, PrimitiveType("int")), check.fits(2**31, PrimitiveType("int"))
        (True, False)
        """
        self._steps_left -= 1
        if self._steps_left < 0:
            raise InvalidSchemaError(f"checking the defaults takes more than {STEPS_MAX} steps")
        match avro_type:
            case PrimitiveType(kind):
                return _fits_primitive(value, kind)
            case FixedType(size=size):
                return isinstance(value, str) and len(value) == size and _is_binary(value)
            case EnumType():
                return isinstance(value, str) and value in avro_type.symbol_set
            case ArrayType(items):
                return isinstance(value, list) and all(self.fits(item, items) for item in value)
            case MapType(values):
                return isinstance(value, dict) and all(self.fits(item, values) for item in value.values())
            case UnionType(branches):
                return any(self.fits(value, branch) for branch in branches)
            case RecordType():
                return isinstance(value, dict) and all(self._fits_field(value, field) for field in avro_type.fields)

    def _fits_field(self, value: dict[str, Any], field: Field) -> bool:
        if field.name in value:
            return self.fits(value[field.name], field.type)
        self._steps_left -= 1
        return field.default is not ABSENT


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
