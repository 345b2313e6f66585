"""Routes that parse JSON strictly and refuse changes where the server's policy forbids them.

Every router of the application uses `JsonRoute` or a subclass, so no route can omit either check. Every text of a body
can be encoded as UTF-8: librdkafka's binding ends the process at a lone surrogate. A method other than GET counts as a
change unless the route is marked as read-only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from headwater.api.access import ChangePolicy
from headwater.pipelines.schemas.json_text import JsonTextError, parse_json

READS_ONLY: Final = {"x-reads-only": True}
"""Marks, as `openapi_extra`, a route that changes nothing although its method is not GET."""

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class StrictRequest(Request):
    """A request whose JSON body is checked when it is parsed."""

    async def json(self) -> Any:
        """Parse the body.

        Raises:
            JSONDecodeError: the body is not JSON.
            HTTPException: the body is JSON that no route accepts (400).
        """
        try:
            return parse_json(await self.body())
        except json.JSONDecodeError:
            raise
        except JsonTextError as error:
            raise HTTPException(400, f"the body cannot be read: {error}") from None


class JsonRoute(APIRoute):
    """A route with strict JSON and the application's policy on changes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handle = super().get_route_handler()
        is_change = not (self.methods or set()) <= _SAFE_METHODS and self.openapi_extra != READS_ONLY

        async def answer(request: Request) -> Response:
            if is_change:
                policy = request.app.state.changes
                assert isinstance(policy, ChangePolicy)
                policy.require(request.method)
            return await handle(StrictRequest(request.scope, request.receive))

        return answer
