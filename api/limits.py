"""Limits of a request's body, checked before it is parsed: the media type is JSON, and the size is bounded."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.api.errors import error_response

BODY_BYTES_MAX = 1 << 20
"""A topic with every config set is under 20 kB."""

_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


def is_json(content_type: str) -> bool:
    """Return whether a Content-Type announces JSON.

    >>> is_json("application/json; charset=utf-8"), is_json("application/vnd.kafka.v3+json"), is_json("text/plain")
    (True, True, False)
    """
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


class BodyLimits:
    """ASGI middleware: answers 415 to a body that is not JSON, 413 to a body over the limit, announced or not.

    Requiring JSON also keeps a web page of another origin from posting a form or a plain-text request, which browsers
    send without a preflight request.
    """

    def __init__(self, app: ASGIApp, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request while counting its body, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in {b"content-length", b"content-type"}}
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._body_bytes_max:
            await error_response(413, 413, self._too_large())(scope, receive, send)
            return
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        has_body = length not in {b"", b"0"} or any(name == b"transfer-encoding" for name, _ in scope["headers"])
        if scope["method"] in _METHODS_WITH_BODY and has_body and not is_json(content_type):
            shown = content_type[:60] or "nothing"
            message = f"the body must be JSON (Content-Type: application/json), not {shown}"
            await error_response(415, 415, message)(scope, receive, send)
            return

        received_bytes = 0

        async def counted() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._body_bytes_max:
                raise HTTPException(413, self._too_large())
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> str:
        return f"the body is larger than {self._body_bytes_max} bytes"
