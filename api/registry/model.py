"""The model of the registry: schemas, their versions under subjects, compatibility levels and modes."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

ID_MAX: Final = 2**31 - 1
VERSION_MAX: Final = 2**31 - 1
SUBJECT_LENGTH_MAX: Final = 1_000
"""A topic's name has 249 characters at most; subjects add a record's full name to it."""

REFERENCES_MAX: Final = 1_000
"""References of one schema; the largest published sets of Protobuf files have a few hundred."""


class SchemaType(StrEnum):
    """Schema languages."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class CompatibilityLevel(StrEnum):
    """The earlier versions that a new version must be compatible with, and the direction."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def backward(self) -> bool:
        """Whether readers with the new schema must be able to read data of earlier versions."""
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether readers with earlier schemas must be able to read data of the new version."""
        return self.name.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """Whether all earlier versions are compared instead of the last one only."""
        return self.name.endswith("_TRANSITIVE")


class Mode(StrEnum):
    """Permitted writes: all, none, or imports of schemas with the ids of another registry."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"

    @property
    def read_only(self) -> bool:
        """Whether writes are refused."""
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)


@dataclass(frozen=True, slots=True)
class Reference:
    """A referenced schema, and its name in the referring schema (a type, a file to import, a URI)."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A stored schema: its text and the other parts of its identity.

    Invariant: two schemas with equal digests are equal and share an id.
    """

    schema_type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None
    digest: bytes = b""

    def __post_init__(self) -> None:
        """Compute the digest if the record contained none."""
        if not self.digest:
            object.__setattr__(self, "digest", _digest(self))

    @property
    def guid(self) -> str:
        """The digest as a UUID: the same in every registry.

        >>> Schema(SchemaType.AVRO, '"int"').guid
        'ef524ea1-b91e-7317-3d93-8ade36c1db32'
        """
        return str(uuid.UUID(bytes=self.digest))

    @property
    def encoded_digest(self) -> str:
        """The digest as encoded in records of the topic."""
        return base64.b64encode(self.digest).decode()


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema under a subject; a soft-deleted version remains available by its id."""

    subject: str
    version: int
    schema_id: int
    schema: Schema
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a subject, or the global settings; None where a setting is absent.

    `unsupported` holds settings that another registry wrote into the topic; they are stored and returned, but have no
    effect.
    """

    compatibility: CompatibilityLevel | None = None
    normalize: bool | None = None
    unsupported: Mapping[str, Any] = field(default_factory=dict)

    def merged(self, above: Config) -> Config:
        """Fill absent settings from `above`."""
        return Config(
            self.compatibility if self.compatibility is not None else above.compatibility,
            self.normalize if self.normalize is not None else above.normalize,
            {**above.unsupported, **self.unsupported},
        )


DEFAULT_CONFIG: Final = Config(CompatibilityLevel.BACKWARD)
DEFAULT_MODE: Final = Mode.READWRITE


def _digest(schema: Schema) -> bytes:
    """Return the MD5 digest of text, references, metadata and rules, in Confluent's order.

    The algorithm is fixed: records contain the digest, and the digest is the schema's global id.
    """
    md5 = hashlib.md5(schema.text.encode(), usedforsecurity=False)
    for reference in schema.references:
        md5.update(reference.name.encode())
        md5.update(reference.subject.encode())
        md5.update(reference.version.to_bytes(4, "big", signed=True))
    if schema.metadata is not None:
        md5.update(b"\x01")
        _add_texts(md5, schema.metadata.get("tags"))
        _add_texts(md5, schema.metadata.get("properties"))
        _add_texts(md5, sorted(schema.metadata.get("sensitive") or ()))
    if schema.rule_set is not None:
        md5.update(b"\x01")
        for kind in ("migrationRules", "domainRules", "encodingRules"):
            for rule in schema.rule_set.get(kind) or ():
                for name in ("name", "doc", "kind", "mode", "type"):
                    _add_texts(md5, rule.get(name))
                _add_texts(md5, sorted(rule.get("tags") or ()))
                _add_texts(md5, rule.get("params"))
                for name in ("expr", "onSuccess", "onFailure"):
                    _add_texts(md5, rule.get(name))
                if rule.get("disabled"):
                    md5.update(b"\x01")
    return md5.digest()


def _add_texts(md5: Any, value: str | Sequence[str] | Mapping[str, Any] | None) -> None:
    if isinstance(value, str):
        md5.update(value.encode())
    elif isinstance(value, Mapping):
        for key in sorted(value):
            md5.update(key.encode())
            _add_texts(md5, value[key])
    elif value is not None:
        for text in value:
            md5.update(text.encode())
