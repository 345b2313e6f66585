"""The field types of kio's classes."""

from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

#: Sizes of field types with a fixed size, in bytes.
FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def inner_type(annotation: Any) -> tuple[Any, bool]:
    """Return the type inside `X | None` and `tuple[X, ...]`, and whether there was a tuple.

    >>> inner_type(tuple[int, ...] | None), inner_type(str | None)
    ((<class 'int'>, True), (<class 'str'>, False))
    """
    is_array = False
    while True:
        origin = get_origin(annotation)
        if origin in (UnionType, Union):
            (annotation,) = (member for member in get_args(annotation) if member is not NoneType)
        elif origin is tuple:
            annotation, is_array = get_args(annotation)[0], True
        else:
            return annotation, is_array
