"""`tests:`: rows that go into a stage, and rows that come out. Pure; `headwater pipeline test` runs them."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field

from pipelines.spec.model import Model, Name, Shown

ROWS_MAX = 1_000  # of one input in the pipeline's own file; more belong into a file of their own

Rows: TypeAlias = tuple[dict[str, Any], ...]
RowsOrFile: TypeAlias = Annotated[
    tuple[dict[str, Any], ...] | str, Field(max_length=ROWS_MAX), Shown("list of rows, or path")
]


class PipelineTest(Model):
    """A test of one stage."""

    name: Name = Field(description="name of the test")
    stage: Name = Field(description="the stage that is tested")
    given: dict[str, RowsOrFile] = Field(
        min_length=1,
        description="the rows of each input, by its name, and of tables, if they shall be others than those of the "
        "file; a path is that of a file with a row as JSON in each line, or of a CSV file",
    )
    expect: RowsOrFile = Field(
        description="the rows that the stage writes, in any order; columns not named are not compared"
    )
    dead_letters: Annotated[int | None, Shown("number", "not compared")] = Field(
        default=None, ge=0, description="how many rows become dead letters"
    )
