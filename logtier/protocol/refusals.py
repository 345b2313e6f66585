"""The response that says an error to a whole request, and nothing else (`getErrorResponse` of Kafka's requests).

Newer responses have a place for it at their top. The others tell it of each thing that was asked for, as Kafka does:
they have arrays that mirror those of the request. That is read off the schemas: no API needs code of its own for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from types import NoneType
from typing import Any, Final, get_args

from logtier.protocol.errors import ErrorCode
from logtier.protocol.messages import response_class
from logtier.protocol.schema_types import inner_type

_METADATA_KEY: Final = 3
_ALTER_REPLICA_LOG_DIRS_KEY: Final = 34

#: What a field of a response is called in the request, where it is called otherwise.
_IN_REQUEST: Final = {"partition_index": "partition", "topic_name": "name", "user": "name"}
#: What tells things apart although the schema has a default for it, and what is an array and does.
_IDENTITIES: Final = ("name", "entity")


@dataclass(frozen=True, slots=True)
class _Said:
    """The error."""

    code: ErrorCode
    message: str | None


def refusal(api_key: int, version: int, code: ErrorCode, message: str, request: Any = None) -> dict[str, Any] | None:
    """Make the tree of a response that says an error and nothing else.

    Args:
        request: What was asked; without it only the top of the response can tell.

    Returns:
        None where there is no place for the error: the response has none at its top, and nothing was asked for of which
        it could be told (a list of all topics), or the client expects no response (acks=0).
    """
    if getattr(request, "acks", None) == 0:
        return None
    if api_key == _ALTER_REPLICA_LOG_DIRS_KEY and request is not None:
        # The only response that is not built like its request, which has folders around the topics.
        request = _Topics(tuple(chain.from_iterable(folder.topics for folder in request.dirs)))
    schema = response_class(api_key, version)
    is_told_at_top = any(_is_error(field) for field in fields(schema))
    # Clients look for the error of a topic in Metadata's, whatever stands at the top.
    tree = _tree(schema, request, _Said(code, message or None), tells_each=api_key == _METADATA_KEY)
    return tree if is_told_at_top or any(tree[name] for name in _told_of_each(schema)) else None


@dataclass(frozen=True, slots=True)
class _Topics:
    topics: Sequence[Any]


def _tree(schema: Any, asked: Any, said: _Said, *, tells_each: bool = False) -> dict[str, Any]:
    """What a part of the response says of what was `asked` for: an entity of the request, a name or number in it."""
    tree: dict[str, Any] = {}
    tells_each = tells_each or not any(_is_error(field) for field in fields(schema))
    nested = _told_of_each(schema) if tells_each else ()
    scalar = asked if isinstance(asked, str | int) else None
    for field in fields(schema):
        name = field.name
        if _is_error(field):
            tree[name] = said.code
        elif name == "error_message":
            tree[name] = said.message
        elif name in nested:
            item, _ = inner_type(field.type)
            tree[name] = [_tree(item, each, said) for each in _elements(asked, name)]
        elif name == "throttle_time" or (field.default is not MISSING and name not in _IDENTITIES):
            continue
        elif scalar is not None and _takes(field, scalar):
            # The first field that can be: what it is about stands before what is said of it.
            tree[name], scalar = scalar, None
        else:
            tree[name] = _copied(field, asked)
    return tree


@cache
def _told_of_each(schema: Any) -> tuple[str, ...]:
    """The arrays of an entity whose elements have errors, or elements with errors in them."""
    return tuple(field.name for field in fields(schema) if _is_array_with_errors(field))


def _is_array_with_errors(field: Any) -> bool:
    kind, is_array = inner_type(field.type)
    if not is_array or not is_dataclass(kind):
        return False
    return any(_is_error(each) or _is_array_with_errors(each) for each in fields(kind))


def _is_error(field: Any) -> bool:
    return bool(field.metadata.get("kafka_type") == "error_code")


def _elements(asked: Any, name: str) -> Iterator[Any]:
    """The things that were asked for: of the array with the same name, or of the arrays there are."""
    same = getattr(asked, name, None)
    if isinstance(same, list | tuple):
        yield from same
    elif is_dataclass(asked):
        for field in fields(asked):
            array = getattr(asked, field.name)
            if isinstance(array, list | tuple):
                yield from array


def _takes(field: Any, scalar: str | int) -> bool:
    is_text = bool(field.metadata.get("kafka_type") == "string")
    return is_text == isinstance(scalar, str)


def _copied(field: Any, asked: Any) -> Any:
    """What the request has in this place, or what says nothing."""
    kind, is_array = inner_type(field.type)
    if is_array and field.name not in _IDENTITIES:
        return _blank(field)
    value = getattr(asked, field.name, None)
    if value is None and field.name in _IN_REQUEST:
        value = getattr(asked, _IN_REQUEST[field.name], None)
    if value is None:
        # A topic that was asked for by its id: Kafka says the empty name.
        return "" if field.name == "name" else _blank(field)
    if is_array:
        return [{each.name: getattr(item, each.name) for each in fields(kind)} for item in value]
    return value


def _blank(field: Any) -> Any:
    """What a field holds that says nothing."""
    if NoneType in get_args(field.type):
        return None
    kind, is_array = inner_type(field.type)
    if is_array:
        return ()
    if is_dataclass(kind):
        return {each.name: _blank(each) for each in fields(kind) if each.default is MISSING}
    return _BLANKS.get(field.metadata["kafka_type"], 0)


_BLANKS: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
}
