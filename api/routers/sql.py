"""`/headwater/v1/sql`: queries over the catalog. They run in the SQL service; callers are on this machine only."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from starlette.responses import Response

from headwater.api.json_route import READS_ONLY, JsonRoute
from headwater.api.limits import is_json
from headwater.api.query_response import MEDIA_TYPES, QueryResponse
from headwater.api.routers.pipelines import PREFIX
from headwater.api.schemas.resource import ListMetadata
from headwater.api.schemas.sql import RunningQueryData, RunningQueryListData, SqlQueryBody
from headwater.api.sql_gateway import RowForm, SqlFailure, SqlFailureCode, SqlGateway, SqlQuery
from headwater.api.sql_policy import SqlPolicy

QUERY_ID_BYTES: Final = 12

router = APIRouter(tags=["sql"], prefix=PREFIX, route_class=JsonRoute)

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The rows", "content": {media_type: {} for media_type in MEDIA_TYPES.values()}}
}


async def get_gateway(request: Request) -> SqlGateway:
    """Return the way to the SQL service. Raises SqlFailure for a caller that may not use it, and without a service."""
    policy = request.app.state.sql_policy
    assert isinstance(policy, SqlPolicy)
    client = request.client.host if request.client is not None else None
    reason = policy.caller_refusal(client, request.headers.get("host", ""), request.headers.get("origin"))
    if reason is not None:
        raise SqlFailure(
            SqlFailureCode.NOT_PERMITTED,
            f"SQL is for callers on this machine, as this server does not ask who is calling, and {reason}",
        )
    gateway: SqlGateway | None = request.app.state.sql_gateway
    if gateway is None:
        raise SqlFailure(SqlFailureCode.UNAVAILABLE, "there is no SQL service here: start it with `headwater up --sql`")
    return gateway


Gateway = Annotated[SqlGateway, Depends(get_gateway)]
QueryId = Annotated[str, Path(max_length=2 * QUERY_ID_BYTES, description="Id of a query")]


async def get_form(request: Request) -> RowForm:
    """Choose the form of the rows by the header Accept. Raises HTTPException (406, 415)."""
    if not is_json(request.headers.get("content-type", "")):
        # Also without a body to be refused: a page could otherwise ask without a preflight request.
        raise HTTPException(415, "the body must be JSON (Content-Type: application/json)")
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "*/*").split(",")]
    for media_type in accepted:
        for form, own in MEDIA_TYPES.items():
            if media_type in (own, "*/*", "application/*"):
                return form
    raise HTTPException(406, f"rows are {' or '.join(MEDIA_TYPES.values())}")


@router.post("/sql", openapi_extra=READS_ONLY, responses=_ANSWERS, response_class=Response)
async def run_statement(gateway: Gateway, form: Annotated[RowForm, Depends(get_form)], body: SqlQueryBody) -> Response:
    """Run a query over topics and Delta tables."""
    query = SqlQuery(
        secrets.token_hex(QUERY_ID_BYTES),
        body.statement,
        body.session,
        body.parameters,
        body.row_limit,
        body.timeout_ms,
        form,
    )
    return QueryResponse(gateway, query)


@router.get("/sql")
async def list_queries(gateway: Gateway, request: Request) -> RunningQueryListData:
    """List the queries that run."""
    data = [RunningQueryData.of(query) for query in gateway.running()]
    root = f"{str(request.base_url).rstrip('/')}{PREFIX}/sql"
    return RunningQueryListData(metadata=ListMetadata(self_url=root), data=data)


@router.delete("/sql/{query_id}", status_code=204, openapi_extra=READS_ONLY)
async def cancel_query(gateway: Gateway, query_id: QueryId) -> None:
    """Cancel a query; its answer ends with an error."""
    if not gateway.cancel(query_id):
        raise HTTPException(404, f"no query {query_id!r} runs")
