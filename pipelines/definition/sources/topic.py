"""A topic as an input. Pure."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator

from headwater.pipelines.definition.addresses.places import PathOf, Place
from headwater.pipelines.definition.model import Interval, Shown, TopicName
from headwater.pipelines.definition.plan_entries import InputPlan
from headwater.pipelines.definition.sources.model import Input, Watermark
from headwater.pipelines.definition.sources.moments import moment

# A batch is persisted while it is written; half a million records of 1 KiB are 500 MiB, mostly on disk by then.
MAX_OFFSETS_PER_TRIGGER = 500_000

_FIRST, _NEXT = -2, -1  # Kafka's own numbers for the first and the next offset

Offsets: TypeAlias = str | Mapping[int, int] | dt.datetime


def starting_offsets(value: Any) -> Offsets:
    """Parse the start: `earliest`, `latest`, a timestamp, or an offset for each partition.

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


StartingOffsets: TypeAlias = Annotated[
    str | Mapping[int, int] | dt.datetime,
    PlainValidator(starting_offsets),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "integer"}}]}),
    Shown("`earliest`, `latest`, {partition: offset}, moment"),
]


class TopicWatermark(Watermark):
    """The watermark of a topic, whose late records can be kept."""

    late: TopicName | None = Field(
        default=None,
        description="topic for the records of late rows, which are dropped otherwise. Only for inputs that are topics",
    )

    def __str__(self) -> str:
        return super().__str__() + (f", late records to {self.late}" if self.late else "")


class TopicSource(Input):
    """Records of a topic."""

    kind: ClassVar[str] = "topic"

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
    watermark: TopicWatermark | None = Field(default=None, description="event time column and allowed lateness")
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
        """The name of the input's view."""
        return self.alias or self.topic

    def starting_option(self) -> tuple[str, str]:
        """Return name and value of the data source's option for the start.

        >>> TopicSource(topic="t", starting_offsets={"0": 5}).starting_option()
        ('startingOffsets', '{"t": {"0": 5}}')
        """
        start = self.starting_offsets
        if isinstance(start, str):
            return "startingOffsets", start
        if isinstance(start, dt.datetime):
            return "startingTimestamp", str(int(start.timestamp() * 1000))
        return "startingOffsets", json.dumps({self.topic: {str(p): offset for p, offset in start.items()}})

    @property
    def place(self) -> Place:
        """The topic."""
        return "topic", self.topic

    @property
    def may_refuse(self) -> bool:
        """Whether undecodable records are possible: always."""
        return True

    def offsets_per_trigger(self, *, has_watermark: bool) -> int | None:
        """Return the maximum number of records of a micro-batch; None reads the whole backlog at once.

        A stage with a watermark reads its backlog at once unless the file sets a limit. The watermark advances between
        micro-batches, and partitions whose keys have unlike rates do not reach one event time together; a limit would
        make rows of the slower partitions late. Aggregations hold state instead of rows, so a large batch needs no
        additional memory.
        """
        if self.max_offsets_per_trigger is not None:
            return self.max_offsets_per_trigger
        return None if has_watermark else MAX_OFFSETS_PER_TRIGGER

    def planned(self, path: PathOf, *, has_watermark: bool) -> InputPlan:  # noqa: ARG002 - it has none
        """Return the plan's entry, with the start and the limit of a micro-batch."""
        limit = self.offsets_per_trigger(has_watermark=has_watermark)
        return self._plan(self.topic, self.shown_start(), None if limit is None else f"{limit:,} records")

    def record(self, path: PathOf) -> dict[str, Any]:  # noqa: ARG002
        """Return the record; event type and envelope determine the rows. The topic's declaration has its own record."""
        made = {"event": self.event, "envelope": self.envelope}
        return self._recorded(self.topic, made, self.shown_start(), "topic", "starting_offsets", *made)

    def shown_start(self) -> str:
        """Return the start as written in the file."""
        start = self.starting_offsets
        if isinstance(start, str):
            return start
        return start.isoformat() if isinstance(start, dt.datetime) else json.dumps(dict(start))
