"""`tests:`: input rows of a stage, and its expected output. Pure; `headwater pipeline test` runs them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from headwater.pipelines.definition.model import Model, Name, OneOrMany, Shown

ROWS_MAX = 1_000  # of one input in the pipeline's own file; more belong into a file of their own

Rows: TypeAlias = tuple[dict[str, Any], ...]
RowsOrFile: TypeAlias = Annotated[
    tuple[dict[str, Any], ...] | str, Field(max_length=ROWS_MAX), Shown("list of rows, or path")
]
RowsOfTables: TypeAlias = Annotated[dict[str, RowsOrFile], Field(min_length=1)]
Way: TypeAlias = Literal["batch", "stream"]


class PipelineTest(Model):
    """A test of one stage."""

    name: Name = Field(description="test name")
    stage: Name = Field(description="stage under test")
    given: dict[str, RowsOrFile] = Field(
        min_length=1,
        description="rows of each input by name; rows of a table, to replace its contents. A path names a CSV "
        "file, or a file with one JSON row per line",
    )
    run: Annotated[
        tuple[Way, ...], OneOrMany(), Shown("`batch`, `stream`, or both", "both; `stream` if the stage keeps state")
    ] = Field(default=(), description="run the stage as a batch, as a stream, or both")
    rows_per_batch: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], OneOrMany(), Shown("number, or list of numbers", "all of them")
    ] = Field(
        default=(),
        description="rows of each input in a micro-batch. A list runs the test once per number; all runs must "
        "have the same result",
    )
    expect: Annotated[RowsOrFile | None, Shown("list of rows, or path", "not compared")] = Field(
        default=None, description="expected rows in any order. Only the given columns are compared"
    )
    in_order: bool = Field(default=False, description="require the order of `expect`")
    expect_table: Annotated[
        RowsOrFile | RowsOfTables | None, Shown("list of rows, path, or path: rows", "not compared")
    ] = Field(
        default=None,
        description="expected rows of the table that the stage's Delta sink writes, in any order. Only the given "
        "columns are compared. With several Delta sinks, a mapping from a sink's path to rows or a path",
    )
    dead_letters: Annotated[RowsOrFile | int | None, Shown("number, or list of rows", "not compared")] = Field(
        default=None,
        description="expected dead letters: their number, or a list with `error`, `expectation`, `topic`, "
        "`key`, `value`, `source_topic`, `source_partition` and `source_offset`",
    )
    unmet: Annotated[dict[str, Annotated[int, Field(ge=0)]] | None, Shown("name: number", "not compared")] = Field(
        default=None, description="number of rows that do not meet each expectation, by its name"
    )
    stopped_by: Annotated[Name | None, Shown("name", "none")] = Field(
        default=None, description="expectation with `otherwise: fail` that must fail the stage"
    )

    @model_validator(mode="after")
    def _something_is_compared(self) -> PipelineTest:
        compared = (self.expect, self.expect_table, self.dead_letters, self.unmet, self.stopped_by)
        if all(each is None for each in compared):
            raise ValueError("a test compares something: give expect, expect_table, dead_letters, unmet or stopped_by")
        if self.in_order and self.expect is None:
            raise ValueError("in_order is the order of expect, which is not given")
        if isinstance(self.dead_letters, int) and self.dead_letters < 0:
            raise ValueError("dead_letters is a number from 0, or a list of rows")
        if "batch" in self.run and "stream" not in self.run and self.rows_per_batch:
            raise ValueError("rows_per_batch is for runs as a stream")
        return self
