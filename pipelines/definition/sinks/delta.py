"""A Delta table as a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from headwater.pipelines.definition.model import Columns, Model, OneOrMany, Options, Path, Shown
from headwater.pipelines.definition.partition_columns import partition_column
from headwater.pipelines.definition.places import PathOf, Place, normal_path
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.definition.sinks.model import SinkModel, Within
from headwater.pipelines.sql_text.shape import normal_expression

CLUSTER_COLUMNS_MAX = 4  # Delta's own limit


class Merge(Model):
    """Rows as changes of a table's rows."""

    keys: Columns = Field(description="columns whose values name one row of the table")
    sequence: Annotated[tuple[str, ...], OneOrMany(), Shown("list of columns")] = Field(
        default=(),
        description="columns that tell the later of two changes of one row, the most significant first; a change that "
        "is earlier than what the table has seen of its key, deletes among it, is passed over; the position at the "
        "source breaks ties. Without it, the order of arrival tells",
    )
    delete_when: Annotated[str | None, Shown("SQL expression", "never")] = Field(
        default=None, min_length=1, description="rows for which it is true delete their key's row"
    )
    scd: Literal[1, 2] = Field(
        default=1,
        description="1: the table holds the latest state of each key. 2: it holds every state, with `_valid_from` and "
        "`_valid_to` (values of the first sequence column) and `_current`",
    )

    @model_validator(mode="after")
    def _history_needs_a_sequence(self) -> Merge:
        if self.scd == 2 and len(self.sequence) != 1:
            raise ValueError("scd: 2 needs a sequence of one column, which says from when on a state is valid")
        return self


class DeltaSink(SinkModel):
    """Rows to a Delta table; each micro-batch is written once."""

    kind: ClassVar[str] = "delta"

    delta: Path = Field(description="folder of the table; made when it does not exist")
    partition_by: Annotated[tuple[str, ...], Shown("list of SQL expressions")] = Field(
        default=(), description="partition columns: a column, or `EXPRESSION AS name`"
    )
    cluster_by: Annotated[tuple[str, ...], Shown("list of columns")] = Field(
        default=(),
        max_length=CLUSTER_COLUMNS_MAX,
        description="columns of Delta's liquid clustering, instead of partitions; taken when the table is made",
    )
    merge: Annotated[Merge | None, Shown("merge", "rows are added")] = Field(
        default=None, description="take rows as changes of the table's rows"
    )
    merge_schema: bool = Field(
        default=True, description="columns that the table does not have are added to it; else they stop the stage"
    )
    properties: Options = Field(
        default_factory=dict, description="table properties, taken when the table is made: `delta.enableChangeDataFeed`"
    )

    @model_validator(mode="after")
    def _one_layout(self) -> DeltaSink:
        if self.partition_by and self.cluster_by:
            raise ValueError("a table has either partition_by or cluster_by")
        return self

    @property
    def place(self) -> Place:
        """The table's folder."""
        return "delta", normal_path(self.delta)

    def target(self, path: PathOf) -> str:
        """The table's folder."""
        return path(self.delta)

    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:
        """With its partitions, and what becomes of the rows that are there."""
        how = "replace" if is_complete else "append"
        if self.merge is not None:
            deletes = f", delete when {self.merge.delete_when}" if self.merge.delete_when else ""
            how = f"merge (SCD {self.merge.scd}) by {', '.join(self.merge.keys)}{deletes}"
        return SinkPlan(self.kind, path(self.delta), None, self.partition_by, "exactly-once", how)

    def record(self, path: PathOf) -> dict[str, Any]:
        """A table holds to its partitions, and to the keys and the order of its merge."""
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
        """Rows that are added; those that are merged or replaced stand once."""
        return None if self.merge is not None or is_complete else f"rows of the Delta table {path(self.delta)}"

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """Those of its merge."""
        return () if self.merge is None else self.merge.sequence

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition columns."""
        return tuple(partition_column(expression)[0] for expression in self.partition_by)

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """What makes the partitions, and what tells a delete."""
        for position, expression in enumerate(self.partition_by):
            yield ("partition_by", position), expression
        if self.merge is not None and self.merge.delete_when is not None:
            yield ("merge", "delete_when"), self.merge.delete_when

    def columns_named(self) -> Iterator[tuple[Within, tuple[str, ...], str]]:
        """Those of its merge, which may be partition columns as well."""
        if self.merge is not None:
            yield ("merge", "keys"), self.merge.keys, "the key"
            yield ("merge", "sequence"), self.merge.sequence, "the sequence"
