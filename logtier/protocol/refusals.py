"""The response that says an error to a whole request, and nothing else (`getErrorResponse` of Kafka's requests).

Newer responses have a place for it at their top. The others tell it of each thing that was asked for, as Kafka does:
they have arrays that mirror those of the request. That is read off the schemas: no API needs code of its own for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from types import NoneType
from typing import Any, Final, cast, get_args

from headwater.logtier.protocol.errors import ErrorCode
from headwater.logtier.protocol.messages import response_class
from headwater.logtier.protocol.schema_types import inner_type

_PRODUCE_KEY: Final = 0
_FETCH_KEY: Final = 1
_METADATA_KEY: Final = 3
_ALTER_REPLICA_LOG_DIRS_KEY: Final = 34
_DESCRIBE_LOG_DIRS_KEY: Final = 35

#: Responses without a place at the top in which nothing is told of each thing either. A producer that is told gives its
#: records up, some of which may be stored; where it loses the connection it tries again, and they are known by their
#: numbers. librdkafka's consumer asks again at once, without a pause. Log folders are not what was asked for.
_NOT_MIRRORED: Final = (_PRODUCE_KEY, _FETCH_KEY, _DESCRIBE_LOG_DIRS_KEY)

#: What a field of a response is called in the request, where it is called otherwise.
_IN_REQUEST: Final = {"partition_index": "partition", "topic_name": "name", "user": "name"}
#: What says what a thing is although the schema has a default for it.
_NAME: Final = "name"
#: The array that says what a thing is, of a client quota.
_ENTITY: Final = "entity"


@dataclass(frozen=True, slots=True)
class _Said:
    """The error."""

    code: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class _Topics:
    """A request with the topics that another one has in its folders."""

    topics: Sequence[Any]


def refusal(api_key: int, version: int, code: ErrorCode, message: str, request: Any = None) -> dict[str, Any] | None:
    """Make the tree of a response that says an error and nothing else.

    Args:
        request: What was asked; without it only the top of the response can tell.

    Returns:
        None where there is no place for the error: the response has none at its top, and nothing was asked for of which
        it could be told (a list of all topics), or should be (records: their clients do better without an answer).
    """
    if api_key in _NOT_MIRRORED:
        request = None
    elif api_key == _ALTER_REPLICA_LOG_DIRS_KEY and request is not None:
        # The only response that is not built like its request, which has folders around the topics.
        request = _Topics(tuple(chain.from_iterable(folder.topics for folder in request.dirs)))
    schema = response_class(api_key, version)
    # Clients look for the error of a topic in Metadata's, whatever stands at the top.
    tells_each = api_key == _METADATA_KEY or not _has_error(schema)
    tree = _tree(schema, request, _Said(code, message or None), tells_each=tells_each)
    return tree if _is_told(tree) else None


def _tree(schema: Any, asked: Any, said: _Said, *, tells_each: bool) -> dict[str, Any]:
    """What a part of the response says of what was `asked` for: an entity of the request, a name or number in it."""
    tree: dict[str, Any] = {}
    scalar = asked if isinstance(asked, str | int) else None
    for field in fields(schema):
        name = field.name
        if _is_error(field):
            tree[name] = said.code
        elif name == "error_message":
            tree[name] = said.message
        elif tells_each and _is_array_with_errors(field):
            item, _ = inner_type(field.type)
            each_tells = not _has_error(item)
            tree[name] = [_tree(item, each, said, tells_each=each_tells) for each in _elements(asked, name)]
        elif name == "throttle_time" or (field.default is not MISSING and name != _NAME):
            continue
        elif scalar is not None and _takes(field, scalar):
            # The first field that can be: what it is about stands before what is said of it.
            tree[name], scalar = scalar, None
        else:
            tree[name] = _copied(field, asked)
    return tree


def _is_told(tree: Mapping[str, Any]) -> bool:
    """Whether the error stands anywhere: of a topic without partitions, for one, nothing is told."""
    return any(
        isinstance(value, ErrorCode) or (isinstance(value, list) and any(map(_is_told, value)))
        for value in tree.values()
    )


@cache
def _has_error(schema: Any) -> bool:
    """Whether an entity has an error of its own."""
    return any(map(_is_error, fields(schema)))


def _is_array_with_errors(field: Any) -> bool:
    kind, is_array = inner_type(field.type)
    if not is_array or not is_dataclass(kind):
        return False
    return _has_error(cast("Any", kind)) or any(map(_is_array_with_errors, fields(kind)))


def _is_error(field: Any) -> bool:
    return bool(field.metadata.get("kafka_type") == "error_code")


def _elements(asked: Any, name: str) -> Iterator[Any]:
    """The things that were asked for: of the array with the same name, or of the arrays there are.

    There is one in all requests but that of SCRAM credentials, which are to be removed or to be set.
    """
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
    if is_array and field.name != _ENTITY:
        return _blank(field)
    value = getattr(asked, field.name, None)
    if value is None and field.name in _IN_REQUEST:
        value = getattr(asked, _IN_REQUEST[field.name], None)
    if value is None:
        # A topic that was asked for by its id: Kafka says the empty name.
        return "" if field.name == _NAME else _blank(field)
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
    # No offset, no node, no time: 0 would be one.
    return _BLANKS.get(field.metadata["kafka_type"], -1)


_BLANKS: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "uuid": None,
    "datetime_i64": 0,
}
