"""Compatibility levels: per subject, and global."""

from __future__ import annotations

from typing import Any

from headwater.api.registry import errors
from headwater.api.registry.bodies import ConfigBody, config_answer
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import Config
from headwater.api.registry.record_codec import Record
from headwater.api.registry.routes.serving import DefaultToGlobal, Registry, Subject, router
from headwater.api.registry.service import SchemaRegistry
from headwater.api.registry.settings import delete_config, set_config
from headwater.api.registry.state import RegistryState

routes = router()


@routes.get("/config")
def get_config(registry: Registry) -> dict[str, Any]:
    """Return the global settings."""
    with registry.state() as state:
        return config_answer(state.config_in_scope(None))


@routes.put("/config")
def put_config(registry: Registry, body: ConfigBody) -> dict[str, Any]:
    """Set the global settings."""
    return _put(registry, None, body)


@routes.delete("/config")
def remove_config(registry: Registry) -> dict[str, Any]:
    """Restore the default settings; returns the previous settings."""
    return _remove(registry, None)


@routes.get("/config/{subject:path}")
def get_subject_config(
    registry: Registry, subject: Subject, default_to_global: DefaultToGlobal = False
) -> dict[str, Any]:
    """Return the settings of a subject."""
    with registry.state() as state:
        if default_to_global:
            return config_answer(state.config_in_scope(subject))
        config = state.config(subject)
    if config is None:
        message = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(errors.SUBJECT_CONFIG_NOT_FOUND, message)
    return config_answer(config)


@routes.put("/config/{subject:path}")
def put_subject_config(registry: Registry, subject: Subject, body: ConfigBody) -> dict[str, Any]:
    """Set the settings of a subject."""
    return _put(registry, subject, body)


@routes.delete("/config/{subject:path}")
def remove_subject_config(registry: Registry, subject: Subject) -> dict[str, Any]:
    """Remove the settings of a subject; returns the previous settings."""
    return _remove(registry, subject)


def _put(registry: SchemaRegistry, subject: str | None, body: ConfigBody) -> dict[str, Any]:
    change = body.to_config()

    def decide(state: RegistryState) -> tuple[None, list[Record]]:
        return None, set_config(state, subject, change)

    registry.change(decide)
    answer: dict[str, Any] = {}
    if change.normalize is not None:
        answer["normalize"] = change.normalize
    if change.compatibility is not None:
        answer["compatibility"] = change.compatibility.value
    return answer


def _remove(registry: SchemaRegistry, subject: str | None) -> dict[str, Any]:
    def decide(state: RegistryState) -> tuple[Config, list[Record]]:
        return delete_config(state, subject)

    return config_answer(registry.change(decide))
