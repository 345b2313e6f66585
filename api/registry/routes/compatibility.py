"""Compatibility checks of schemas without registration."""

from __future__ import annotations

from typing import Any

from headwater.api.json_route import READS_ONLY
from headwater.api.registry import errors
from headwater.api.registry.bodies import SchemaBody
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.registering import check_compatibility
from headwater.api.registry.routes.serving import Registry, Subject, Version, router, version_number
from headwater.api.registry.service import SchemaRegistry

routes = router()


@routes.post("/compatibility/subjects/{subject:path}/versions/{version}", openapi_extra=READS_ONLY)
def check_against_version(
    registry: Registry,
    subject: Subject,
    version: Version,
    body: SchemaBody,
    normalize: bool = False,
    verbose: bool = False,
) -> dict[str, Any]:
    """Check a schema against one version; `latest` of a subject without versions is always compatible."""
    return _checked(registry, subject, body, normalize, verbose, version)


@routes.post("/compatibility/subjects/{subject:path}/versions", openapi_extra=READS_ONLY)
def check_against_all(
    registry: Registry, subject: Subject, body: SchemaBody, normalize: bool = False, verbose: bool = False
) -> dict[str, Any]:
    """Check a schema against all versions that the subject's level compares."""
    return _checked(registry, subject, body, normalize, verbose, None)


def _checked(
    registry: SchemaRegistry, subject: str, body: SchemaBody, normalize: bool, verbose: bool, version: str | None
) -> dict[str, Any]:
    candidate = body.to_candidate()
    with registry.state() as state:
        previous = state.versions(subject)
        if version is not None:
            number = version_number(version)
            previous = previous[-1:] if number is None else [v for v in previous if v.version == number]
            if number is not None and not previous:
                raise errors.version_not_found(number)
        try:
            messages = check_compatibility(state, registry.parser, subject, candidate, previous, normalize=normalize)
        except RegistryError as error:
            if error.code != errors.INVALID_SCHEMA or not verbose:
                raise
            messages = [error.message]
    return {"is_compatible": not messages} | ({"messages": messages} if verbose else {})
