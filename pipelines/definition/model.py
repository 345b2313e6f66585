"""Base of all parts of a pipeline's file: the base model, names, and kinds of text. Pure.

The models are the only source of the format: `editor_schema` and `reference` are generated from them, and an unknown
field is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from headwater.pipelines.definition.secret_text import SecretText, carries_reference

_Value = TypeVar("_Value")

TOPIC_NAME_LENGTH_MAX = 249  # Kafka's limit: the folder name `topic-partition` must fit a file name

_TOPIC_NAME = re.compile(r"^[A-Za-z0-9._-]+$")
_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$")
_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_INTERVAL = re.compile(r"^\s*\d+\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Shown:
    """A field's type on the reference page and, where it differs from the model's, its default."""

    kind: str
    default: str = ""


def topic_name(name: str) -> str:
    """Check Kafka's rule for topic names.

    >>> topic_name("flights.dead_letters")
    'flights.dead_letters'
    """
    if not _TOPIC_NAME.match(name) or name in (".", ".."):
        raise ValueError(f"'{name}' is not a topic name: letters, digits, '.', '_' and '-' only")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise ValueError(f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters")
    return name


def named_topics(topics: dict[str, _Value]) -> dict[str, _Value]:
    """Check the names of topics that are keys of a mapping. Raises ValueError."""
    for name in topics:
        topic_name(name)
    return topics


def identifier(name: str) -> str:
    """Check a name of a pipeline, stage, table or expectation, which becomes a folder, a view or a header."""
    if not _IDENTIFIER.match(name):
        raise ValueError(f"'{name}' is not a name: a letter or '_' first, then letters, digits, '_' and '-'")
    return name


def interval(value: str) -> str:
    """Check an interval in Spark's notation.

    >>> interval(" 10 minutes")
    '10 minutes'
    """
    if not _INTERVAL.match(value):
        raise ValueError(f"'{value}' is not an interval such as '10 minutes', '6 hours', '2 days'")
    return value.strip()


def interval_ms(value: str) -> int:
    """Convert an `interval` to milliseconds.

    >>> interval_ms("10 minutes")
    600000
    """
    number, unit = re.fullmatch(r"(\d+)\s*([a-z]+?)s?", value.lower().strip()).groups()  # type: ignore[union-attr]
    return int(number) * _UNIT_US[unit] // 1000


def function_name(value: str) -> str:
    """Check the rule for names of Python functions and classes."""
    if not value.isidentifier():
        raise ValueError(f"'{value}' is not a name of Python")
    return value


class OneOrMany:
    """Metadata of a tuple field for which the file may give a single value: `by: carrier` for `by: [carrier]`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_as_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        many = handler(schema)
        return {"anyOf": [many["items"], many]}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | int) else value


Name: TypeAlias = Annotated[str, AfterValidator(identifier), Shown("name")]
TopicName: TypeAlias = Annotated[str, AfterValidator(topic_name), Shown("topic")]
Interval: TypeAlias = Annotated[str, AfterValidator(interval), Shown("interval")]
FunctionName: TypeAlias = Annotated[str, AfterValidator(function_name), Shown("name")]
Path: TypeAlias = Annotated[str, Field(min_length=1), Shown("path")]
Expression: TypeAlias = Annotated[str, Field(min_length=1), Shown("SQL expression")]
Column: TypeAlias = Annotated[str, Field(min_length=1), Shown("column")]
Columns: TypeAlias = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1), OneOrMany(), Shown("list of columns")
]
Scalar: TypeAlias = str | int | float | bool
Options: TypeAlias = Annotated[dict[str, Scalar], Shown("name: value")]


def kind_of(*kinds: str) -> Callable[[Any], str | None]:
    """Return the discriminator of a union whose members differ by one field: a mapping's only key among `kinds`.

    >>> kind_of("topic", "delta")({"delta": "lake/a", "partition_by": []})
    'delta'
    >>> kind_of("topic", "delta")({"topic": "a", "delta": "lake/a"}) is None
    True
    """

    def tag(value: Any) -> str | None:
        if isinstance(value, Model):
            names = {info.alias or name for name, info in type(value).model_fields.items()}
            return next((kind for kind in kinds if kind in names), None)
        found = [kind for kind in kinds if kind in value] if isinstance(value, dict) else []
        return found[0] if len(found) == 1 else None

    return tag


class Model(BaseModel):
    """Base of every part: immutable, and unknown fields are errors.

    Only a `SecretText` field may refer to a secret (`${env:NAME}`, `${file:PATH}`): all other fields appear in plans,
    errors and logs, so a reference in them is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_secret_where_it_would_be_shown(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        if _shows(field.annotation, value):
            raise ValueError("a secret cannot be used here: this field is shown in plans, errors and logs")
        return value


def _shows(annotation: Any, value: Any) -> bool:
    """Return whether a value of a non-secret field refers to a secret. Nested models are checked separately."""
    if isinstance(value, str):
        return carries_reference(value) and not _holds_secrets(annotation)
    if isinstance(value, list):
        return any(_shows(annotation, item) for item in value if isinstance(item, str))
    if isinstance(value, dict) and any(get_origin(part) is dict for part in (annotation, *get_args(annotation))):
        return any(_shows(annotation, item) for item in value.values() if isinstance(item, str))
    return False


def _holds_secrets(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, SecretText):
        return True
    return any(_holds_secrets(part) for part in get_args(annotation))


def fields_of(model: type[Model]) -> list[str]:
    """Return the names of a model's fields as written in the file."""
    return [info.alias or name for name, info in model.model_fields.items()]
