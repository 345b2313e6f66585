"""Options of files, messages and fields: standard options set fields of descriptors, others remain uninterpreted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from headwater.pipelines.schemas.errors import InvalidSchemaError
from headwater.pipelines.schemas.protobuf import literals

_WHOLE: Final = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an option as written: a name, a number, a text, or a message in braces."""

    name: str | None = None
    whole: int | None = None
    floating: float | None = None
    text: bytes | None = None
    aggregate: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its value, and the parts of its name, each with a flag for parentheses."""

    parts: tuple[tuple[str, bool], ...]
    value: Value
    place: str


def apply(option: Option, options: Any) -> None:
    """Set an option in an options message.

    Raises:
        InvalidSchemaError: the standard option does not exist, or does not accept the value.
    """
    if any(is_extension for _, is_extension in option.parts):
        _uninterpreted(option, options)
        return
    message = options
    for index, (name, _) in enumerate(option.parts):
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None or name == "uninterpreted_option":
            raise InvalidSchemaError(f"{option.place}: there is no option {name!r}")
        if index < len(option.parts) - 1:
            if field.message_type is None or field.is_repeated:
                raise InvalidSchemaError(f"{option.place}: the option {name!r} has no parts")
            message = getattr(message, name)
            continue
        try:
            _set(message, field, option.value)
        except (ValueError, TypeError, KeyError, text_format.ParseError) as error:
            raise InvalidSchemaError(f"{option.place}: the option {name!r} cannot have this value: {error}") from None


def _set(message: Any, field: Any, value: Value) -> None:
    if field.message_type is not None:
        if value.aggregate is None:
            raise ValueError("it is a message")
        target = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
        text_format.Merge(value.aggregate, target)
        return
    scalar = _scalar(field, value)
    if field.is_repeated:
        getattr(message, field.name).append(scalar)
    else:
        setattr(message, field.name, scalar)


def _scalar(field: Any, value: Value) -> Any:
    if field.enum_type is not None:
        if value.name is None:
            raise ValueError("it is the name of an enum's value")
        return field.enum_type.values_by_name[value.name].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if value.name not in ("true", "false"):
            raise ValueError("it is true or false")
        return value.name == "true"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if value.text is None:
            raise ValueError("it is a text")
        return value.text if field.type == FieldDescriptor.TYPE_BYTES else value.text.decode()
    if field.cpp_type in _WHOLE:
        if value.whole is None:
            raise ValueError("it is a whole number")
        return value.whole
    if value.floating is None and value.whole is None:
        raise ValueError("it is a number")
    return value.floating if value.floating is not None else value.whole


def _uninterpreted(option: Option, options: Any) -> None:
    target = options.uninterpreted_option.add()
    for name, is_extension in option.parts:
        target.name.add(name_part=name, is_extension=is_extension)
    value = option.value
    if value.name is not None:
        target.identifier_value = value.name
    elif value.text is not None:
        target.string_value = value.text
    elif value.aggregate is not None:
        target.aggregate_value = value.aggregate
    elif value.floating is not None:
        target.double_value = value.floating
    elif value.whole is not None and value.whole < 0:
        target.negative_int_value = value.whole
    elif value.whole is not None:
        target.positive_int_value = value.whole


def printed(options: Any) -> list[str]:
    """Format every option of a message as `name = value`: standard options by number, then the others."""
    found = []
    for field, value in options.ListFields():
        if field.name == "uninterpreted_option":
            continue
        if field.is_extension:
            # An option of another file that is registered in this process by chance.
            found.append(f"({field.full_name}) = {_written(field, value)}")
        elif field.is_repeated:
            found += [f"{field.name} = {_written(field, item)}" for item in value]
        elif field.message_type is not None:
            found += [f"{field.name}.{inner}" for inner in printed(value)]
        else:
            found.append(f"{field.name} = {_written(field, value)}")
    for option in getattr(options, "uninterpreted_option", ()):
        name = ".".join(f"({part.name_part})" if part.is_extension else part.name_part for part in option.name)
        found.append(f"{name} = {_uninterpreted_value(option)}")
    return found


def _written(field: Any, value: Any) -> str:
    if field.message_type is not None:
        inner = text_format.MessageToString(value, as_one_line=True).strip()
        return f"{{ {inner} }}"
    if field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        return str(found.name if found is not None else value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | bytes):
        return literals.quote(value if isinstance(value, bytes) else value.encode())
    return repr(value)


def _uninterpreted_value(option: Any) -> str:
    if option.HasField("identifier_value"):
        return str(option.identifier_value)
    if option.HasField("string_value"):
        return literals.quote(option.string_value)
    if option.HasField("aggregate_value"):
        return f"{{ {option.aggregate_value} }}"
    for name in ("positive_int_value", "negative_int_value", "double_value"):
        if option.HasField(name):
            return repr(getattr(option, name))
    return '""'
