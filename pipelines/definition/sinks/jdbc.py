"""A database table as a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from headwater.pipelines.definition.addresses.places import PathOf, Place
from headwater.pipelines.definition.model import OneOrMany, Shown
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.definition.sinks.model import SinkModel, Within
from headwater.pipelines.definition.sinks.underscore_columns import UnderscoreColumns
from headwater.pipelines.definition.tables import JdbcAddress


class JdbcSink(JdbcAddress, SinkModel):
    """Writes rows to a database table; each micro-batch is written once, in one transaction."""

    kind: ClassVar[str] = "jdbc"

    table: Annotated[str, Shown("text")] = Field(
        min_length=1, description="table name; the first micro-batch creates a missing table"
    )
    keys: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(),
        description="columns of the key. A row replaces the row with its key; without `keys`, rows are appended",
    )
    sequence: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(),
        description="columns that order the rows of a key, as `sequence` of a [merge](#merge)",
    )
    delete_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None,
        min_length=1,
        description="condition for deletes: a matching row deletes the row with its key. Requires `keys`",
    )
    underscore_columns: UnderscoreColumns = "keep"

    @model_validator(mode="after")
    def _deletes_need_keys(self) -> JdbcSink:
        if not self.keys and (self.delete_when is not None or self.sequence):
            raise ValueError("delete_when and sequence need keys")
        return self

    @property
    def place(self) -> Place | None:
        """The table with its database's name; None if the URL does not determine the database."""
        return self.jdbc.place(self.table)

    def target(self, path: PathOf) -> str:  # noqa: ARG002 - it has none
        """Return the table and the redacted URL."""
        return f"{self.table} of {self.jdbc}"

    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:  # noqa: ARG002
        """Return the plan's entry, with the keys of an upsert."""
        how = f"upsert by {', '.join(self.keys)}" if self.keys else "append"
        return SinkPlan(self.kind, self.target(path), None, (), "exactly-once", how, self.when)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the record; keys and sequence are fixed for an existing table."""
        more = self._more("jdbc", "table", "keys", "sequence", "username", "password")
        kept = {name: [each.lower() for each in getattr(self, name)] for name in ("keys", "sequence")}
        where = {"target": self.target(path), "database": self.jdbc.database}
        return {"kind": self.kind, **where, "kept": kept, "more": more}

    def written_twice(self, path: PathOf, *, is_complete: bool) -> str | None:  # noqa: ARG002
        """Return the appended rows; rows with keys are not duplicated."""
        return None if self.keys or is_complete else f"rows of {self.table}"

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The columns of `sequence`."""
        return self.sequence

    @property
    def columns_kept(self) -> tuple[str, ...]:
        """Its keys and its sequence."""
        return (*self.keys, *self.sequence)

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """Yield the delete condition."""
        yield from super().expressions()
        if self.delete_when is not None:
            yield ("delete_when",), self.delete_when

    def columns_named(self) -> Iterator[tuple[Within, tuple[str, ...], str]]:
        """Yield the keys."""
        yield ("keys",), self.keys, "the key"

    def refuses_complete(self) -> tuple[str, str] | None:
        """Refuse a table without keys: its rows are never replaced."""
        return None if self.keys else ("a table without keys", "write to a Delta table, or give keys")
