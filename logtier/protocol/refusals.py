"""Builds the response that reports one error for a whole request (`getErrorResponse` of Kafka's requests).

Newer responses have a top-level error. The others report it for each requested element, as Kafka does: their arrays
mirror those of the request. The schemas determine the shape, so that no API needs its own code.
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

#: Responses without a top-level error that do not report it per element either. A producer with an error drops its
#: records, some of which may be stored; after a lost connection it retries, and the sequence numbers reveal duplicates.
#: librdkafka's consumer would retry without a pause. The elements of DescribeLogDirs are not those of the request.
_NOT_MIRRORED: Final = (_PRODUCE_KEY, _FETCH_KEY, _DESCRIBE_LOG_DIRS_KEY)

#: Names of response fields that differ in the request.
_IN_REQUEST: Final = {"partition_index": "partition", "topic_name": "name", "user": "name"}
#: An identifying field, although the schema has a default for it.
_NAME: Final = "name"
#: The identifying array of a client quota.
_ENTITY: Final = "entity"


@dataclass(frozen=True, slots=True)
class _Said:
    """The error."""

    code: ErrorCode
    message: str | None


@dataclass(frozen=True, slots=True)
class _Topics:
    """A request with the topics of all folders of another one."""

    topics: Sequence[Any]


def refusal(api_key: int, version: int, code: ErrorCode, message: str, request: Any = None) -> dict[str, Any] | None:
    """Build the tree of a response that reports an error and nothing else.

    Args:
        request: The request; without it only a top-level error is possible.

    Returns:
        None if the response has no place for the error: no top-level error, and no requested elements to report it for
            (a list of all topics), or elements that should not have it (records: their clients behave better without a
            response).
    """
    if api_key in _NOT_MIRRORED:
        request = None
    elif api_key == _ALTER_REPLICA_LOG_DIRS_KEY and request is not None:
        # The only response with another structure than its request, whose topics are within folders.
        request = _Topics(tuple(chain.from_iterable(folder.topics for folder in request.dirs)))
    schema = response_class(api_key, version)
    # Clients of Metadata look for the error of each topic, regardless of a top-level error.
    tells_each = api_key == _METADATA_KEY or not _has_error(schema)
    tree = _tree(schema, request, _Said(code, message or None), tells_each=tells_each)
    return tree if _is_told(tree) else None


def _tree(schema: Any, asked: Any, said: _Said, *, tells_each: bool) -> dict[str, Any]:
    """Build a part of the response for `asked`: an entity of the request, or a name or number in it."""
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
            # The first matching field: identifying fields precede the others.
            tree[name], scalar = scalar, None
        else:
            tree[name] = _copied(field, asked)
    return tree


def _is_told(tree: Mapping[str, Any]) -> bool:
    """Whether the error is reported anywhere: a topic without partitions, for example, has no place for it."""
    return any(
        isinstance(value, ErrorCode) or (isinstance(value, list) and any(map(_is_told, value)))
        for value in tree.values()
    )


@cache
def _has_error(schema: Any) -> bool:
    """Whether an entity has an error field."""
    return any(map(_is_error, fields(schema)))


def _is_array_with_errors(field: Any) -> bool:
    kind, is_array = inner_type(field.type)
    if not is_array or not is_dataclass(kind):
        return False
    return _has_error(cast("Any", kind)) or any(map(_is_array_with_errors, fields(kind)))


def _is_error(field: Any) -> bool:
    return bool(field.metadata.get("kafka_type") == "error_code")


def _elements(asked: Any, name: str) -> Iterator[Any]:
    """Yield the requested elements: those of the array with the same name, or those of all arrays.

    Every request has one array, except that for SCRAM credentials, with deletions and upsertions.
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
    """Return the value of the request's field, or a blank value."""
    kind, is_array = inner_type(field.type)
    if is_array and field.name != _ENTITY:
        return _blank(field)
    value = getattr(asked, field.name, None)
    if value is None and field.name in _IN_REQUEST:
        value = getattr(asked, _IN_REQUEST[field.name], None)
    if value is None:
        # A topic requested by id: Kafka responds with an empty name.
        return "" if field.name == _NAME else _blank(field)
    if is_array:
        return [{each.name: getattr(item, each.name) for each in fields(kind)} for item in value]
    return value


def _blank(field: Any) -> Any:
    """Return the blank value of a field."""
    if NoneType in get_args(field.type):
        return None
    kind, is_array = inner_type(field.type)
    if is_array:
        return ()
    if is_dataclass(kind):
        return {each.name: _blank(each) for each in fields(kind) if each.default is MISSING}
    # -1: 0 would be a valid offset, node or time.
    return _BLANKS.get(field.metadata["kafka_type"], -1)


_BLANKS: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "uuid": None,
    "datetime_i64": 0,
}
