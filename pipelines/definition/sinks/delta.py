"""A Delta table as a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from headwater.pipelines.columns import POSITION
from headwater.pipelines.definition.addresses.places import PathOf, Place, normal_path
from headwater.pipelines.definition.model import Columns, Model, OneOrMany, Options, Path, Shown
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
EXCEPTED = "* except "  # begins the text of a history that tracks all columns but some


def _as_track_history(value: Any) -> Any:
    """The mapping for which the file may give a list of columns, or one column."""
    if value == []:
        raise ValueError("it is empty: name the columns whose changes start a new state")
    return {"columns": value} if isinstance(value, str | list) else value


_COLUMN_LIST = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
_COLUMNS_SCHEMA = {"anyOf": [{"type": "string", "minLength": 1}, _COLUMN_LIST]}


class TrackHistory(Model):
    """The columns whose changes start a new state of a history: `columns`, or all but `excepted`."""

    columns: Columns | None = None
    excepted: Columns | None = Field(default=None, alias="except")

    @model_validator(mode="after")
    def _one_list(self) -> TrackHistory:
        if (self.columns is None) == (self.excepted is None):
            raise ValueError("track_history is either a list of columns or {except: list of columns}")
        return self

    def __str__(self) -> str:
        """For people, and for the record of a deployed stage: the order and the case of names do not matter."""
        names = ", ".join(sorted({name.lower() for name in self.columns or self.excepted or ()}))
        return f"{EXCEPTED}{names}" if self.columns is None else names


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
    columns: Annotated[Columns | None, Shown("list of columns", "all columns")] = Field(
        default=None,
        description="columns that the table stores. Keys, `sequence`, partition and cluster columns and the position"
        " at the source are always stored",
    )
    excepted: Annotated[Columns | None, Shown("list of columns")] = Field(
        default=None, alias="except", description="columns that the table does not store, instead of `columns`"
    )
    track_history: Annotated[
        TrackHistory | None,
        BeforeValidator(_as_track_history),
        WithJsonSchema({
            "anyOf": [
                *_COLUMNS_SCHEMA["anyOf"],
                {"type": "object", "properties": {"except": _COLUMNS_SCHEMA, "columns": _COLUMNS_SCHEMA},
                 "additionalProperties": False, "minProperties": 1, "maxProperties": 1},
            ]
        }),
        Shown("list of columns, or `{except: list of columns}`", "every change starts a state"),
    ] = Field(
        default=None,
        description="with `scd: 2`: columns whose changes start a new state. Other changes update the state in place",
    )  # fmt: skip

    @property
    def ordering_columns(self) -> tuple[str, ...]:
        """The columns that the table needs to place later changes."""
        return (*self.keys, *self.sequence, *POSITION)

    @model_validator(mode="after")
    def _one_list_of_columns(self) -> Merge:
        if self.columns is not None and self.excepted is not None:
            raise ValueError("a merge has either columns or except")
        if name := _common(self.excepted, self.ordering_columns):
            raise ValueError(f"except names {name}, which the merge needs: a later change is compared with it")
        return self

    @model_validator(mode="after")
    def _tracked_columns_are_stored(self) -> Merge:
        tracked = self.track_history
        if tracked is None:
            return self
        if self.scd != 2:
            raise ValueError("track_history needs scd: 2: the latest state of each key has no history")
        if name := _common(tracked.columns, self.excepted):
            raise ValueError(f"track_history names {name}, which except leaves out of the table")
        return self

    @model_validator(mode="after")
    def _history_needs_a_sequence(self) -> Merge:
        if self.scd == 2 and len(self.sequence) != 1:
            raise ValueError("scd: 2 requires a sequence of one column, which gives the start of each state")
        return self


def _common(some: tuple[str, ...] | None, others: tuple[str, ...] | None) -> str | None:
    """The first of some names that is one of the others; Spark compares names without case."""
    known = {name.lower() for name in others or ()}
    return next((name for name in some or () if name.lower() in known), None)


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

    @model_validator(mode="after")
    def _what_the_merge_names_is_stored(self) -> DeltaSink:
        merge = self.merge
        if merge is None:
            return self
        if name := _common(merge.excepted, self.layout):
            raise ValueError(f"except names {name}, which is a column of partition_by or cluster_by")
        tracked = merge.track_history
        if merge.columns is not None and tracked is not None:
            stored = {name.lower() for name in (*merge.columns, *merge.ordering_columns, *self.layout)}
            if name := next((name for name in tracked.columns or () if name.lower() not in stored), None):
                raise ValueError(f"track_history names {name}, which is none of the columns that the table stores")
        return self

    @property
    def layout(self) -> tuple[str, ...]:
        """The partition or cluster columns."""
        return (*self.partitions, *self.cluster_by)

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
            how += f", columns {', '.join(self.merge.columns)}" if self.merge.columns else ""
            how += f", all columns except {', '.join(self.merge.excepted)}" if self.merge.excepted else ""
            how += f", history of {self.merge.track_history}" if self.merge.track_history else ""
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
            if self.merge.track_history is not None:  # records of earlier releases have no such entry
                kept["merge"]["track_history"] = str(self.merge.track_history)
            more["delete_when"] = self.merge.delete_when
            more["columns"] = _recorded(self.merge.columns)
            more["except"] = _recorded(self.merge.excepted)
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
        """The columns that the layout and the merge name, and the positions by which later changes are placed."""
        merge = self.merge
        if merge is None:
            return self.layout
        tracked = merge.track_history.columns if merge.track_history is not None else None
        named = (*merge.keys, *merge.sequence, *(merge.columns or ()), *(tracked or ()))
        return (*self.layout, *named, *(POSITION if merge.sequence else ()))

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
            yield ("merge", "columns"), self.merge.columns or (), "the column"
            if (tracked := self.merge.track_history) is not None:
                yield ("merge", "track_history"), tracked.columns or (), "the column"

    def columns_excepted(self) -> Iterator[tuple[Within, tuple[str, ...]]]:
        """Yield the columns that the merge leaves out or does not track."""
        if self.merge is not None:
            yield ("merge", "except"), self.merge.excepted or ()
            if (tracked := self.merge.track_history) is not None:
                yield ("merge", "track_history", "except"), tracked.excepted or ()


def _recorded(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else sorted(name.lower() for name in names)
