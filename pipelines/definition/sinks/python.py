"""A user-defined function as a sink. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from headwater.pipelines.definition.addresses.places import PathOf
from headwater.pipelines.definition.model import Shown
from headwater.pipelines.definition.plan_entries import SinkPlan
from headwater.pipelines.definition.sinks.model import SinkModel
from headwater.pipelines.definition.steps import PythonFunction


class PythonSink(SinkModel):
    """Passes each micro-batch to a user-defined function."""

    kind: ClassVar[str] = "python"

    python: Annotated[PythonFunction, Shown("function")] = Field(
        description="function that takes a DataFrame and the number of the micro-batch. After a crash it may be"
        " called again with the same number"
    )

    @property
    def place(self) -> None:
        """None: the function may write anything."""
        return

    def target(self, path: PathOf) -> str:  # noqa: ARG002 - the name is for people
        """Return file and name of the function."""
        return f"{self.python.file}:{self.python.function}"

    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:  # noqa: ARG002
        """Return the plan's entry; the function itself handles a repeated batch."""
        return SinkPlan(self.kind, f"python {self.target(path)}", None, (), "at-least-once", "call", self.when)

    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the record; the function's code is recorded separately."""
        return {"kind": self.kind, "target": self.target(path), "kept": {}, "more": self._more("python")}

    def written_twice(self, path: PathOf, *, is_complete: bool) -> str:  # noqa: ARG002
        """Return the calls of the function."""
        return f"calls of {self.target(path)}"
