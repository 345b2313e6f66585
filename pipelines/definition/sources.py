"""`from:`: what a stage reads. Pure."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, PlainValidator, Tag, WithJsonSchema, model_validator

from headwater.pipelines.definition.model import Column, Interval, Model, Name, Options, Path, Shown, TopicName, kind_of
from headwater.pipelines.definition.tables import FileFormat, JdbcAddress

RATE_MAX = 10_000_000  # rows a second that Spark's own source is asked for
INPUT = "input"  # view of an input that has no name of its own, and of the rows between two steps

_FIRST, _NEXT = -2, -1  # Kafka's own numbers for the first and the next offset

Offsets: TypeAlias = str | Mapping[int, int] | dt.datetime


def starting_offsets(value: Any) -> Offsets:
    """Where to begin: `earliest`, `latest`, a moment, or an offset for each partition.

    >>> starting_offsets({"0": 17, "1": -2})
    {0: 17, 1: -2}
    >>> starting_offsets("2026-01-01T00:00:00Z").isoformat()
    '2026-01-01T00:00:00+00:00'
    """
    if value in ("earliest", "latest"):
        return str(value)
    if isinstance(value, dict):
        return _by_partition(value)
    return moment(value)


def _by_partition(value: dict[Any, Any]) -> dict[int, int]:
    if not value:
        raise ValueError("give an offset for each partition, such as {0: 17, 1: 3}")
    found: dict[int, int] = {}
    for partition, offset in value.items():
        if not re.fullmatch(r"\d{1,9}", str(partition)):
            raise ValueError(f"'{partition}' is not the number of a partition")
        if isinstance(offset, bool) or not re.fullmatch(r"-?\d{1,18}", str(offset)) or int(offset) < _FIRST:
            raise ValueError(f"{offset!r} is not an offset (-2 is the first, -1 the next)")
        found[int(partition)] = int(offset)
    return found


def moment(value: Any) -> dt.datetime:
    """A moment in ISO 8601; without an offset it is UTC."""
    found = value
    if isinstance(value, str):
        try:
            found = dt.datetime.fromisoformat(value)
        except ValueError:
            found = None
    elif isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        found = dt.datetime.combine(value, dt.time())
    if not isinstance(found, dt.datetime):
        raise ValueError(f"{value!r} is neither earliest, latest, offsets by partition, nor a moment in ISO 8601")
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


StartingOffsets: TypeAlias = Annotated[
    str | Mapping[int, int] | dt.datetime,
    PlainValidator(starting_offsets),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "integer"}}]}),
    Shown("`earliest`, `latest`, {partition: offset}, moment"),
]
Moment: TypeAlias = Annotated[dt.datetime, PlainValidator(moment), WithJsonSchema({"type": "string"}), Shown("moment")]


class Watermark(Model):
    """Event time column and allowed lateness; required by aggregations."""

    column: Column = Field(description="timestamp column with the event time")
    delay: Interval = Field(
        description="how far a row's event time may be behind the latest one, such as `10 minutes`",
    )


class Input(Model):
    """Fields of every source."""

    alias: Name | None = Field(
        default=None,
        alias="as",
        description="name of the input's view in SQL; default: the topic's name, or `input` for other sources",
    )
    watermark: Watermark | None = Field(default=None, description="event time column and allowed lateness")

    @property
    def name(self) -> str:
        """The name of its view."""
        return self.alias or INPUT


class TopicSource(Input):
    """Records of a topic."""

    topic: TopicName = Field(description="a declared topic, the output of a stage, or an existing topic")
    event: Annotated[str | None, Shown("name", "all of them")] = Field(
        default=None,
        min_length=1,
        description="read only this event type of a topic with `events`; its fields are the columns",
    )
    envelope: Literal["debezium"] | None = Field(
        default=None,
        description="format of change events. The columns are those of the row after the change (for a delete, "
        "before it), plus `_op` (`c`, `u`, `d`, `r`) and `_sequence` (time of the change at the "
        "source, in ms)",
    )
    starting_offsets: StartingOffsets = Field(
        default="earliest", description="start position if the stage has no checkpoint"
    )
    max_offsets_per_trigger: Annotated[int | None, Shown("number", "500,000; none with a watermark")] = Field(
        default=None,
        ge=1,
        description="maximum number of records in a micro-batch, divided among the partitions by backlog",
    )
    min_offsets_per_trigger: int | None = Field(
        default=None,
        ge=1,
        description="minimum number of records before a micro-batch starts, unless `max_trigger_delay` has passed",
    )
    max_trigger_delay: Annotated[Interval | None, Shown("interval", "15 minutes")] = Field(
        default=None, description="maximum wait for `min_offsets_per_trigger`"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed", description="`read_committed` excludes records of open and aborted transactions"
    )
    fail_on_data_loss: bool = Field(
        default=True,
        description="fail the stage if unread records were deleted; `false` continues with the next record",
    )

    @model_validator(mode="after")
    def _a_change_is_no_event_type(self) -> TopicSource:
        if self.event is not None and self.envelope is not None:
            raise ValueError("give either event or envelope")
        return self

    @model_validator(mode="after")
    def _the_least_is_no_more_than_the_most(self) -> TopicSource:
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_offsets_per_trigger ({least}) is more than max_offsets_per_trigger ({most})")
        return self

    @property
    def name(self) -> str:
        """The name of its view."""
        return self.alias or self.topic

    def starting_option(self) -> tuple[str, str]:
        """Name and value of the data source's option that says where to begin.

        >>> TopicSource(topic="t", starting_offsets={"0": 5}).starting_option()
        ('startingOffsets', '{"t": {"0": 5}}')
        """
        start = self.starting_offsets
        if isinstance(start, str):
            return "startingOffsets", start
        if isinstance(start, dt.datetime):
            return "startingTimestamp", str(int(start.timestamp() * 1000))
        return "startingOffsets", json.dumps({self.topic: {str(p): offset for p, offset in start.items()}})


class DeltaSource(Input):
    """Rows added to a Delta table, or its change data feed."""

    delta: Path = Field(
        description="folder of the table. A table that another stage writes is read after that stage has run"
    )
    changes: bool = Field(
        default=False,
        description="read the change data feed, with the columns `_change_type`, `_commit_version` and "
        "`_commit_timestamp`. Requires the table property `delta.enableChangeDataFeed`",
    )
    starting_version: Annotated[int | None, Shown("number", "the table as it is")] = Field(
        default=None, ge=0, description="first version whose changes are read"
    )
    starting_timestamp: Moment | None = Field(
        default=None, description="read the versions committed at or after this moment"
    )
    max_files_per_trigger: Annotated[int | None, Shown("number", "1,000")] = Field(
        default=None, ge=1, description="maximum number of files in a micro-batch"
    )
    skip_change_commits: bool = Field(
        default=False, description="skip commits that update or delete rows; `false` fails the stage at such a commit"
    )

    @model_validator(mode="after")
    def _one_start(self) -> DeltaSource:
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("give either starting_version or starting_timestamp")
        if self.changes and self.skip_change_commits:
            raise ValueError("skip_change_commits leaves out what changes: true reads")
        return self


class FilesSource(Input):
    """New files of a folder."""

    files: Path = Field(description="folder, or a pattern such as `in/*.json`, on any Hadoop file system")
    format: FileFormat = Field(description="file format")
    schema_source: Annotated[str | None, Shown("path, columns", "found in the files there are")] = Field(
        default=None,
        alias="schema",
        min_length=1,
        description="schema file, or columns in SQL: `id BIGINT, name STRING`",
    )
    max_files_per_trigger: int | None = Field(
        default=None, ge=1, description="maximum number of files in a micro-batch"
    )
    options: Options = Field(
        default_factory=dict, description="options of Spark's reader. `header` is `true` by default for CSV"
    )


class JdbcSource(JdbcAddress, Input):
    """Rows of a database table whose increasing column is above the values read before."""

    table: Annotated[str, Shown("text")] = Field(min_length=1, description="table name, with its schema if necessary")
    increment: Column = Field(
        description="column that increases with each new row, such as a serial number or an insertion time. A "
        "row inserted later with a value at or below the last one read is not read"
    )
    start: str | int | None = Field(default=None, description="read only rows with a higher value")
    poll: Interval = Field(default="10 seconds", description="how often a continuous run queries for new rows")


class RateSource(Input):
    """Rows generated by Spark for tests, with the columns `timestamp` and `value`."""

    rate: int = Field(ge=1, le=RATE_MAX, description="rows per second")


Source: TypeAlias = Annotated[
    Annotated[TopicSource, Tag("topic")]
    | Annotated[DeltaSource, Tag("delta")]
    | Annotated[FilesSource, Tag("files")]
    | Annotated[JdbcSource, Tag("jdbc")]
    | Annotated[RateSource, Tag("rate")],
    Discriminator(
        kind_of("topic", "delta", "files", "jdbc", "rate"),
        custom_error_type="kind",
        custom_error_message="a source names one of topic, delta, files, jdbc, rate",
    ),
]
