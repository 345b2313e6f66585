"""What an input of any kind tells of itself without Spark: the pure half of its kind.

The other half, which reads, is in `headwater.pipelines.sources`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from headwater.pipelines.definition.model import Column, Interval, Model, Name
from headwater.pipelines.definition.places import PathOf, Place
from headwater.pipelines.definition.plan_entries import InputPlan

INPUT = "input"  # view of an input that has no name of its own, and of the rows between two steps


class Watermark(Model):
    """Event time column and allowed lateness; required by aggregations."""

    column: Column = Field(description="timestamp column with the event time")
    delay: Interval = Field(
        description="how far a row's event time may be behind the latest one, such as `10 minutes`",
    )


class Input(Model):
    """What every kind of input has; its `kind` is the field that names it in the file."""

    kind: ClassVar[str]

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

    @property
    @abstractmethod
    def place(self) -> Place | None:
        """What it reads; None if no stage can write it."""

    @property
    def may_refuse(self) -> bool:
        """Whether rows may be such that nothing can be made of them."""
        return False

    @abstractmethod
    def planned(self, path: PathOf, *, has_watermark: bool) -> InputPlan:
        """Its entry in a plan; `has_watermark` if its stage has any."""

    @abstractmethod
    def record(self, path: PathOf) -> dict[str, Any]:
        """What identifies it, how its rows are made, where it starts, and what else is said of it: without secrets."""

    def _plan(self, target: str, start: str, limit: str | None) -> InputPlan:
        mark = self.watermark
        watermark = f"{mark.column}, {mark.delay}" if mark else None
        return InputPlan(self.kind, target, self.name, start, limit, watermark)

    def _recorded(self, target: str, rows: Mapping[str, Any], start: str, *told: str) -> dict[str, Any]:
        """`told` are the fields that the other arguments tell."""
        rest = self.model_dump(mode="json", exclude={"alias", "watermark", *told})
        return {
            "kind": self.kind, "target": target, "name": self.name, "rows": dict(rows), "start": start, "more": rest
        }  # fmt: skip
