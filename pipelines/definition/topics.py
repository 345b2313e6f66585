"""`topics:` and `registry:`: formats of values, sources of schemas, creation of missing topics. Pure."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from headwater.pipelines.definition.model import Interval, Model, Options, Shown, interval_ms
from headwater.pipelines.definition.secret_text import Password, SecretText

PARTITIONS_MAX = 10_000  # of one topic; the log tier is dimensioned for 5,000 a broker
REPLICATION_FACTOR_MAX = 32_767  # the protocol's int16
EVENTS_MAX = 100  # types in one topic: each is a column of its view

ValueFormat: TypeAlias = Literal["raw", "string", "json", "csv", "avro", "protobuf", "json_schema"]
KeyFormat: TypeAlias = Literal["raw", "string", "json", "avro", "protobuf", "json_schema"]
VALUE_FORMATS: tuple[str, ...] = get_args(ValueFormat)

FROM_REGISTRY = "registry"
INFERRED = "inferred"
FRAMED = ("avro", "protobuf", "json_schema")  # values carry the id of a schema that a registry has
WITH_SCHEMA = ("json", "csv", *FRAMED)

WITH_OPTIONS = ("json", "csv", "json_schema")  # formats that Spark parses
PARSER_MODES = ("PERMISSIVE", "FAILFAST")

Incompatible: TypeAlias = Literal["dead_letter", "fail"]


class _Encoded(Model):
    """Common fields of topics and event types: a format and its schema."""

    @property
    def schema_file(self) -> str | None:
        """The schema's file; None if the schema is inferred, or comes from the registry or the writing stage."""
        source: str | None = getattr(self, "schema_source", None)
        return None if source in (None, FROM_REGISTRY, INFERRED) else source


class Event(_Encoded):
    """One of several event types in a topic."""

    schema_source: Annotated[str, Shown("path, `registry`")] = Field(
        default=FROM_REGISTRY,
        min_length=1,
        alias="schema",
        description="schema file, or `registry` for the latest version in the registry",
    )
    subject: str | None = Field(
        default=None,
        min_length=1,
        description="subject in the registry; default: the name of the type (Confluent's RecordNameStrategy)",
    )
    message: str | None = Field(
        default=None, min_length=1, description="message name, if the Protobuf file has several messages"
    )


class EventType(Model):
    """Location of the event type in a record. Default: the full name of the writer's schema."""

    header: str | None = Field(default=None, min_length=1, description="name of the header with the event type")
    field: str | None = Field(default=None, min_length=1, description="name of the field with the event type (`json`)")

    @model_validator(mode="after")
    def _one_place(self) -> EventType:
        if (self.header is None) == (self.field is None):
            raise ValueError("give either header or field")
        return self


class Topic(_Encoded):
    """A declared topic: a run creates it if it does not exist, and does not change it if it does."""

    partitions: Annotated[int, Shown(f"1 to {PARTITIONS_MAX:,}")] = Field(
        default=1, ge=1, le=PARTITIONS_MAX, description="number of partitions of a new topic"
    )
    replication_factor: Annotated[int | None, Shown("number", "the broker's")] = Field(
        default=None, ge=1, le=REPLICATION_FACTOR_MAX, description="replication factor of a new topic"
    )
    key: KeyFormat | None = Field(
        default=None,
        description="key format. The fields of a structured key are in the struct column `key`",
    )
    key_schema: Annotated[str | None, Shown("path, `registry`")] = Field(
        default=None,
        min_length=1,
        description="key schema: a file, or `registry` for the latest version of `TOPIC-key`",
    )
    value: ValueFormat = Field(default="json", description="value format")
    schema_source: Annotated[str | None, Shown("path, `registry`, `inferred`")] = Field(
        default=None,
        min_length=1,
        alias="schema",
        description="value schema: a file, `registry` for the subject's latest version, or `inferred` from the "
        "records present at the start of a run (`json`)",
    )
    subject: Annotated[str | None, Shown("text", "`TOPIC-value`")] = Field(
        default=None, min_length=1, description="subject in the registry"
    )
    message: str | None = Field(
        default=None, min_length=1, description="message name, if the Protobuf file has several messages"
    )
    events: dict[str, Event] = Field(
        default_factory=dict,
        max_length=EVENTS_MAX,
        description="event types of the topic by name. Each is a struct column, which is null in records of "
        "other types",
    )
    event_type: EventType | None = Field(default=None, description="location of the event type in a record")
    incompatible: Incompatible = Field(
        default="dead_letter",
        description="action for records whose writer's schema is incompatible with this schema (`avro`, `protobuf`)",
    )
    options: Options = Field(
        default_factory=dict,
        description="Spark's options for `csv` and `json`, such as `sep` and `timestampFormat`",
    )
    configs: Options = Field(default_factory=dict, description="topic configs of Kafka, such as `retention.ms`")
    timestamp_disorder: Interval | None = Field(
        default=None,
        description="how far the records' timestamps fall back in a partition: a query for records up to a time reads "
        "only that far beyond it",
    )

    @model_validator(mode="after")
    def _parts_suit_the_format(self) -> Topic:
        source = self.schema_source
        if source is not None and self.value not in WITH_SCHEMA:
            raise ValueError(f"schema is for {', '.join(WITH_SCHEMA)}, and this topic's value is {self.value}")
        if source == INFERRED and self.value != "json":
            raise ValueError(f"schema: inferred is for value: json, and this topic's value is {self.value}")
        if source == FROM_REGISTRY and self.value not in FRAMED:
            raise ValueError(f"schema: registry is for {', '.join(FRAMED)}, and this topic's value is {self.value}")
        if source is None and self.value == "csv" and not self.events:
            raise ValueError("value: csv needs a schema, which names the columns")
        if self.message is not None and self.value != "protobuf":
            raise ValueError(f"message is for value: protobuf, and this topic's value is {self.value}")
        if self.events and self.value not in ("json", *FRAMED):
            raise ValueError(f"events are for json, {', '.join(FRAMED)}, and this topic's value is {self.value}")
        if self.events and source is not None:
            raise ValueError("a topic with events has no schema of its own: each event has one")
        if self.events and self.value in ("json", "json_schema") and self.event_type is None:
            raise ValueError(f"events of value: {self.value} need event_type: {{header: NAME}} or {{field: NAME}}")
        if self.event_type is not None and self.event_type.field is not None and self.value in ("avro", "protobuf"):
            raise ValueError(f"event_type: {{field: …}} is for json and json_schema, not for {self.value}")
        if self.value != "protobuf" and any(event.message is not None for event in self.events.values()):
            raise ValueError(f"message is for value: protobuf, and this topic's value is {self.value}")
        if self.event_type is not None and not self.events:
            raise ValueError("event_type is for a topic with events")
        if self.value == "json" and any(event.schema_source == FROM_REGISTRY for event in self.events.values()):
            raise ValueError("each event of value: json needs a schema")
        return self

    @model_validator(mode="after")
    def _the_rest_suits_the_format(self) -> Topic:
        if self.key_schema is not None and self.key in (None, "raw", "string"):
            raise ValueError(f"key_schema is for keys with fields, and this topic's key is {self.key or 'not given'}")
        if self.key_schema == FROM_REGISTRY and self.key not in FRAMED:
            raise ValueError(f"key_schema: registry is for {', '.join(FRAMED)}, and this topic's key is {self.key}")
        if self.options and self.value not in WITH_OPTIONS:
            raise ValueError(f"options are for {', '.join(WITH_OPTIONS)}, and this topic's value is {self.value}")
        mode = self.options.get("mode")
        if mode is not None and str(mode).upper() not in PARSER_MODES:
            raise ValueError(f"the option mode is {' or '.join(PARSER_MODES)}: what does not fit becomes a dead letter")
        return self

    @property
    def timestamp_disorder_ms(self) -> int | None:
        """The timestamps' disorder in milliseconds, if it is stated."""
        return None if self.timestamp_disorder is None else interval_ms(self.timestamp_disorder)

    @property
    def needs_registry(self) -> bool:
        """Whether values or keys contain the id of a schema in a registry."""
        return self.value in FRAMED or self.key in FRAMED


class Registry(Model):
    """A schema registry with Confluent's interface."""

    url: Annotated[SecretText, Shown("text")] = Field(
        description="URL of the registry, such as `http://localhost:8081`"
    )
    username: Annotated[SecretText | None, Shown("text")] = Field(default=None, description="for basic authentication")
    password: Annotated[Password | None, Shown("secret")] = Field(default=None, description="for basic authentication")
    token: Annotated[Password | None, Shown("secret")] = Field(
        default=None, description="bearer token, instead of basic authentication"
    )
    ca: Annotated[str | None, Shown("path")] = Field(
        default=None, min_length=1, description="PEM file of the certificate authorities"
    )
    auto_register: bool = Field(
        default=True, description="register the schemas that stages write; `false` requires registered schemas"
    )

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> Registry:
        if self.token is not None and self.username is not None:
            raise ValueError("give either username and password or token")
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        return self
