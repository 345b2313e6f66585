"""The interface of an input's model: the pure half of each kind, without Spark.

The reading half is in `headwater.pipelines.sources`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from headwater.pipelines.definition.addresses.places import PathOf, Place
from headwater.pipelines.definition.model import Column, Interval, Model, Name, Shown
from headwater.pipelines.definition.plan_entries import InputPlan

INPUT = "input"  # view of an input that has no name of its own, and of the rows between two steps


class Watermark(Model):
    """Event time column and allowed lateness; required by aggregations."""

    column: Column = Field(description="timestamp column with the event time")
    delay: Interval = Field(
        description="how far a row's event time may be behind the latest one, such as `10 minutes`",
    )

    def __str__(self) -> str:
        return f"{self.column}, {self.delay}"

    @model_validator(mode="before")
    @classmethod
    def _only_records_can_be_kept(cls, value: Any) -> Any:
        if isinstance(value, dict) and "late" in value and "late" not in cls.model_fields:
            raise ValueError("late is of an input that is a topic: what it keeps are records")
        return value


class Input(Model):
    """Common fields of every kind of input; `kind` is the field that identifies the kind in the file."""

    kind: ClassVar[str]

    alias: Name | None = Field(
        default=None,
        alias="as",
        description="name of the input's view in SQL; default: the topic's name, or `input` for other sources",
    )
    watermark: Annotated[Watermark | None, Shown("[watermark](#watermark)")] = Field(
        default=None, description="event time column and allowed lateness"
    )

    @property
    def name(self) -> str:
        """The name of the input's view."""
        return self.alias or INPUT

    @property
    @abstractmethod
    def place(self) -> Place | None:
        """The place that the input reads; None if no stage can write it."""

    @property
    def may_refuse(self) -> bool:
        """Whether undecodable rows are possible."""
        return False

    @abstractmethod
    def planned(self, path: PathOf, *, has_watermark: bool) -> InputPlan:
        """Return the plan's entry; `has_watermark` refers to the stage."""

    @abstractmethod
    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the deployment record without secrets: identity, row derivation, start, and all other fields."""

    def _plan(self, target: str, start: str, limit: str | None) -> InputPlan:
        watermark = str(self.watermark) if self.watermark else None
        return InputPlan(self.kind, target, self.name, start, limit, watermark)

    def _recorded(self, target: str, rows: Mapping[str, Any], start: str, *told: str) -> dict[str, Any]:
        """Assemble the record; the fields in `told` are covered by the other arguments."""
        rest = self.model_dump(mode="json", exclude={"alias", "watermark", *told})
        return {
            "kind": self.kind, "target": target, "name": self.name, "rows": dict(rows), "start": start, "more": rest
        }  # fmt: skip
