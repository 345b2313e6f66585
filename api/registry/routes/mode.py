"""Modes: per subject, and global."""

from __future__ import annotations

from headwater.api.registry import errors, settings
from headwater.api.registry.bodies import ModeBody
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import Mode
from headwater.api.registry.record_codec import Record
from headwater.api.registry.routes.serving import DefaultToGlobal, Registry, Subject, router
from headwater.api.registry.service import SchemaRegistry
from headwater.api.registry.state import RegistryState

routes = router()


@routes.get("/mode")
def get_mode(registry: Registry) -> dict[str, str]:
    """Return the global mode."""
    with registry.state() as state:
        return {"mode": state.mode_in_scope(None).value}


@routes.put("/mode")
def put_mode(registry: Registry, body: ModeBody, force: bool = False) -> dict[str, str]:
    """Set the global mode."""
    return _put(registry, None, body, force)


@routes.delete("/mode")
def remove_mode(registry: Registry) -> dict[str, str]:
    """Reset the global mode to READWRITE; returns the previous mode."""
    return _remove(registry, None)


@routes.get("/mode/{subject:path}")
def get_subject_mode(
    registry: Registry, subject: Subject, default_to_global: DefaultToGlobal = False
) -> dict[str, str]:
    """Return the mode of a subject."""
    with registry.state() as state:
        mode = state.mode_in_scope(subject) if default_to_global else state.mode(subject)
    if mode is None:
        message = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(errors.SUBJECT_MODE_NOT_FOUND, message)
    return {"mode": mode.value}


@routes.put("/mode/{subject:path}")
def put_subject_mode(registry: Registry, subject: Subject, body: ModeBody, force: bool = False) -> dict[str, str]:
    """Set the mode of a subject."""
    return _put(registry, subject, body, force)


@routes.delete("/mode/{subject:path}")
def remove_subject_mode(registry: Registry, subject: Subject) -> dict[str, str]:
    """Remove the mode of a subject; returns the previous mode."""
    return _remove(registry, subject)


def _put(registry: SchemaRegistry, subject: str | None, body: ModeBody, force: bool) -> dict[str, str]:
    wanted = settings.mode(body.mode)

    def decide(state: RegistryState) -> tuple[None, list[Record]]:
        return None, settings.set_mode(state, subject, wanted, force=force)

    registry.change(decide)
    return {"mode": wanted.value}


def _remove(registry: SchemaRegistry, subject: str | None) -> dict[str, str]:
    def decide(state: RegistryState) -> tuple[Mode, list[Record]]:
        return settings.delete_mode(state, subject)

    return {"mode": registry.change(decide).value}
