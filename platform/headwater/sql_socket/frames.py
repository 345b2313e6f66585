"""The frames on the socket between the REST API and the SQL service. Pure: bytes in, frames out.

A frame is a big-endian length of four bytes, which counts what follows, a byte that names the kind, and the payload:

| kind | from | payload |
|------|------|---------|
| `Q` | API | the query as JSON; the first frame of a connection, which is for one query |
| `C` | API | none: cancel; a closed connection does the same |
| `S` | service | `{"columns": [[name, type], ...]}` |
| `D` | service | rows in the form that the query asks for |
| `E` | service | `{"rows", "truncated", "seconds"}`; nothing follows |
| `X` | service | `{"code", "message", "line"?, "column"?}`; nothing follows |
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Final

from headwater.api.sql_gateway import QueryColumns, QueryEnd, QueryEvent, RowForm, SqlFailure, SqlFailureCode, SqlQuery

__all__ = [
    "CANCEL",
    "FRAME_BYTES_MAX",
    "QUERY",
    "FrameError",
    "FrameReader",
    "encode_event",
    "encode_failure",
    "encode_frame",
    "encode_query",
    "event_of",
    "query_of",
]

FRAME_BYTES_MAX: Final = 64 << 20  # a row may be as large as the largest record
QUERY: Final = b"Q"
CANCEL: Final = b"C"
_COLUMNS: Final = b"S"
_ROWS: Final = b"D"
_END: Final = b"E"
_FAILURE: Final = b"X"
_LENGTH: Final = struct.Struct(">I")


class FrameError(ValueError):
    """Bytes that are no frame of this protocol."""


def encode_frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame. Raises FrameError for a payload over the limit.

    >>> encode_frame(CANCEL)
    b'\\x00\\x00\\x00\\x01C'
    """
    if len(payload) >= FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(payload)} bytes is larger than {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(payload) + 1) + kind + payload


class FrameReader:
    """Divides what a connection receives into frames; holds at most one frame that is not whole."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, received: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and payload of each frame that is whole. Raises FrameError."""
        self._held += received
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            if not 1 <= length <= FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes is outside of 1 to {FRAME_BYTES_MAX}")
            end = _LENGTH.size + length
            if len(self._held) < end:
                return
            frame = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            yield frame[:1], frame[1:]


def encode_query(query: SqlQuery) -> bytes:
    """The first frame of a connection. Raises FrameError."""
    value = {
        "id": query.query_id,
        "statement": query.statement,
        "session": query.session,
        "parameters": dict(query.parameters),
        "row_limit": query.row_limit,
        "timeout_ms": query.timeout_ms,
        "form": query.form.value,
    }
    return encode_frame(QUERY, json.dumps(value).encode())


def query_of(payload: bytes) -> SqlQuery:
    """The query of a frame. Raises FrameError."""
    try:
        value = json.loads(payload)
        return SqlQuery(
            value["id"],
            value["statement"],
            value["session"],
            value["parameters"],
            int(value["row_limit"]),
            int(value["timeout_ms"]),
            RowForm(value["form"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"no query: {error!r}"[:200]) from None


def encode_event(event: QueryEvent) -> bytes:
    """An event of an answer as a frame. Raises FrameError."""
    if isinstance(event, bytes):
        return encode_frame(_ROWS, event)
    if isinstance(event, QueryColumns):
        return encode_frame(_COLUMNS, json.dumps({"columns": event.columns}).encode())
    value = {"rows": event.rows, "truncated": event.truncated, "seconds": event.seconds}
    return encode_frame(_END, json.dumps(value).encode())


def encode_failure(failure: SqlFailure) -> bytes:
    """The last frame of an answer that failed."""
    return encode_frame(_FAILURE, json.dumps(failure.value()).encode())


def event_of(kind: bytes, payload: bytes) -> QueryEvent:
    """The event of a frame. Raises the SqlFailure that a frame tells, and FrameError."""
    if kind == _ROWS:
        return payload
    try:
        value: Any = json.loads(payload)
        if kind == _COLUMNS:
            return QueryColumns(tuple((str(name), str(of)) for name, of in value["columns"]))
        if kind == _END:
            return QueryEnd(int(value["rows"]), value["truncated"], float(value["seconds"]))
        if kind == _FAILURE:
            place = (int(value["line"]), int(value["column"])) if "line" in value else None
            failure = SqlFailure(SqlFailureCode(value["code"]), str(value["message"]), place)
        else:
            raise FrameError(f"no frame of a service: {kind!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError(f"no event: {error!r}"[:200]) from None
    raise failure
