"""Every failure of the REST API as `{"error_code": int, "message": str}`, Confluent's shape.

The numbers are Confluent REST v3's where Confluent defines one. FastAPI's own shape (`{"detail": ...}`) never leaves
the server: validation errors, unknown paths, wrong methods and faults of the server are translated here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from headwater.api.sql_gateway import SqlFailure, SqlFailureCode
from headwater.api.topic_model import ErrorCode, TopicAdminError

_log = logging.getLogger(__name__)

MALFORMED_JSON = 400
REFUSED = 40002
NOT_AUTHORIZED = 40301
UNKNOWN_TOPIC = 40403
UNKNOWN_RESOURCE = 40404
PAYLOAD = 42206
TIMED_OUT = 40801
CANCELLED = 40901
BUSY = 42901
FAILED = 50002
UNAVAILABLE = 50301

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

PROBLEMS_SHOWN_MAX = 5
"""Validation problems listed in one message."""

STATUS: dict[ErrorCode, tuple[int, int]] = {
    ErrorCode.INVALID_TOPIC: (400, REFUSED),
    ErrorCode.INVALID_PARTITIONS: (400, REFUSED),
    ErrorCode.INVALID_REPLICATION_FACTOR: (400, REFUSED),
    ErrorCode.INVALID_CONFIG: (400, REFUSED),
    ErrorCode.INVALID_REQUEST: (400, REFUSED),
    ErrorCode.TOPIC_ALREADY_EXISTS: (400, REFUSED),
    ErrorCode.UNKNOWN_TOPIC: (404, UNKNOWN_TOPIC),
    ErrorCode.UNKNOWN_PARTITION: (404, UNKNOWN_RESOURCE),
    ErrorCode.UNKNOWN_CONFIG: (404, UNKNOWN_RESOURCE),
    ErrorCode.UNKNOWN_BROKER: (404, UNKNOWN_RESOURCE),
    ErrorCode.UNKNOWN_CLUSTER: (404, UNKNOWN_RESOURCE),
    ErrorCode.UNKNOWN_PIPELINE: (404, UNKNOWN_RESOURCE),
    ErrorCode.NOT_AUTHORIZED: (403, NOT_AUTHORIZED),
    ErrorCode.NOT_SUPPORTED: (501, 501),
    ErrorCode.TIMED_OUT: (503, UNAVAILABLE),
    ErrorCode.UNAVAILABLE: (503, UNAVAILABLE),
    ErrorCode.BROKER_ERROR: (502, 502),
}
"""Administration error -> (HTTP status, error_code). Total: a test compares it with `ErrorCode`."""

SQL_STATUS: dict[SqlFailureCode, tuple[int, int]] = {
    SqlFailureCode.INVALID: (400, REFUSED),
    SqlFailureCode.NOT_PERMITTED: (403, NOT_AUTHORIZED),
    SqlFailureCode.TIMED_OUT: (408, TIMED_OUT),
    SqlFailureCode.CANCELLED: (409, CANCELLED),
    SqlFailureCode.BUSY: (429, BUSY),
    SqlFailureCode.FAILED: (500, FAILED),
    SqlFailureCode.UNAVAILABLE: (503, UNAVAILABLE),
}
"""Failure of a query -> (HTTP status, error_code). Total, too."""

RETRY_AFTER_S = 1
"""Pause that a client of a busy service is told; queries end at any moment."""


def error_response(status: int, error_code: int, message: str) -> JSONResponse:
    """Build an error answer."""
    return JSONResponse({"error_code": error_code, "message": message}, status_code=status)


def describe_problems(problems: Sequence[Any]) -> str:
    """Turn pydantic's problems into one line: place and message.

    >>> describe_problems([{"loc": ("body", "partitions_count"), "msg": "Input should be a valid integer"}])
    'partitions_count: Input should be a valid integer'
    >>> describe_problems([{"loc": ("body", "configs", 0, "name"), "msg": "Field required"}])
    'configs[0].name: Field required'
    """
    lines = []
    for problem in problems[:PROBLEMS_SHOWN_MAX]:
        where = ""
        for part in problem["loc"][1:]:
            where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
        lines.append(f"{where}: {problem['msg']}" if where else str(problem["msg"]))
    more = len(problems) - PROBLEMS_SHOWN_MAX
    if more > 0:
        lines.append(f"and {more} more")
    return "; ".join(lines)


async def _administration(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TopicAdminError)
    status, error_code = STATUS[error.code]
    return error_response(status, error_code, error.message)


def sql_failure_response(failure: SqlFailure) -> JSONResponse:
    """Build the error answer of a query, with the place in its statement."""
    status, error_code = SQL_STATUS[failure.code]
    place = "" if failure.place is None else "line {}, column {}: ".format(*failure.place)
    answer = error_response(status, error_code, f"{place}{failure.message}")
    if failure.code is SqlFailureCode.BUSY:
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    return answer


async def _sql_failure(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SqlFailure)
    return sql_failure_response(error)


async def _validation(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = error.errors()
    if any(problem["type"] == "json_invalid" for problem in problems):
        reason = problems[0].get("ctx", {}).get("error", problems[0]["msg"])
        return error_response(400, MALFORMED_JSON, f"the body is not valid JSON: {reason}")
    if any(problem["loc"][0] == "path" for problem in problems):
        return error_response(404, UNKNOWN_RESOURCE, f"no such resource: {describe_problems(problems)}")
    return error_response(422, PAYLOAD, f"the body does not fit: {describe_problems(problems)}")


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    response = error_response(error.status_code, error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes for a path: Starlette reports only those of the first route."""
    return {
        method
        for method in _METHODS
        for route in request.app.routes
        if route.matches(dict(request.scope) | {"method": method})[0] is Match.FULL
    }


async def _fault(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(500, 500, "the server failed on this request; its log has the reason")


def install_error_handlers(app: FastAPI) -> None:
    """Register the error handlers of every kind of failure with an application."""
    app.add_exception_handler(TopicAdminError, _administration)
    app.add_exception_handler(SqlFailure, _sql_failure)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _fault)
