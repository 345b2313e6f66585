"""`tests:`: rows that go into a stage, and rows that come out. Pure; `headwater pipeline test` runs them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from headwater.pipelines.definition.model import Model, Name, OneOrMany, Shown

ROWS_MAX = 1_000  # of one input in the pipeline's own file; more belong into a file of their own

Rows: TypeAlias = tuple[dict[str, Any], ...]
RowsOrFile: TypeAlias = Annotated[
    tuple[dict[str, Any], ...] | str, Field(max_length=ROWS_MAX), Shown("list of rows, or path")
]
Way: TypeAlias = Literal["batch", "stream"]


class PipelineTest(Model):
    """A test of one stage."""

    name: Name = Field(description="name of the test")
    stage: Name = Field(description="the stage that is tested")
    given: dict[str, RowsOrFile] = Field(
        min_length=1,
        description="the rows of each input, by its name, and of tables, if they shall be others than those of the "
        "file; a path is that of a file with a row as JSON in each line, or of a CSV file",
    )
    run: Annotated[
        tuple[Way, ...], OneOrMany(), Shown("`batch`, `stream`, or both", "both; `stream` if the stage keeps state")
    ] = Field(default=(), description="how the rows go through the stage")
    rows_per_batch: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], OneOrMany(), Shown("number, or list of numbers", "all of them")
    ] = Field(
        default=(),
        description="how many rows of each input a micro-batch reads; of several numbers, each is a run of its own "
        "that has to come to the same",
    )
    expect: Annotated[RowsOrFile | None, Shown("list of rows, or path", "not compared")] = Field(
        default=None, description="the rows that the stage writes, in any order; columns not named are not compared"
    )
    in_order: bool = Field(default=False, description="whether the rows come in the order of `expect`")
    dead_letters: Annotated[RowsOrFile | int | None, Shown("number, or list of rows", "not compared")] = Field(
        default=None,
        description="how many dead letters there are, or which, by `error`, `expectation`, `topic`, `key`, `value` and "
        "the record's `source_topic`, `source_partition`, `source_offset`",
    )
    unmet: Annotated[dict[str, Annotated[int, Field(ge=0)]] | None, Shown("name: number", "not compared")] = Field(
        default=None, description="how many rows do not meet an expectation, by its name"
    )
    stopped_by: Annotated[Name | None, Shown("name", "none")] = Field(
        default=None, description="the expectation, `otherwise: fail`, at which the stage stops"
    )

    @model_validator(mode="after")
    def _something_is_compared(self) -> PipelineTest:
        if self.expect is None and self.dead_letters is None and self.unmet is None and self.stopped_by is None:
            raise ValueError("a test compares something: give expect, dead_letters, unmet or stopped_by")
        if self.in_order and self.expect is None:
            raise ValueError("in_order is the order of expect, which is not given")
        if isinstance(self.dead_letters, int) and self.dead_letters < 0:
            raise ValueError("dead_letters is a number from 0, or a list of rows")
        if "batch" in self.run and "stream" not in self.run and self.rows_per_batch:
            raise ValueError("rows_per_batch is for runs as a stream")
        return self
