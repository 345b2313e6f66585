"""Subjects and their versions. Names may contain slashes, so longer paths are registered before shorter ones."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import PlainTextResponse

from headwater.api.json_route import READS_ONLY
from headwater.api.registry import errors
from headwater.api.registry.bodies import SchemaBody, version_body
from headwater.api.registry.deleting import delete_subject, delete_version
from headwater.api.registry.model import SchemaVersion
from headwater.api.registry.parsing import SchemaParser
from headwater.api.registry.record_codec import Record
from headwater.api.registry.registering import finder, look_up, register
from headwater.api.registry.routes.serving import (
    MEDIA_TYPE,
    DeletedAsNegative,
    DeletedOnly,
    Form,
    Limit,
    Offset,
    Registry,
    Subject,
    SubjectPrefix,
    Version,
    page,
    router,
    version_number,
)
from headwater.api.registry.state import RegistryState
from headwater.pipelines.schemas.errors import InvalidSchemaError

routes = router()


def found_version(state: RegistryState, subject: str, version: str, *, deleted: bool = False) -> SchemaVersion:
    """Return a version of a subject.

    Raises:
        RegistryError: the subject or the version does not exist.
    """
    number = version_number(version)
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise errors.subject_not_found(subject)
    if number is None:
        live = state.versions(subject)
        return live[-1] if live else versions[-1]
    for candidate in versions:
        if candidate.version == number:
            return candidate
    raise errors.version_not_found(number)


def formatted(state: RegistryState, parser: SchemaParser, version: SchemaVersion, form: str) -> str | None:
    """Return a schema's text in the requested form, None if no form was requested.

    Raises:
        RegistryError: the stored text cannot be parsed.
    """
    if not form:
        return None
    try:
        return parser.parse(version.schema, finder(state)).formatted(form)
    except InvalidSchemaError as error:
        raise errors.invalid_schema(str(error)) from None


@routes.get("/subjects")
def list_subjects(
    registry: Registry,
    subject_prefix: SubjectPrefix = ":*:",
    deleted: bool = False,
    deleted_only: DeletedOnly = False,
    offset: Offset = 0,
    limit: Limit = -1,
) -> list[str]:
    """List subjects; subjects whose versions are all soft-deleted are listed only on request."""
    prefix = subject_prefix.removeprefix(":*:").removeprefix(":.:")
    with registry.state() as state:
        names = []
        for name in sorted(state.subjects):
            is_live = bool(state.versions(name))
            if name.startswith(prefix) and (not is_live if deleted_only else is_live or deleted):
                names.append(name)
    return page(names, offset, limit)


@routes.post("/subjects/{subject:path}/versions")
def register_schema(registry: Registry, subject: Subject, body: SchemaBody, normalize: bool = False) -> dict[str, Any]:
    """Register a schema under a subject, if absent; returns its id."""
    candidate = body.to_candidate()

    def decide(state: RegistryState) -> tuple[SchemaVersion, list[Record]]:
        return register(state, registry.parser, subject, candidate, normalize=normalize)

    found = registry.change(decide)
    return {"id": found.schema_id, "version": found.version, "guid": found.schema.guid}


@routes.get("/subjects/{subject:path}/versions")
def list_versions(
    registry: Registry,
    subject: Subject,
    deleted: bool = False,
    deleted_only: DeletedOnly = False,
    deleted_as_negative: DeletedAsNegative = False,
    offset: Offset = 0,
    limit: Limit = -1,
) -> list[int]:
    """List the versions of a subject."""
    with registry.state() as state:
        versions = state.versions(subject, deleted=deleted or deleted_only or deleted_as_negative)
        if not versions:
            raise errors.subject_not_found(subject)
    numbers = [
        -version.version if deleted_as_negative and version.deleted else version.version
        for version in versions
        if version.deleted or not deleted_only
    ]
    return page(numbers, offset, limit)


@routes.get("/subjects/{subject:path}/versions/{version}/schema", response_class=Response)
def get_text_of_version(
    registry: Registry, subject: Subject, version: Version, deleted: bool = False, form: Form = ""
) -> Response:
    """Return only the text of a version."""
    with registry.state() as state:
        found = found_version(state, subject, version, deleted=deleted)
        text = formatted(state, registry.parser, found, form)
    return PlainTextResponse(found.schema.text if text is None else text, media_type=MEDIA_TYPE)


@routes.get("/subjects/{subject:path}/versions/{version}/referencedby")
def list_referrers(registry: Registry, subject: Subject, version: Version) -> list[int]:
    """List the ids of schemas that reference a version."""
    with registry.state() as state:
        found = found_version(state, subject, version, deleted=True)
        return sorted({user.schema_id for user in state.referrers(subject, found.version)})


@routes.get("/subjects/{subject:path}/versions/{version}")
def get_version(
    registry: Registry, subject: Subject, version: Version, deleted: bool = False, form: Form = ""
) -> dict[str, Any]:
    """Return a version with its schema."""
    with registry.state() as state:
        found = found_version(state, subject, version, deleted=deleted)
        return version_body(found, formatted(state, registry.parser, found, form))


@routes.delete("/subjects/{subject:path}/versions/{version}")
def remove_version(registry: Registry, subject: Subject, version: Version, permanent: bool = False) -> int:
    """Soft-delete a version, or permanently delete a soft-deleted one."""

    def decide(state: RegistryState) -> tuple[int, list[Record]]:
        found = found_version(state, subject, version, deleted=True)
        return found.version, delete_version(state, found, permanent=permanent)

    return registry.change(decide)


@routes.get("/subjects/{subject:path}/metadata")
def get_latest_with_metadata(
    registry: Registry,
    subject: Subject,
    key: str = "",
    value: str = "",
    deleted: bool = False,
    form: Form = "",
) -> dict[str, Any]:
    """Return the latest version whose metadata contains given properties; several as `key=a,b&value=1,2`."""
    wanted = dict(zip(key.split(","), value.split(","), strict=False)) if key else {}
    with registry.state() as state:
        versions = state.versions(subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(subject)
        for found in reversed(versions):
            properties = (found.schema.metadata or {}).get("properties") or {}
            if all(properties.get(name) == text for name, text in wanted.items()):
                return version_body(found, formatted(state, registry.parser, found, form))
    raise errors.schema_not_found()


@routes.post("/subjects/{subject:path}", openapi_extra=READS_ONLY)
def look_up_schema(
    registry: Registry,
    subject: Subject,
    body: SchemaBody,
    normalize: bool = False,
    deleted: bool = False,
    form: Form = "",
) -> dict[str, Any]:
    """Return the version of a subject that has this schema."""
    with registry.state() as state:
        found = look_up(state, registry.parser, subject, body.to_candidate(), normalize=normalize, deleted=deleted)
        return version_body(found, formatted(state, registry.parser, found, form))


@routes.delete("/subjects/{subject:path}")
def remove_subject(registry: Registry, subject: Subject, permanent: bool = False) -> list[int]:
    """Soft-delete a subject, or permanently delete a soft-deleted one; returns the deleted versions."""

    def decide(state: RegistryState) -> tuple[list[int], list[Record]]:
        return delete_subject(state, subject, permanent=permanent)

    return registry.change(decide)
