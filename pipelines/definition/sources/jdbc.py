"""A database table as an input. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from headwater.pipelines.definition.addresses.places import PathOf, Place
from headwater.pipelines.definition.model import Column, Interval, Shown
from headwater.pipelines.definition.plan_entries import InputPlan
from headwater.pipelines.definition.sources.model import Input
from headwater.pipelines.definition.tables import JdbcAddress


class JdbcSource(JdbcAddress, Input):
    """Rows of a database table whose increasing column is above the values read before."""

    kind: ClassVar[str] = "jdbc"

    table: Annotated[str, Shown("text")] = Field(min_length=1, description="table name, with its schema if necessary")
    increment: Column = Field(
        description="column that increases with each new row, such as a serial number or an insertion time. A "
        "row inserted later with a value at or below the last one read is not read"
    )
    start: str | int | None = Field(default=None, description="read only rows with a higher value")
    poll: Interval = Field(default="10 seconds", description="how often a continuous run queries for new rows")

    @property
    def place(self) -> Place | None:
        """The table with its database's name; None if the URL does not determine the database."""
        return self.jdbc.place(self.table)

    def planned(self, path: PathOf, *, has_watermark: bool) -> InputPlan:  # noqa: ARG002
        """Return the plan's entry, with the redacted URL and the start."""
        start = f"{self.increment} > {self.start}" if self.start is not None else f"the lowest {self.increment}"
        return self._plan(f"{self.table} of {self.jdbc}", start, None)

    def record(self, path: PathOf) -> dict[str, Any]:  # noqa: ARG002
        """Return the record; `increment` determines the rows, and a hash of its name identifies the database."""
        hidden = ("jdbc", "table", "increment", "start", "username", "password")
        where, rows = f"{self.table} of {self.jdbc}", {"increment": self.increment}
        return {**self._recorded(where, rows, str(self.start), *hidden), "database": self.jdbc.database}
