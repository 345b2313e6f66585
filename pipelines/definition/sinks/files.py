"""Files of a folder as a sink. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from headwater.pipelines.definition.addresses.places import PathOf, Place, normal_path
from headwater.pipelines.definition.model import Options, Path
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.definition.sinks.model import SinkModel, Within
from headwater.pipelines.definition.sinks.partition_columns import (
    PartitionBy,
    partition_expressions,
    partition_names,
)
from headwater.pipelines.definition.sinks.underscore_columns import UnderscoreColumns


class FilesSink(SinkModel):
    """Writes rows to files in a folder; each micro-batch is written once."""

    kind: ClassVar[str] = "files"

    files: Path = Field(description="folder, on any Hadoop file system")
    format: Literal["csv", "json", "parquet", "orc"] = Field(description="file format")
    partition_by: PartitionBy = Field(
        default=(),
        description="partition columns, each a column or `EXPRESSION AS name`; each value is a folder `name=value`",
    )
    options: Options = Field(
        default_factory=dict,
        description="options of Spark's writer, such as `compression`. `header` is `true` by default for CSV",
    )
    underscore_columns: UnderscoreColumns = "keep"

    @property
    def place(self) -> Place:
        """The folder."""
        return "files", normal_path(self.files)

    def target(self, path: PathOf) -> str:
        """Return the folder."""
        return path(self.files)

    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:
        """Return the plan's entry, with format and partitions."""
        how = "replace" if is_complete else "append"
        where = f"{path(self.files)} ({self.format})"
        return SinkPlan(self.kind, where, None, self.partition_by, "exactly-once", how, self.when)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the record; no property is fixed for an existing folder."""
        return {"kind": self.kind, "target": path(self.files), "kept": {}, "more": self._more("files")}

    def written_twice(self, path: PathOf, *, is_complete: bool) -> str | None:
        """Return the rows: files are always appended."""
        return None if is_complete else f"rows of the files in {path(self.files)}"

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition columns, which become folder names."""
        return partition_names(self.partition_by)

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """Yield the expressions of the partitions."""
        yield from super().expressions()
        yield from partition_expressions(self.partition_by)

    def refuses_complete(self) -> tuple[str, str]:
        """Files are never replaced."""
        return "files", "write to a Delta table"
