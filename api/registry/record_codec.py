"""Converts records of the topic `_schemas` to bytes and back, in the format of Confluent's registry.

Each registry can read a topic written by the other. Equal keys must be equal byte by byte; otherwise compaction would
retain two records for one item. Key fields therefore have a fixed order, and no spaces.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headwater.api.registry.model import (
    CompatibilityLevel,
    Config,
    Mode,
    Reference,
    Schema,
    SchemaType,
    SchemaVersion,
)


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A version of a subject; None as value deletes the version permanently."""

    subject: str
    version: int
    value: SchemaVersion | None


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """The settings of a subject, or the global settings (subject None); None as value restores the default."""

    subject: str | None
    value: Config | None


@dataclass(frozen=True, slots=True)
class ModeRecord:
    """The mode of a subject, or the global mode (subject None); None as value restores the default."""

    subject: str | None
    value: Mode | None


@dataclass(frozen=True, slots=True)
class DeleteSubjectRecord:
    """Soft-deletes all versions of a subject up to `version`."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ClearSubjectRecord:
    """Forgets the soft-deleted versions of a subject (None: of all subjects)."""

    subject: str | None


@dataclass(frozen=True, slots=True)
class NoopRecord:
    """A record without content; a registry writes it to find the end of the topic."""


Record: TypeAlias = SchemaRecord | ConfigRecord | ModeRecord | DeleteSubjectRecord | ClearSubjectRecord | NoopRecord


class RecordFormatError(ValueError):
    """Bytes that are not a record of a registry."""


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Return key and value of a record.

    >>> encode(ModeRecord("s", Mode.READONLY))
    (b'{"keytype":"MODE","subject":"s","magic":0}', b'{"subject":"s","mode":"READONLY"}')
    >>> encode(SchemaRecord("s", 1, None))
    (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', None)
    """
    value: dict[str, Any] | None = None
    match record:
        case SchemaRecord(subject, version, version_value):
            key: dict[str, Any] = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
            value = None if version_value is None else _version_value(version_value)
        case ConfigRecord(subject, config):
            key = _subject_key("CONFIG", subject)
            value = None if config is None else _subject_value(subject) | config_body(config)
        case ModeRecord(subject, mode):
            key = _subject_key("MODE", subject)
            value = None if mode is None else _subject_value(subject) | {"mode": mode.value}
        case DeleteSubjectRecord(subject, version):
            key = _subject_key("DELETE_SUBJECT", subject)
            value = {"subject": subject, "version": version}
        case ClearSubjectRecord(subject):
            key = _subject_key("CLEAR_SUBJECT", subject)
            value = _subject_value(subject)
        case NoopRecord():
            key = {"keytype": "NOOP", "magic": 0}
    return _dump(key), None if value is None else _dump(value)


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """Return the record, or None for an unknown kind of record.

    Raises:
        RecordFormatError: the bytes are not a record of a registry.
    """
    fields = _load(key, "key")
    if fields is None:
        raise RecordFormatError("the record has no key")
    body = _load(value, "value")
    kind = fields.get("keytype")
    try:
        match kind:
            case "SCHEMA":
                subject, version = str(fields["subject"]), int(fields["version"])
                return SchemaRecord(subject, version, None if body is None else _to_version(subject, version, body))
            case "CONFIG":
                return ConfigRecord(fields.get("subject"), None if body is None else to_config(body))
            case "MODE":
                return ModeRecord(fields.get("subject"), None if body is None else Mode(body["mode"]))
            case "DELETE_SUBJECT":
                # A tombstone of this record deletes nothing: versions that it had marked stay as they are.
                return DeleteSubjectRecord(str(fields["subject"]), 0 if body is None else int(body["version"]))
            case "CLEAR_SUBJECT":
                return ClearSubjectRecord(fields.get("subject"))
            case "NOOP":
                return NoopRecord()
            case _:
                return None
    except (KeyError, TypeError, ValueError) as error:
        raise RecordFormatError(f"a {kind} record that cannot be read: {error}") from None


def config_body(config: Config) -> dict[str, Any]:
    """Return the present settings under their names in records and answers."""
    body: dict[str, Any] = {}
    if config.normalize is not None:
        body["normalize"] = config.normalize
    if config.compatibility is not None:
        body["compatibilityLevel"] = config.compatibility.value
    return body | dict(config.unsupported)


def to_config(body: Mapping[str, Any]) -> Config:
    """Parse a config in the form of the records."""
    level = body.get("compatibilityLevel")
    known = {"subject", "compatibilityLevel", "normalize"}
    return Config(
        None if level is None else CompatibilityLevel(level),
        body.get("normalize"),
        {name: value for name, value in body.items() if name not in known and value is not None},
    )


def _subject_key(kind: str, subject: str | None) -> dict[str, Any]:
    return {"keytype": kind} | _subject_value(subject) | {"magic": 0}


def _subject_value(subject: str | None) -> dict[str, Any]:
    return {} if subject is None else {"subject": subject}


def _version_value(version: SchemaVersion) -> dict[str, Any]:
    schema = version.schema
    value: dict[str, Any] = {
        "subject": version.subject,
        "version": version.version,
        "id": version.schema_id,
        "md5": schema.encoded_digest,
    }
    if schema.schema_type is not SchemaType.AVRO:
        value["schemaType"] = schema.schema_type.value
    if schema.references:
        value["references"] = [
            {"name": reference.name, "subject": reference.subject, "version": reference.version}
            for reference in schema.references
        ]
    if schema.metadata is not None:
        value["metadata"] = dict(schema.metadata)
    if schema.rule_set is not None:
        value["ruleSet"] = dict(schema.rule_set)
    return value | {"schema": schema.text, "deleted": version.deleted}


def _to_version(subject: str, version: int, body: Mapping[str, Any]) -> SchemaVersion:
    schema = Schema(
        SchemaType(body.get("schemaType") or "AVRO"),
        str(body["schema"]),
        tuple(
            Reference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
            for reference in body.get("references") or ()
        ),
        body.get("metadata"),
        body.get("ruleSet"),
        _to_digest(body.get("md5")),
    )
    return SchemaVersion(subject, version, int(body["id"]), schema, bool(body.get("deleted", False)))


def _to_digest(text: str | None) -> bytes:
    if not text:
        return b""  # an older registry wrote the record: the schema computes its own
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"md5 is not base64: {error}") from None
    if len(digest) != 16:
        raise ValueError(f"md5 has {len(digest)} bytes")
    return digest


def _dump(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _load(data: bytes | None, what: str) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordFormatError(f"the {what} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RecordFormatError(f"the {what} is not a JSON object")
    return fields
