"""A Delta table as a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from headwater.pipelines.definition.model import Columns, Model, OneOrMany, Options, Path, Shown
from headwater.pipelines.definition.places import PathOf, Place, normal_path
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.definition.sinks.model import SinkModel, Within
from headwater.pipelines.definition.sinks.partition_columns import (
    PartitionBy,
    partition_expressions,
    partition_names,
)
from headwater.pipelines.definition.sinks.underscore_columns import UnderscoreColumns
from headwater.pipelines.sql_text.shape import normal_expression

CLUSTER_COLUMNS_MAX = 4  # Delta's own limit


class Merge(Model):
    """Merges rows into a table by key."""

    keys: Columns = Field(description="columns that identify a row of the table")
    sequence: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(),
        description="columns that order the changes of a row, most significant first. A change that is older "
        "than the last change of its key, including deletes, is skipped. The position at the source"
        " breaks ties. Default: order of arrival",
    )
    delete_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None, min_length=1, description="condition for deletes: a matching row deletes the row with its key"
    )
    scd: Literal[1, 2] = Field(
        default=1,
        description="`1`: the table holds the latest state of each key. `2`: the table holds every state, with "
        "`_valid_from` and `_valid_to` (values of the first `sequence` column) and `_current`",
    )

    @model_validator(mode="after")
    def _history_needs_a_sequence(self) -> Merge:
        if self.scd == 2 and len(self.sequence) != 1:
            raise ValueError("scd: 2 requires a sequence of one column, which gives the start of each state")
        return self


class DeltaSink(SinkModel):
    """Writes rows to a Delta table; each micro-batch is written once."""

    kind: ClassVar[str] = "delta"

    delta: Path = Field(description="folder of the table; created if it does not exist")
    partition_by: PartitionBy = Field(
        default=(), description="partition columns, each a column or `EXPRESSION AS name`"
    )
    cluster_by: Annotated[tuple[str, ...], Shown("list of columns")] = Field(
        default=(),
        max_length=CLUSTER_COLUMNS_MAX,
        description="columns of Delta's liquid clustering, instead of partitions. Applied when the table is created",
    )
    merge: Annotated[Merge | None, Shown("merge", "rows are added")] = Field(
        default=None, description="merge rows into the table by key"
    )
    merge_schema: bool = Field(
        default=True, description="add new columns to the table; `false` fails the stage at a new column"
    )
    properties: Options = Field(
        default_factory=dict,
        description="table properties, such as `delta.enableChangeDataFeed`. Applied when the table is created",
    )
    underscore_columns: UnderscoreColumns = "keep"

    @model_validator(mode="after")
    def _one_layout(self) -> DeltaSink:
        if self.partition_by and self.cluster_by:
            raise ValueError("a table has either partition_by or cluster_by")
        return self

    @property
    def place(self) -> Place:
        """The table by its folder."""
        return "delta", normal_path(self.delta)

    def target(self, path: PathOf) -> str:
        """Return the table's folder."""
        return path(self.delta)

    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:
        """Return the plan's entry, with the partitions and the write mode."""
        how = "replace" if is_complete else "append"
        if self.merge is not None:
            deletes = f", delete when {self.merge.delete_when}" if self.merge.delete_when else ""
            how = f"merge (SCD {self.merge.scd}) by {', '.join(self.merge.keys)}{deletes}"
        return SinkPlan(self.kind, path(self.delta), None, self.partition_by, "exactly-once", how, self.when)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the record; partitions, merge keys, sequence and SCD type are fixed for an existing table."""
        kept: dict[str, Any] = {"partition_by": [normal_expression(text) for text in self.partition_by], "merge": None}
        more = self._more("delta", "partition_by", "merge")
        if self.merge is not None:
            kept["merge"] = {
                "keys": [name.lower() for name in self.merge.keys],
                "sequence": [name.lower() for name in self.merge.sequence],
                "scd": self.merge.scd,
            }
            more["delete_when"] = self.merge.delete_when
        return {"kind": self.kind, "target": path(self.delta), "kept": kept, "more": more}

    def written_twice(self, path: PathOf, *, is_complete: bool) -> str | None:
        """Return the appended rows; merged and replaced rows are not duplicated."""
        return None if self.merge is not None or is_complete else f"rows of the Delta table {path(self.delta)}"

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The sequence columns of the merge."""
        return () if self.merge is None else self.merge.sequence

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition columns."""
        return partition_names(self.partition_by)

    @property
    def columns_kept(self) -> tuple[str, ...]:
        """Those of its partitions, clusters and merge."""
        merged = () if self.merge is None else (*self.merge.keys, *self.merge.sequence)
        return (*self.partitions, *self.cluster_by, *merged)

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """Yield the expressions of the partitions and the delete condition."""
        yield from super().expressions()
        yield from partition_expressions(self.partition_by)
        if self.merge is not None and self.merge.delete_when is not None:
            yield ("merge", "delete_when"), self.merge.delete_when

    def columns_named(self) -> Iterator[tuple[Within, tuple[str, ...], str]]:
        """Yield keys and sequence of the merge; partition columns are allowed among them."""
        if self.merge is not None:
            yield ("merge", "keys"), self.merge.keys, "the key"
            yield ("merge", "sequence"), self.merge.sequence, "the sequence"
