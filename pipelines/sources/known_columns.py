"""The known columns of the inputs, tables and sinks of stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.pipelines.formats import ValueColumns, format_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headwater.pipelines.definition import Topic


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """Known columns, immutable: `dataclasses.replace` adds further columns.

    Attributes:
        topics: The declared topics, by name.
        values: Columns of topics' values, by topic.
        events: Columns of values in topics with several event types, by topic and event type.
        tables: Columns of tables, by name.
        inputs: Columns of each input other than a topic, by stage and position.
        stored: Columns of the Delta tables that stages write, by path.
        keys: Columns of keys in formats with fields, by topic.
    """

    topics: Mapping[str, Topic]
    values: Mapping[str, ValueColumns] = field(default_factory=dict)
    events: Mapping[str, Mapping[str, ValueColumns]] = field(default_factory=dict)
    tables: Mapping[str, StructType] = field(default_factory=dict)
    inputs: Mapping[tuple[str, int], StructType] = field(default_factory=dict)
    stored: Mapping[str, StructType] = field(default_factory=dict)
    keys: Mapping[str, ValueColumns] = field(default_factory=dict)

    def value_format(self, topic: str) -> str:
        """The `value:` of a topic; an undeclared topic is raw."""
        return self.topics[topic].value if topic in self.topics else "raw"

    def decode(self, records: DataFrame, topic: str) -> DataFrame:
        """Records of a topic with the value's columns, `columns.ORIGIN` and `columns.ERROR`."""
        return format_of(self.value_format(topic)).decode(records, self.values.get(topic, ValueColumns()))

    def has_columns(self, topic: str) -> bool:
        """Whether the columns of a topic are known; text and bytes always have the same columns."""
        return self.value_format(topic) in ("raw", "string") or topic in self.values or topic in self.events
