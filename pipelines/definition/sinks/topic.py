"""A topic as a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from headwater.pipelines.definition.addresses.places import PathOf, Place
from headwater.pipelines.definition.model import Expression, Shown, TopicName
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.definition.sinks.model import SinkModel, Within

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class TopicSink(SinkModel):
    """Writes rows to a topic."""

    kind: ClassVar[str] = "topic"

    topic: TopicName = Field(description="topic to write to")
    key: Annotated[str | None, Shown("SQL expression", "no key")] = Field(
        default=None,
        min_length=1,
        description="record key, written as text unless the topic declares a key format. Records are "
        "partitioned by key, as by Kafka's Java client",
    )
    value: Annotated[str | None, Shown("SQL expression", "all columns in the topic's format")] = Field(
        default=None,
        min_length=1,
        description="record value. Binary values are written unchanged, structs as JSON, other types as text",
    )
    headers: dict[str, Expression] = Field(
        default_factory=dict, description="header names, each with a SQL expression; a null value omits the header"
    )
    timestamp: Annotated[str | None, Shown("SQL expression", "the time of writing")] = Field(
        default=None,
        min_length=1,
        description="record timestamp, from which `retention.ms` counts: old event times expire at once",
    )
    tombstone_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None,
        min_length=1,
        description="condition for tombstones: a matching row is written with a null value, which deletes its "
        "key from a compacted topic. Requires `key`",
    )
    compression: Compression = Field(
        default="none",
        description="compression of the record batches, as Kafka's `compression.type`",
    )
    guarantee: Guarantee = Field(
        default="exactly_once",
        description="`at_least_once` may write records twice if a micro-batch is repeated after a crash",
    )

    @model_validator(mode="after")
    def _a_tombstone_has_a_key(self) -> TopicSink:
        if self.tombstone_when is not None and self.key is None:
            raise ValueError("tombstone_when needs a key: a tombstone deletes one")
        return self

    @property
    def place(self) -> Place:
        """The topic."""
        return "topic", self.topic

    def target(self, path: PathOf) -> str:  # noqa: ARG002 - it has none
        """Return the topic's name."""
        return self.topic

    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:  # noqa: ARG002
        """Return the plan's entry, with key and guarantee; every result is an additional record."""
        return SinkPlan(self.kind, self.topic, self.key, (), self.guarantee.replace("_", "-"), when=self.when)

    def record(self, path: PathOf) -> dict[str, Any]:  # noqa: ARG002
        """Return the record; no property is fixed for an existing topic."""
        return {"kind": self.kind, "target": self.topic, "kept": {}, "more": self._more("topic")}

    def written_twice(self, path: PathOf, *, is_complete: bool) -> str:  # noqa: ARG002
        """Return the topic's records."""
        return f"records of topic {self.topic}"

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """Yield the expressions of the record's parts."""
        yield from super().expressions()
        for name in ("key", "value", "timestamp", "tombstone_when"):
            if getattr(self, name) is not None:
                yield (name,), getattr(self, name)
        for header, expression in self.headers.items():
            yield ("headers", header), expression
