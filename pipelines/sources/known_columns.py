"""The columns of everything that stages read and write, as far as they are known."""

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
    """A value: whoever learns of more columns makes another one by `dataclasses.replace`.

    Attributes:
        topics: The declared topics, by name.
        values: Columns of topics' values, by topic.
        events: The same of topics with several event types, by topic and event type.
        tables: Columns of tables, by name.
        inputs: Columns of each input that is no topic, by stage and position.
        stored: Columns of the Delta tables that stages write, by path.
        keys: Columns of keys that have a format with fields, by topic.
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
        """Whether the columns of a topic are known: text and bytes have the same everywhere."""
        return self.value_format(topic) in ("raw", "string") or topic in self.values or topic in self.events
