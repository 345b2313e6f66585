"""Kafka messages by (API key, version): decoding of requests, encoding of responses.

kio has a class for every message at every version; importing all of them takes almost a second, so each is imported on
first use. Handlers receive a request as kio's entity and return a tree of dicts and lists with the field names of the
newest version; `encode_response` converts it to the requested version. Fields that a version does not have are dropped,
so that each handler is written once.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple, cast

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError

from headwater.logtier.protocol.errors import ErrorCode, ProtocolViolationError
from headwater.logtier.protocol.produce_request import read_produce_request
from headwater.logtier.protocol.request_counts import check_counts, elements_max
from headwater.logtier.protocol.schema_types import inner_type
from headwater.logtier.protocol.unknown_tags import without_unknown_tags
from headwater.logtier.protocol.wire import skip_tagged_fields

PRODUCE_KEY = 0
API_VERSIONS_KEY = 18

_HEADER = struct.Struct(">hhih")
_RESPONSE_V0 = struct.Struct(">ii")
_RESPONSE_V1 = struct.Struct(">iiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class RequestHeader(NamedTuple):
    """The header of every request (Kafka protocol guide, "Headers").

    Attributes:
        body_offset: Position of the request body in the frame, in bytes.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def api_name(api_key: int) -> str:
    """Name an API for a log line.

    >>> api_name(3), api_name(999)
    ('metadata', 'api key 999')
    """
    return api_key_map.get(api_key, f"api key {api_key}")


def milliseconds(duration: timedelta) -> int:
    """Convert a duration of a request to whole milliseconds.

    >>> milliseconds(timedelta(seconds=1.5))
    1500
    """
    return duration // _MILLISECOND


def to_timedelta(milliseconds: int) -> timedelta:
    """Convert milliseconds to a duration of a message."""
    return timedelta(milliseconds=milliseconds)


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has tagged fields and compact lengths (KIP-482)."""
    return bool(_request_class(api_key, version).__flexible__)


def read_request_header(frame: bytes | memoryview) -> RequestHeader:
    """Decode the header of a request frame (without its length prefix).

    Raises:
        ProtocolViolationError: The header is incomplete or invalid.
    """
    try:
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolViolationError(f"a request of {len(frame)} bytes is too short for a header") from None
    position = _HEADER.size + length if length > 0 else _HEADER.size
    if position > len(frame):
        raise ProtocolViolationError(f"the client id claims {length} bytes in a request of {len(frame)}")
    try:
        client_id = None if length < 0 else str(frame[_HEADER.size : position], "utf-8")
    except UnicodeDecodeError:
        raise ProtocolViolationError("the client id is not UTF-8") from None
    return tuple.__new__(RequestHeader, (api_key, api_version, correlation_id, client_id, position))


def read_request(header: RequestHeader, frame: bytes | memoryview) -> Any:
    """Decode a request body as kio's entity of its version; a Produce request refers to `frame` by views.

    Raises:
        ProtocolViolationError: The bytes are not a valid request.
    """
    position = header.body_offset
    if header.api_key == PRODUCE_KEY:
        return read_produce_request(memoryview(frame), position, header.api_version)
    name = api_name(header.api_key)
    # kio reads from immutable bytes only.
    frame = bytes(frame)
    reader, flexible = _request_reader(header.api_key, header.api_version)
    try:
        if flexible:
            position = skip_tagged_fields(frame, position)
        request_class = _request_class(header.api_key, header.api_version)
        check_counts(request_class, frame, position, elements_max(name))
        try:
            request, _ = reader(frame, position)
        except KeyError:  # a tagged field that kio's schema does not have
            if not flexible:
                raise
            body = without_unknown_tags(_request_class(header.api_key, header.api_version), frame[position:])
            request, _ = reader(body, 0)
    except (DecodeError, ValueError, OverflowError, IndexError, KeyError, UnicodeError, struct.error) as error:
        raise ProtocolViolationError(
            f"malformed {name} request, version {header.api_version}: {str(error) or type(error).__name__}"
        ) from error
    # Bytes after the end are ignored, as in Kafka: librdkafka appends three to every Metadata request from version 9
    # on.
    return request


def embedded_frame(header: RequestHeader, frame: bytes, request: Any) -> bytes:
    """Return a request frame with the header of `frame` and the body of another request of its API and version."""
    buffer = BytesIO()
    entity_writer(type(request))(buffer, request)
    tags = b"\0" if is_flexible(header.api_key, header.api_version) else b""
    return frame[: header.body_offset] + tags + buffer.getvalue()


def read_response(header: RequestHeader, frame: bytes) -> Any:
    """Decode another broker's response to a request with this header; `frame` has no length."""
    offset = len(response_prefix(header.api_key, header.api_version, 0, 0)) - 4
    response, _ = entity_reader(response_class(header.api_key, header.api_version))(frame, offset)
    return response


def response_prefix(api_key: int, version: int, correlation_id: int, body_size: int) -> bytes:
    """Return length and header of a response with a body of `body_size` bytes."""
    if is_flexible(api_key, version) and api_key != API_VERSIONS_KEY:
        return _RESPONSE_V1.pack(body_size + 5, correlation_id, 0)
    return _RESPONSE_V0.pack(body_size + 4, correlation_id)


def encode_response(api_key: int, version: int, tree: Mapping[str, Any]) -> bytes:
    """Encode the body of a response from a tree with the newest version's field names.

    Durations are int milliseconds, error codes `ErrorCode`, ids `UUID` (None: the zero id). Missing fields take the
    protocol's defaults, missing error codes are `none`.

    Raises:
        TypeError: The tree has a field that no version has, or lacks one without default (a programming error).
    """
    schema = response_class(api_key, version)
    entity = _build(_plan(schema, api_key, ()), tree)
    buffer = BytesIO()
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


@cache
def has_throttle_time(api_key: int) -> bool:
    """Whether any version of an API's response has a throttle time."""
    return _is_in_any_version(api_key, (), "throttle_time")


@cache
def _request_class(api_key: int, version: int) -> Any:
    try:
        return load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        raise ProtocolViolationError(f"unknown request: {api_name(api_key)}, version {version}") from None


@cache
def response_class(api_key: int, version: int) -> Any:
    """Return kio's class of a response."""
    return load_response_schema(api_key, version)


@cache
def _request_reader(api_key: int, version: int) -> tuple[Callable[[bytes, int], tuple[Any, int]], bool]:
    request_class = _request_class(api_key, version)
    return entity_reader(request_class), bool(request_class.__flexible__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The construction of an entity class from a dict: a converter (or None) for each of its fields."""

    entity: Any
    converters: dict[str, Callable[[Any], Any] | None]
    #: Values of error codes and throttle times, which have no default in kio.
    defaults: dict[str, Any]
    api_key: int
    path: tuple[str, ...]


@cache
def _plan(entity: Any, api_key: int, path: tuple[str, ...]) -> _Plan:
    converters = {field.name: _converter(field, api_key, (*path, field.name)) for field in fields(entity)}
    defaults: dict[str, Any] = {}
    for field in fields(entity):
        if field.default is MISSING and field.metadata.get("kafka_type") == "error_code":
            defaults[field.name] = ErrorCode.none
        elif field.default is MISSING and field.name == "throttle_time":
            defaults[field.name] = timedelta(0)
    return _Plan(entity, converters, defaults, api_key, path)


def _build(plan: _Plan, tree: Mapping[str, Any]) -> Any:
    arguments = dict(plan.defaults)
    converters = plan.converters
    for name, value in tree.items():
        if name in converters:
            converter = converters[name]
            arguments[name] = value if converter is None or value is None else converter(value)
        elif not _is_in_any_version(plan.api_key, plan.path, name):
            raise TypeError(f"{plan.entity.__name__} has no field {name!r} in any version")
    return plan.entity(**arguments)


@cache
def _is_in_any_version(api_key: int, path: tuple[str, ...], name: str) -> bool:
    """Whether any version of a response has the field at this path.

    The newest version is checked first: it has nearly every field, and each checked version must be imported.
    """
    versions = sorted(schema_name_map[api_key_map[api_key]], reverse=True)
    return any(name in _names(api_key, version, path) for version in versions)


@cache
def _names(api_key: int, version: int, path: tuple[str, ...]) -> frozenset[str]:
    kind: Any = response_class(api_key, version)
    for step in path:
        kind = next((inner_type(field.type)[0] for field in fields(kind) if field.name == step), None)
        if kind is None:
            return frozenset()
    return frozenset(field.name for field in fields(kind))


def _converter(field: Any, api_key: int, path: tuple[str, ...]) -> Callable[[Any], Any] | None:
    kind, is_array = inner_type(field.type)
    convert: Callable[[Any], Any] | None
    kafka_type = field.metadata.get("kafka_type", "")
    if is_dataclass(kind):
        plan = _plan(cast("Any", kind), api_key, path)
        if is_array:
            return lambda items: tuple([_build(plan, item) for item in items])
        return lambda item: _build(plan, item)
    if kafka_type.startswith("timedelta"):
        convert = to_timedelta
    elif kafka_type == "datetime_i64":
        convert = _to_datetime
    else:
        convert = None
    if is_array:
        return tuple if convert is None else lambda items: tuple([convert(item) for item in items])
    return convert


def _to_datetime(value: int) -> datetime:
    # -1, for no time, is the millisecond before the epoch in kio, also for nullable fields.
    return _EPOCH + timedelta(milliseconds=value)
