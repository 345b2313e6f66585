"""The interface of a sink's model: the pure half of each kind, without Spark.

The writing half is in `headwater.pipelines.sinks`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field

from headwater.pipelines.definition.addresses.places import PathOf, Place
from headwater.pipelines.definition.model import Model, Shown
from headwater.pipelines.definition.plan_entries import SinkPlan

Within: TypeAlias = tuple[str | int, ...]
"""A path within a sink of the file."""


class SinkModel(Model):
    """Base of every kind of sink; `kind` is the field that identifies the kind in the file."""

    kind: ClassVar[str]

    when: Annotated[str | None, Shown("SQL expression", "every row")] = Field(
        default=None,
        min_length=1,
        description="condition for rows of the stage that the sink receives; null is not true",
    )

    @property
    @abstractmethod
    def place(self) -> Place | None:
        """The place that the sink writes; None for a function, which may write anything."""

    @abstractmethod
    def target(self, path: PathOf) -> str:
        """Return the sink's target, for people, and for the record of a deployed stage."""

    @abstractmethod
    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:
        """Return the plan's entry; `is_complete` means that each micro-batch contains all rows."""

    @abstractmethod
    def record(self, path: PathOf) -> dict[str, Any]:
        """Return the deployment record, without secrets. `kept` holds the properties fixed for an existing target."""

    @abstractmethod
    def written_twice(self, path: PathOf, *, is_complete: bool) -> str | None:
        """Describe the duplicates, for people, after a stage reprocesses records; None if there are none."""

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The columns that order changes of a row."""
        return ()

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the columns that the sink adds to the rows, in order."""
        return ()

    @property
    def columns_kept(self) -> tuple[str, ...]:
        """Columns that it stores even with `underscore_columns: omit`, as it names them."""
        return self.partitions

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """Yield the sink's SQL expressions, each with its path in the sink."""
        if self.when is not None:
            yield ("when",), self.when

    def columns_named(self) -> Iterator[tuple[Within, tuple[str, ...], str]]:
        """Yield columns that the sink requires from the rows: path in the sink, names, and purpose."""
        return iter(())

    def columns_excepted(self) -> Iterator[tuple[Within, tuple[str, ...]]]:
        """Yield columns that concern the sink only as far as the rows have them: path in the sink, and names."""
        return iter(())

    def refuses_complete(self) -> tuple[str, str] | None:
        """Return the refused target and a hint, if each batch of `mode: complete` would add all rows again.

        None if the sink accepts `mode: complete`.
        """
        return None

    def _more(self, *known: str) -> dict[str, Any]:
        """Return the values of all fields except `known`."""
        return self.model_dump(mode="json", exclude=set(known))
