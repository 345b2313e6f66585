"""A Delta table as an input. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from headwater.pipelines.definition.addresses.places import PathOf, Place, normal_path
from headwater.pipelines.definition.model import Path, Shown
from headwater.pipelines.definition.plan_entries import InputPlan
from headwater.pipelines.definition.sources.model import Input
from headwater.pipelines.definition.sources.moments import Moment


class DeltaSource(Input):
    """Rows added to a Delta table, or its change data feed."""

    kind: ClassVar[str] = "delta"

    delta: Path = Field(
        description="folder of the table. A table that another stage writes is read after that stage has run"
    )
    changes: bool = Field(
        default=False,
        description="read the change data feed, with the columns `_change_type`, `_commit_version` and "
        "`_commit_timestamp`. Requires the table property `delta.enableChangeDataFeed`",
    )
    starting_version: Annotated[int | None, Shown("number", "the table as it is")] = Field(
        default=None, ge=0, description="first version whose changes are read"
    )
    starting_timestamp: Moment | None = Field(
        default=None, description="read the versions committed at or after this moment"
    )

    max_files_per_trigger: Annotated[int | None, Shown("number", "1,000")] = Field(
        default=None, ge=1, description="maximum number of files in a micro-batch"
    )
    skip_change_commits: bool = Field(
        default=False, description="skip commits that update or delete rows; `false` fails the stage at such a commit"
    )

    @model_validator(mode="after")
    def _one_start(self) -> DeltaSource:
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise ValueError("give either starting_version or starting_timestamp")
        if self.changes and self.skip_change_commits:
            raise ValueError("skip_change_commits cannot be combined with changes: true, which reads these commits")
        return self

    @property
    def place(self) -> Place:
        """The table by its folder."""
        return "delta", normal_path(self.delta)

    def planned(self, path: PathOf, *, has_watermark: bool) -> InputPlan:  # noqa: ARG002
        """Return the plan's entry, with the start and the limit of a micro-batch."""
        what = "changes of " if self.changes else ""
        start = "the table as it is"
        if self.starting_version is not None:
            start = f"version {self.starting_version}"
        elif self.starting_timestamp is not None:
            start = self.starting_timestamp.isoformat()
        return self._plan(what + path(self.delta), start, f"{self.max_files_per_trigger or 1000:,} files")

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the record; `changes` determines the rows."""
        start = str(self.starting_version if self.starting_version is not None else self.starting_timestamp)
        told = ("delta", "changes", "starting_version", "starting_timestamp")
        return self._recorded(path(self.delta), {"changes": self.changes}, start, *told)
