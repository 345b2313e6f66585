"""Lookup and registration of schemas: the answer, and the records to write; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headwater.api.registry import compatibility, errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import (
    ID_MAX,
    REFERENCES_MAX,
    SUBJECT_LENGTH_MAX,
    VERSION_MAX,
    CompatibilityLevel,
    Mode,
    Reference,
    Schema,
    SchemaType,
    SchemaVersion,
)
from headwater.api.registry.parsed import ParsedSchema
from headwater.api.registry.parsing import SchemaParser
from headwater.api.registry.record_codec import Record, SchemaRecord
from headwater.api.registry.state import RegistryState
from headwater.pipelines.schemas.errors import InvalidSchemaError


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schema in a request. `schema_id` and `version` are those of another registry, for imports."""

    text: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None
    schema_id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Understood:
    """A parsed candidate, and the schema to store."""

    schema: Schema
    parsed: ParsedSchema


def finder(state: RegistryState) -> Any:
    """Return a lookup function for references; schemas may still reference soft-deleted versions."""

    def find(reference: Reference) -> Schema | None:
        version = state.subjects.get(reference.subject, {}).get(reference.version)
        return None if version is None else version.schema

    return find


def understand(
    state: RegistryState, parser: SchemaParser, candidate: Candidate, *, normalize: bool, new: bool
) -> Understood:
    """Parse a candidate.

    Raises:
        RegistryError: the candidate is not a valid schema.
    """
    if candidate.schema_type not in SchemaType.__members__:
        raise errors.invalid_schema(f"Invalid schema type {candidate.schema_type[:60]}")
    if not candidate.text.strip():
        raise errors.invalid_schema("Empty schema")
    if len(candidate.references) > REFERENCES_MAX:
        raise errors.invalid_schema(f"{len(candidate.references)} references are more than {REFERENCES_MAX}")
    schema = Schema(
        SchemaType(candidate.schema_type),
        candidate.text,
        candidate.references,
        candidate.metadata,
        candidate.rule_set,
    )
    try:
        parsed = parser.parse(schema, finder(state), new=new)
        text = parsed.normalized() if normalize else parsed.canonical
    except InvalidSchemaError as error:
        message = f"Invalid schema of type {schema.schema_type.value}, details: {error}"
        raise errors.invalid_schema(message) from None
    references = schema.references
    if normalize:
        references = tuple(sorted(set(references), key=lambda reference: (reference.name, reference.subject)))
    return Understood(replace(schema, text=text, references=references, digest=b""), parsed)


def look_up(
    state: RegistryState,
    parser: SchemaParser,
    subject: str,
    candidate: Candidate,
    *,
    normalize: bool = False,
    deleted: bool = False,
) -> SchemaVersion:
    """Return the version of a subject that has this schema.

    Raises:
        RegistryError: the subject or the version does not exist, or the candidate is not a valid schema.
    """
    normalize = normalize or bool(state.config_in_scope(subject).normalize)
    understood = understand(state, parser, candidate, normalize=normalize, new=False)
    versions = state.versions(subject, deleted=deleted)
    found = _same(state, parser, understood, versions)
    if found is None and versions:
        found = _same(state, parser, _inherited(understood, state.versions(subject)), versions)
    if found is not None:
        return found
    if not versions:
        raise errors.subject_not_found(subject)
    raise errors.schema_not_found()


def register(
    state: RegistryState, parser: SchemaParser, subject: str, candidate: Candidate, *, normalize: bool = False
) -> tuple[SchemaVersion, list[Record]]:
    """Return the version of the registered schema, and the records that register it.

    Raises:
        RegistryError: the mode forbids it, or the candidate is invalid or incompatible with earlier versions.
    """
    check_subject(subject)
    mode = state.mode_in_scope(subject)
    _check_mode(subject, mode, candidate)
    config = state.config_in_scope(subject)
    live = state.versions(subject)
    if not candidate.text.strip() and live:
        latest = live[-1].schema
        candidate = replace(
            candidate, text=latest.text, schema_type=latest.schema_type.value, references=latest.references
        )
    normalize = normalize or bool(config.normalize)
    understood = understand(state, parser, candidate, normalize=normalize, new=mode is not Mode.IMPORT)
    if mode is not Mode.IMPORT:
        understood = _inherited(understood, live)
    explicit_version = candidate.version if candidate.version is not None and candidate.version > 0 else None
    existing = _same(state, parser, understood, live)
    if existing is not None and _is_wanted(existing, candidate.schema_id, explicit_version):
        return existing, []
    if mode is not Mode.IMPORT:
        _check_compatible(state, parser, subject, understood, live)
    version = _version(state, subject, explicit_version, mode)
    value = SchemaVersion(
        subject, version, _schema_id(state, understood.schema, candidate.schema_id), understood.schema
    )
    replaced: list[Record] = [
        SchemaRecord(subject, old.version, None)
        for old in state.versions(subject, deleted=True)
        if old.deleted and old.schema_id == value.schema_id and old.version < version
    ]
    return value, [*replaced, SchemaRecord(subject, version, value)]


def check_compatibility(
    state: RegistryState,
    parser: SchemaParser,
    subject: str,
    candidate: Candidate,
    previous: list[SchemaVersion],
    *,
    normalize: bool = False,
) -> list[str]:
    """Return why a schema may not follow the versions in `previous` at the subject's level; empty if compatible."""
    config = state.config_in_scope(subject)
    understood = understand(state, parser, candidate, normalize=normalize or bool(config.normalize), new=True)
    return _problems(state, parser, subject, understood, previous)


def check_subject(subject: str) -> None:
    """Raise RegistryError unless the name is a valid subject for registration."""
    if not subject.strip() or len(subject) > SUBJECT_LENGTH_MAX or subject in ("__GLOBAL", "__EMPTY"):
        raise RegistryError(errors.INVALID_SUBJECT, f"The specified subject '{subject[:100]}' is not a valid subject.")
    if subject.startswith(":.") or any(ord(character) < 32 for character in subject):
        message = f"The specified subject '{subject[:100]}' is not a valid subject: there are no contexts here."
        raise RegistryError(errors.INVALID_SUBJECT, message)


def _is_wanted(existing: SchemaVersion, schema_id: int | None, version: int | None) -> bool:
    return schema_id in (None, existing.schema_id) and version in (None, existing.version)


def _check_mode(subject: str, mode: Mode, candidate: Candidate) -> None:
    if mode.read_only:
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")
    if candidate.schema_id is not None:
        if mode is not Mode.IMPORT:
            raise errors.not_permitted(f"Subject {subject} is not in import mode")
        if not 0 <= candidate.schema_id <= ID_MAX:
            raise errors.not_permitted(f"{candidate.schema_id} is not an id: 0 to {ID_MAX} are")
    elif mode is not Mode.READWRITE:
        raise errors.not_permitted(f"Subject {subject} is not in read-write mode")


def _inherited(understood: Understood, live: list[SchemaVersion]) -> Understood:
    """Give a schema without metadata or rules the metadata or rules of the latest version."""
    if not live:
        return understood
    schema, latest = understood.schema, live[-1].schema
    metadata = schema.metadata if schema.metadata is not None else latest.metadata
    rule_set = schema.rule_set if schema.rule_set is not None else latest.rule_set
    if metadata is schema.metadata and rule_set is schema.rule_set:
        return understood
    return replace(understood, schema=replace(schema, metadata=metadata, rule_set=rule_set, digest=b""))


def _same(
    state: RegistryState, parser: SchemaParser, understood: Understood, versions: list[SchemaVersion]
) -> SchemaVersion | None:
    """Return the last of `versions` that has this schema.

    Another registry may have formatted the text differently; texts that differ are compared in their canonical form.
    """
    schema = understood.schema
    for version in reversed(versions):
        if version.schema.digest == schema.digest:
            return version
    for version in reversed(versions):
        other = version.schema
        alike = (
            other.schema_type is schema.schema_type
            and other.references == schema.references
            and other.metadata == schema.metadata
            and other.rule_set == schema.rule_set
        )
        if alike and _rewritten(state, parser, other) == understood.parsed.canonical:
            return version
    return None


def _rewritten(state: RegistryState, parser: SchemaParser, schema: Schema) -> str | None:
    try:
        return parser.parse(schema, finder(state)).canonical
    except InvalidSchemaError:
        return None


def _check_compatible(
    state: RegistryState, parser: SchemaParser, subject: str, understood: Understood, live: list[SchemaVersion]
) -> None:
    found = _problems(state, parser, subject, understood, live)
    if found:
        message = f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        raise RegistryError(errors.INCOMPATIBLE, f"{message}[{', '.join(found)}]")


def _problems(
    state: RegistryState, parser: SchemaParser, subject: str, understood: Understood, previous: list[SchemaVersion]
) -> list[str]:
    level = state.config_in_scope(subject).compatibility or CompatibilityLevel.BACKWARD

    def parse(version: SchemaVersion) -> ParsedSchema:
        return parser.parse(version.schema, finder(state))

    try:
        return compatibility.problems(level, understood.parsed, previous, parse)
    except InvalidSchemaError as error:
        return [f"An earlier schema cannot be understood: {error}"]


def _version(state: RegistryState, subject: str, explicit: int | None, mode: Mode) -> int:
    taken = state.subjects.get(subject, {})
    following = max(taken, default=0) + 1
    if explicit is None:
        return following
    if explicit > VERSION_MAX:
        raise RegistryError(errors.INVALID_VERSION, f"{explicit} is not a version: 1 to {VERSION_MAX} are")
    if mode is not Mode.IMPORT and explicit != following:
        raise errors.invalid_schema("Version is not one more than previous version")
    if explicit in taken and not taken[explicit].deleted:
        raise errors.not_permitted(f"Subject {subject} has another schema as version {explicit}")
    return explicit


def _schema_id(state: RegistryState, schema: Schema, wanted: int | None) -> int:
    if wanted is None:
        known = state.digests.get(schema.digest)
        return known if known is not None else state.id_max + 1
    holders = state.versions_of_id(wanted)
    if holders and holders[0].schema.digest != schema.digest:
        raise errors.not_permitted(f"Overwrite new schema with id {wanted} is not permitted.")
    return wanted
