"""The REST application: assembles routes, limits and error answers; makes no decisions of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI

from headwater.api.access import ChangePolicy, ClusterDirectory
from headwater.api.errors import install_error_handlers
from headwater.api.hosts import KnownHosts
from headwater.api.limits import BODY_BYTES_MAX, BodyLimits
from headwater.api.pipeline_status import PipelineStatus
from headwater.api.registry import routes as registry_routes
from headwater.api.registry.routes.serving import LONG_REQUESTS_MAX
from headwater.api.registry.service import SchemaRegistry
from headwater.api.routers import clusters, configs, partitions, pipelines, sql, topics
from headwater.api.schemas.resource import ErrorBody
from headwater.api.sql_gateway import SqlGateway
from headwater.api.sql_policy import SqlPolicy
from headwater.api.topic_admin import TopicAdmin

PREFIXES = ("/v3", "/kafka/v3")
"""The same routes twice: Confluent's own server uses the first prefix, most tools the second."""

_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorBody, "description": "Failure"}}


def create_app(
    admin: TopicAdmin,
    body_bytes_max: int = BODY_BYTES_MAX,
    *,
    registry: SchemaRegistry | None = None,
    status: PipelineStatus | None = None,
    changes: ChangePolicy | None = None,
    hosts: Collection[str] = (),
    sql_gateway: SqlGateway | None = None,
    sql_policy: SqlPolicy | None = None,
) -> FastAPI:
    """Build the application around one cluster's administration client, schema registry and pipeline status.

    `hosts` lists the host names, beside the loopback names, that a request may address. Without `sql_gateway` there is
    no SQL service.
    """
    app = FastAPI(
        title="Headwater REST API",
        description="Topic administration with Confluent REST v3's paths and shapes, at /v3 and at /kafka/v3; a schema "
        "registry with Confluent's, at the root; the status of pipelines and SQL, at /headwater/v1.",
        responses=_ERRORS,
        # Their pages load scripts from other hosts; the OpenAPI document at /openapi.json is all that tools need.
        docs_url=None,
        redoc_url=None,
    )
    app.state.clusters = ClusterDirectory(admin)
    app.state.registry = registry if registry is not None else SchemaRegistry.on_topic(admin)
    app.state.pipelines = status if status is not None else PipelineStatus(admin)
    app.state.sql_gateway = sql_gateway
    app.state.sql_policy = sql_policy if sql_policy is not None else SqlPolicy()
    app.state.schema_turns = asyncio.Semaphore(LONG_REQUESTS_MAX)
    app.state.changes = changes if changes is not None else ChangePolicy()
    install_error_handlers(app)
    app.add_middleware(BodyLimits, body_bytes_max=body_bytes_max)
    app.add_middleware(KnownHosts, hosts=hosts)

    resources = APIRouter()
    # Order matters: `topics/-/configs` must be tried before `topics/{topic_name}/configs`.
    for module in (clusters, configs, partitions, topics):
        resources.include_router(module.router)
    for prefix in PREFIXES:
        app.include_router(resources, prefix=prefix, include_in_schema=prefix == PREFIXES[0])

    app.include_router(pipelines.router)
    app.include_router(sql.router)
    app.include_router(registry_routes.all_routes())

    @app.get("/healthz", tags=["health"])
    async def healthz() -> dict[str, str]:
        """Report that the server answers; the broker is not queried."""
        return {"status": "ok"}

    return app
