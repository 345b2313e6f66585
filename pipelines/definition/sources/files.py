"""Files of a folder as an input. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from headwater.pipelines.definition.addresses.places import PathOf, Place, normal_path
from headwater.pipelines.definition.file_formats import FileFormat, schema_field
from headwater.pipelines.definition.model import Options, Path, Shown
from headwater.pipelines.definition.plan_entries import InputPlan
from headwater.pipelines.definition.sources.model import Input


class FilesSource(Input):
    """New files of a folder."""

    kind: ClassVar[str] = "files"

    files: Path = Field(description="folder, or a pattern such as `in/*.json`, on any Hadoop file system")
    format: FileFormat
    schema_source: Annotated[str | None, Shown("path, columns", "found in the files there are")] = schema_field()
    max_files_per_trigger: int | None = Field(
        default=None, ge=1, description="maximum number of files in a micro-batch"
    )
    options: Options = Field(
        default_factory=dict, description="options of Spark's reader. `header` is `true` by default for CSV"
    )

    @property
    def place(self) -> Place:
        """The folder."""
        return "files", normal_path(self.files)

    @property
    def may_refuse(self) -> bool:
        """Whether undecodable rows are possible: in text and Avro. For other formats, Spark refuses the whole file."""
        return self.format in ("csv", "json", "avro")

    def planned(self, path: PathOf, *, has_watermark: bool) -> InputPlan:  # noqa: ARG002
        """Return the plan's entry, with the format and the limit of a micro-batch."""
        most = None if self.max_files_per_trigger is None else f"{self.max_files_per_trigger:,} files"
        return self._plan(f"{path(self.files)} ({self.format})", "the files there are", most)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the record; format and schema determine the rows."""
        rows = {"format": self.format, "schema": self.schema_source}
        return self._recorded(path(self.files), rows, "", "files", "format", "schema_source")
