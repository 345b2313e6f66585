"""Encodes stages' rows as a topic's keys and values; the driver requests the ids of their schemas.

An `Encoding` is created when a stage is analysed. Its schemas are registered, or looked up, once, before the first
written micro-batch: a dry run changes nothing in a registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.pipelines.formats import ValueColumns, format_of
from headwater.pipelines.formats.registry_client import AVRO, JSON, PROTOBUF, Connection, RegistryError, client_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from headwater.pipelines.formats.framed_tasks import Writer

SCHEMA_TYPES = {"avro": AVRO, "protobuf": PROTOBUF, "json_schema": JSON}


@dataclass(slots=True)
class RegisteredPart:
    """The registry schema of a topic's keys or values: `writer` contains its text. `id` is known after `ready`."""

    writer: Writer
    subject: str
    connection: Connection
    auto_register: bool
    id: int | None = None

    def ready(self) -> int:
        """Return the schema's id, registered or looked up on the first call. Raises RegistryError."""
        if self.id is None:
            client, text = client_of(self.connection), self.writer.schema.text
            kind = SCHEMA_TYPES[self.writer.format]
            try:
                if self.auto_register:
                    self.id = client.register(self.subject, kind, text)
                else:
                    self.id = client.look_up(self.subject, kind, text)
            except RegistryError as error:
                what = f"the schema of the topic '{self.writer.topic}' (subject {self.subject})"
                raise RegistryError(f"{what} cannot be used: {error}") from None
        return self.id


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of one topic. `wanted` holds the declared columns of its values, if any."""

    topic: str
    value_format: str
    wanted: ValueColumns = field(default_factory=ValueColumns)
    value_part: RegisteredPart | None = None
    key_format: str | None = None
    key_part: RegisteredPart | None = None

    def ready(self) -> None:
        """Request the ids of the schemas. Raises RegistryError."""
        for part in (self.value_part, self.key_part):
            if part is not None:
                part.ready()

    def value(self, rows: DataFrame) -> Column:
        """Encode all data columns of rows as values. Raises ValueError if the rows do not fit."""
        part = self.value_part
        if self.value_format in SCHEMA_TYPES:
            assert part is not None, "an analysis has found the schema"
            if self.value_format == "json_schema":
                return self._json(format_of("json_schema").encode(rows, self.wanted), part)
            from headwater.pipelines.formats import framed

            return framed.encode(framed.row_of(rows, part.writer), part.writer, _id(part))
        return format_of(self.value_format).encode(rows, self.wanted)

    def value_of(self, column: Column, kind: DataType) -> Column | None:
        """Encode a struct as a value of the topic's schema; None for other types, or if the topic has no schema."""
        from pyspark.sql.types import StructType

        if self.value_part is None or not isinstance(kind, StructType):
            return None
        return self._framed(column, kind, self.value_format, self.value_part)

    def key(self, column: Column, kind: DataType) -> Column | None:
        """Encode a key in the topic's format; None if keys are plain text. Raises ValueError if it does not fit."""
        from pyspark.sql.types import BinaryType

        if self.key_format in SCHEMA_TYPES:
            assert self.key_part is not None, "an analysis has found the schema"
            return self._framed(column, kind, self.key_format, self.key_part)
        if self.key_format == "json":
            return _json_text(column, kind).cast("binary")
        if self.key_format == "raw" and not isinstance(kind, BinaryType):
            raise ValueError(f"the keys of '{self.topic}' are raw, and the key is {kind.simpleString()}: give bytes")
        return None

    def _framed(self, column: Column, kind: DataType, value_format: str | None, part: RegisteredPart) -> Column:
        from headwater.pipelines.formats import framed
        from headwater.pipelines.formats.fitting import fitted

        if value_format == "json_schema":
            return self._json(_json_text(column, kind).cast("binary"), part)
        name = part.writer.part
        fit = fitted(column, kind, framed.spark_type(framed.row_type(part.writer)), name)
        return framed.encode(fit, part.writer, _id(part))

    @staticmethod
    def _json(text: Column, part: RegisteredPart) -> Column:
        from headwater.pipelines.formats import framed_json

        return framed_json.framed(text, _id(part))


def plain(value_format: str, topic: str = "") -> Encoding:
    """Return the encoding of a topic whose values need no schema."""
    return Encoding(topic, value_format)


def _id(part: RegisteredPart) -> int:
    """Return the schema's id; 0 during the analysis."""
    return 0 if part.id is None else part.id


def _json_text(column: Column, kind: Any) -> Column:
    """Return a value as JSON; null remains null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType | ArrayType | MapType):
        return f.to_json(column)
    # Spark writes structures only: the brackets of a list of one are taken off again.
    text = f.to_json(f.array(column))
    return f.when(column.isNotNull(), text.substr(f.lit(2), f.length(text) - 2))
