"""Request and response bodies of the registry, in Confluent's shapes.

Unlike the rest of the API, unknown fields of a body are ignored: clients of later versions send additional fields.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import REFERENCES_MAX, Config, Reference, SchemaType, SchemaVersion
from headwater.api.registry.registering import Candidate
from headwater.api.registry.settings import compatibility_level

_RULE_MODES: Final = {
    "migrationRules": {"UPGRADE", "DOWNGRADE", "UPDOWN"},
    "domainRules": {"WRITE", "READ", "WRITEREAD"},
    "encodingRules": {"WRITE", "READ", "WRITEREAD"},
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class ReferenceBody(_Body):
    """A reference to another schema."""

    name: str
    subject: str
    version: int


class MetadataBody(_Body):
    """A schema's metadata."""

    tags: dict[str, list[str]] | None = None
    properties: dict[str, str] | None = None
    sensitive: list[str] | None = None


class RuleBody(_Body):
    """A rule that serializers apply."""

    name: str = Field(min_length=1)
    doc: str | None = None
    kind: str | None = None
    mode: str | None = None
    type: str | None = None
    tags: list[str] | None = None
    params: dict[str, str] | None = None
    expr: str | None = None
    on_success: str | None = Field(default=None, alias="onSuccess")
    on_failure: str | None = Field(default=None, alias="onFailure")
    disabled: bool | None = None


class RuleSetBody(_Body):
    """The rules of a schema."""

    migration_rules: list[RuleBody] | None = Field(default=None, alias="migrationRules")
    domain_rules: list[RuleBody] | None = Field(default=None, alias="domainRules")
    encoding_rules: list[RuleBody] | None = Field(default=None, alias="encodingRules")

    def checked(self) -> dict[str, Any]:
        """Return the rules in the stored form.

        Raises:
            RegistryError: a rule's name is duplicate, or a rule's mode is not allowed for its kind.
        """
        stored = self.model_dump(by_alias=True, exclude_none=True)
        for kind, modes in _RULE_MODES.items():
            names: set[str] = set()
            for rule in stored.get(kind, ()):
                if rule["name"] in names:
                    raise RegistryError(errors.INVALID_RULE_SET, f"Found rule with duplicate name '{rule['name']}'")
                names.add(rule["name"])
                if rule.get("mode", "WRITE" if kind != "migrationRules" else "UPGRADE") not in modes:
                    message = f"rule '{rule['name']}': {kind} can only be {', '.join(sorted(modes))}"
                    raise RegistryError(errors.INVALID_RULE_SET, message)
        return stored


class SchemaBody(_Body):
    """A schema to register, look up or check."""

    text: str | None = Field(default=None, alias="schema")
    schema_type: str | None = Field(default=None, alias="schemaType")
    references: list[ReferenceBody] | None = Field(default=None, max_length=REFERENCES_MAX)
    metadata: MetadataBody | None = None
    rule_set: RuleSetBody | None = Field(default=None, alias="ruleSet")
    id: int | None = None
    version: int | None = None

    def to_candidate(self) -> Candidate:
        """Convert the body to a candidate.

        Raises:
            RegistryError: the rules are invalid.
        """
        metadata = self.metadata.model_dump(exclude_none=True) if self.metadata is not None else None
        rule_set = self.rule_set.checked() if self.rule_set is not None else None
        return Candidate(
            self.text or "",
            self.schema_type or SchemaType.AVRO.value,
            tuple(Reference(used.name, used.subject, used.version) for used in self.references or ()),
            metadata or None,
            rule_set or None,
            self.id if self.id is not None and self.id >= 0 else None,
            self.version,
        )


class ConfigBody(BaseModel):
    """A compatibility level, a normalization flag, or both; a missing field remains unchanged."""

    model_config = ConfigDict(extra="allow")

    compatibility: str | None = None
    normalize: bool | None = None

    def to_config(self) -> Config:
        """Convert the body to a change.

        Raises:
            RegistryError: the level is unknown, or this registry does not support a setting.
        """
        unsupported = sorted(name for name, value in (self.model_extra or {}).items() if value not in (None, False))
        if unsupported:
            message = f"this registry does not support {', '.join(unsupported)[:200]}"
            raise RegistryError(errors.INVALID_REQUEST, message)
        level = None if self.compatibility is None else compatibility_level(self.compatibility)
        return Config(level, self.normalize)


class ModeBody(_Body):
    """A mode."""

    mode: str


def version_body(version: SchemaVersion, text: str | None = None) -> dict[str, Any]:
    """Return the body of a version; `text` replaces the schema's text if another form was requested."""
    return {
        "subject": version.subject,
        "version": version.version,
        "id": version.schema_id,
        "guid": version.schema.guid,
    } | schema_body(version, text)


def schema_body(version: SchemaVersion, text: str | None = None) -> dict[str, Any]:
    """Return the body of a version's schema; the type AVRO and empty fields are omitted."""
    schema = version.schema
    body: dict[str, Any] = {}
    if schema.schema_type is not SchemaType.AVRO:
        body["schemaType"] = schema.schema_type.value
    if schema.references:
        body["references"] = [
            {"name": used.name, "subject": used.subject, "version": used.version} for used in schema.references
        ]
    if schema.metadata is not None:
        body["metadata"] = dict(schema.metadata)
    if schema.rule_set is not None:
        body["ruleSet"] = dict(schema.rule_set)
    return body | {"schema": schema.text if text is None else text}


def config_answer(config: Config) -> dict[str, Any]:
    """Return the body of a config, including settings that this registry stores without applying them."""
    body: dict[str, Any] = {}
    if config.normalize is not None:
        body["normalize"] = config.normalize
    if config.compatibility is not None:
        body["compatibilityLevel"] = config.compatibility.value
    return body | dict(config.unsupported)
