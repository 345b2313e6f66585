"""Serving of the registry: media type, errors, and the parameters shared by its paths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Message, Receive

from headwater.api.errors import describe_problems
from headwater.api.json_route import JsonRoute
from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import VERSION_MAX
from headwater.api.registry.service import SchemaRegistry
from headwater.api.topic_model import ErrorCode, TopicAdminError

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"


LONG_REQUESTS_MAX: Final = 8
"""Concurrent requests that may parse, compare or wait for a writer; each holds one of the 40 threads of all routes."""


class RegistryResponse(JSONResponse):
    """An answer in the registry's media type."""

    media_type = MEDIA_TYPE


class RegistryRoute(JsonRoute):
    """A route that answers failures with the registry's codes, and everything in the requested media type."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handle = super().get_route_handler()
        may_be_long = not (self.methods or set()) <= {"GET"}

        async def answer(request: Request) -> Response:
            turn = request.app.state.schema_turns if may_be_long else contextlib.nullcontext()
            try:
                if may_be_long:
                    # Before its turn: a body that does not come must hold up nobody.
                    request = Request(request.scope, _replaying(await request.body()))
                async with turn:
                    response = await handle(request)
            except RegistryError as error:
                body = {"error_code": error.code, "message": error.message}
                response = RegistryResponse(body, status_code=error.status)
            except TopicAdminError as error:
                if error.code is not ErrorCode.NOT_AUTHORIZED:
                    raise
                body = {"error_code": errors.FORBIDDEN, "message": error.message}
                response = RegistryResponse(body, status_code=403)
            except RequestValidationError as error:
                response = _refused(error)
            accepted = request.headers.get("accept", "")
            if "application/json" in accepted and "vnd.schemaregistry" not in accepted:
                response.headers["content-type"] = "application/json"
            return response

        return answer


def _replaying(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _refused(error: RequestValidationError) -> Response:
    problems = error.errors()
    status = 400 if any(problem["type"] == "json_invalid" for problem in problems) else errors.INVALID_REQUEST
    message = f"the request does not fit: {describe_problems(problems)}"
    return RegistryResponse({"error_code": status, "message": message}, status_code=status)


def router() -> APIRouter:
    """Return a router for one resource."""
    return APIRouter(route_class=RegistryRoute, default_response_class=RegistryResponse, tags=["schema registry"])


def get_registry(request: Request) -> SchemaRegistry:
    """Return the application's registry."""
    registry = request.app.state.registry
    assert isinstance(registry, SchemaRegistry)
    return registry


def unqualified(subject: str) -> str:
    """Return a subject's name without the prefix of the default context, which is the only context.

    >>> unqualified(":.:orders-value"), unqualified("orders-value")
    ('orders-value', 'orders-value')
    """
    return subject.removeprefix(":.:")


def version_number(text: str) -> int | None:
    """Parse a version; None stands for the latest.

    Raises:
        RegistryError: the text is neither a version number nor "latest".
    """
    if text in ("latest", "-1"):
        return None
    if text.isascii() and text.isdigit() and 1 <= int(text[:11]) <= VERSION_MAX:
        return int(text[:11])
    message = (
        f"The specified version '{text[:40]}' is not a valid version id. Allowed values are between [1, 2^31-1] "
        'and the string "latest"'
    )
    raise RegistryError(errors.INVALID_VERSION, message)


def _subject(subject: Annotated[str, Path(description="Name of a subject")]) -> str:
    return unqualified(subject)


Registry = Annotated[SchemaRegistry, Depends(get_registry)]
Subject = Annotated[str, Depends(_subject)]
Version = Annotated[str, Path(description='A version, or "latest"')]
Form = Annotated[str, Query(alias="format", description="Form of the schema's text, such as `serialized`")]
SubjectPrefix = Annotated[str, Query(alias="subjectPrefix", description="Only subjects that begin so")]
DeletedOnly = Annotated[bool, Query(alias="deletedOnly")]
DeletedAsNegative = Annotated[bool, Query(alias="deletedAsNegative")]
LatestOnly = Annotated[bool, Query(alias="latestOnly")]
FetchMaxId = Annotated[bool, Query(alias="fetchMaxId")]
DefaultToGlobal = Annotated[bool, Query(alias="defaultToGlobal")]
Offset = Annotated[int, Query(ge=0, description="How many to leave out")]
Limit = Annotated[int, Query(description="How many to return; -1 for all")]


def page(items: list[Any], offset: int, limit: int) -> list[Any]:
    """Return a page of a list.

    >>> page([1, 2, 3], 1, -1), page([1, 2, 3], 0, 2)
    ([2, 3], [1, 2])
    """
    return items[offset:] if limit < 0 else items[offset : offset + limit]
