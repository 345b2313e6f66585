"""The registry's paths, one file per resource."""

from __future__ import annotations

from fastapi import APIRouter

from headwater.api.registry.routes import compatibility, config, mode, schemas, subjects


def all_routes() -> APIRouter:
    """Return every path of the registry, below the server's root."""
    together = APIRouter()
    for module in (subjects, schemas, config, mode, compatibility):
        together.include_router(module.routes)
    return together
