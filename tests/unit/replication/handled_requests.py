"""Requests of a broker to another, through both codecs and the other's handlers, without a connection."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Final, TypeVar

from headwater.logtier.client.connection import Request
from headwater.logtier.handlers.context import RequestContext, Services
from headwater.logtier.handlers.records import fetch, list_offsets
from headwater.logtier.protocol import messages
from headwater.logtier.runtime.network import FileSlice

_T = TypeVar("_T")

HANDLERS: Final[dict[int, ModuleType]] = {each.API_KEY: each for each in (fetch, list_offsets)}
#: Length, correlation id and the tagged fields of a response's header.
_RESPONSE_HEAD_BYTES: Final = 9


async def handled(services: Services, request: Request[_T]) -> _T:
    """The response of a broker to a request with flexible headers."""
    assert request.flexible
    handler = HANDLERS[request.api_key]
    header = messages.RequestHeader(request.api_key, request.api_version, 1, "broker", 0)
    context = RequestContext(services, request.api_key, request.api_version, 1, "broker", "127.0.0.1", "User:broker")
    answer = handler.handle(messages.read_request(header, b"\0" + request.body), context)
    if inspect.isawaitable(answer):
        answer = await answer
    if isinstance(answer, dict):
        body = messages.encode_response(request.api_key, request.api_version, answer)
        return request.decode(memoryview(bytearray(body)))
    return request.decode(memoryview(bytearray(b"".join(map(sent, answer))))[_RESPONSE_HEAD_BYTES:])


def sent(part: Any) -> bytes:
    """The bytes of a part of a response."""
    if isinstance(part, FileSlice):
        owner: Any = part.owner
        return bytes(owner.file.pread(part.size, part.position))
    return bytes(part)
