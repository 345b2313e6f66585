"""The registry's paths, a file a resource."""

from __future__ import annotations

from fastapi import APIRouter

from headwater.api.registry.routes import compatibility, config, mode, schemas, subjects


def all_routes() -> APIRouter:
    """Return every path of the registry, as they stand below the server's root."""
    together = APIRouter()
    for module in (subjects, schemas, config, mode, compatibility):
        together.include_router(module.routes)
    return together
