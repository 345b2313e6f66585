"""Schemas by id."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response
from fastapi.responses import PlainTextResponse

from headwater.api.registry import errors
from headwater.api.registry.bodies import schema_body, version_body
from headwater.api.registry.model import ID_MAX, SchemaType, SchemaVersion
from headwater.api.registry.routes.serving import (
    MEDIA_TYPE,
    FetchMaxId,
    Form,
    LatestOnly,
    Limit,
    Offset,
    Registry,
    SubjectPrefix,
    page,
    router,
    unqualified,
)
from headwater.api.registry.routes.subjects import formatted
from headwater.api.registry.state import RegistryState

routes = router()

SchemaId = Annotated[int, Path(ge=0, le=ID_MAX, description="Id of a schema")]
Guid = Annotated[str, Path(max_length=64, description="Global id of a schema")]


def _by_id(state: RegistryState, schema_id: int, subject: str) -> SchemaVersion:
    """Return a version with this id, preferably a version of `subject`."""
    versions = state.versions_of_id(schema_id)
    if not versions:
        raise errors.schema_not_found(schema_id)
    return next((version for version in versions if version.subject == subject), versions[0])


def _by_guid(state: RegistryState, guid: str) -> SchemaVersion:
    for version in state.versions_of_all():
        if version.schema.guid == guid.lower():
            return version
    raise errors.schema_not_found(guid)


@routes.get("/schemas")
def list_schemas(
    registry: Registry,
    subject_prefix: SubjectPrefix = ":*:",
    deleted: bool = False,
    latest_only: LatestOnly = False,
    offset: Offset = 0,
    limit: Limit = -1,
) -> list[dict[str, Any]]:
    """List every version of every subject."""
    prefix = subject_prefix.removeprefix(":*:").removeprefix(":.:")
    with registry.state() as state:
        found: list[SchemaVersion] = []
        for subject in sorted(state.subjects):
            if subject.startswith(prefix):
                versions = state.versions(subject, deleted=deleted)
                found += versions[-1:] if latest_only else versions
    return [version_body(version) for version in page(found, offset, limit)]


@routes.get("/schemas/types")
def list_types(registry: Registry) -> list[str]:
    """List the supported schema languages."""
    del registry
    return [SchemaType.JSON.value, SchemaType.PROTOBUF.value, SchemaType.AVRO.value]


@routes.get("/schemas/ids/{schema_id}")
def get_schema(
    registry: Registry,
    schema_id: SchemaId,
    subject: str = "",
    form: Form = "",
    fetch_max_id: FetchMaxId = False,
) -> dict[str, Any]:
    """Return a schema by its id; soft-deleted versions are included."""
    with registry.state() as state:
        found = _by_id(state, schema_id, unqualified(subject))
        body = {"guid": found.schema.guid} | schema_body(found, formatted(state, registry.parser, found, form))
        return body | ({"maxId": state.id_max} if fetch_max_id else {})


@routes.get("/schemas/ids/{schema_id}/schema", response_class=Response)
def get_text(registry: Registry, schema_id: SchemaId, subject: str = "", form: Form = "") -> Response:
    """Return only the text of a schema."""
    with registry.state() as state:
        found = _by_id(state, schema_id, unqualified(subject))
        text = formatted(state, registry.parser, found, form)
    return PlainTextResponse(found.schema.text if text is None else text, media_type=MEDIA_TYPE)


@routes.get("/schemas/ids/{schema_id}/subjects")
def list_subjects_of_id(
    registry: Registry,
    schema_id: SchemaId,
    subject: str = "",
    deleted: bool = False,
    offset: Offset = 0,
    limit: Limit = -1,
) -> list[str]:
    """List the subjects that contain a schema."""
    return page(sorted({v.subject for v in _versions(registry, schema_id, subject, deleted)}), offset, limit)


@routes.get("/schemas/ids/{schema_id}/versions")
def list_versions_of_id(
    registry: Registry,
    schema_id: SchemaId,
    subject: str = "",
    deleted: bool = False,
    offset: Offset = 0,
    limit: Limit = -1,
) -> list[dict[str, Any]]:
    """List the subjects and versions that contain a schema."""
    found = _versions(registry, schema_id, subject, deleted)
    return page([{"subject": v.subject, "version": v.version} for v in found], offset, limit)


def _versions(registry: Registry, schema_id: int, subject: str, deleted: bool) -> list[SchemaVersion]:
    wanted = unqualified(subject)
    with registry.state() as state:
        versions = state.versions_of_id(schema_id)
    if not versions:
        raise errors.schema_not_found(schema_id)
    return [v for v in versions if (deleted or not v.deleted) and (not wanted or v.subject == wanted)]


@routes.get("/schemas/guids/{guid}")
def get_schema_by_guid(registry: Registry, guid: Guid, form: Form = "") -> dict[str, Any]:
    """Return a schema by its global id, which is the same in every registry."""
    with registry.state() as state:
        found = _by_guid(state, guid)
        return {"guid": found.schema.guid} | schema_body(found, formatted(state, registry.parser, found, form))


@routes.get("/schemas/guids/{guid}/ids")
def list_ids_of_guid(registry: Registry, guid: Guid) -> list[dict[str, Any]]:
    """List the ids of a schema, one per context; the default context is the only one."""
    with registry.state() as state:
        return [{"context": ".", "id": _by_guid(state, guid).schema_id}]


@routes.get("/contexts")
def list_contexts(registry: Registry, offset: Offset = 0, limit: Limit = -1) -> list[str]:
    """List the contexts: the default context."""
    del registry
    return page(["."], offset, limit)
