"""What a sink of any kind tells of itself without Spark: the pure half of its kind.

The other half, which writes, is in `headwater.pipelines.sinks`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, TypeAlias

from headwater.pipelines.definition.model import Model
from headwater.pipelines.definition.places import PathOf, Place
from headwater.pipelines.definition.plan_entries import SinkPlan

Within: TypeAlias = tuple[str | int, ...]
"""Where something stands within a sink of the file."""


class SinkModel(Model):
    """Base of every kind of sink; its `kind` is the field that names it in the file."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def place(self) -> Place | None:
        """What it writes; None for a function, which may write anything."""

    @abstractmethod
    def target(self, path: PathOf) -> str:
        """What it writes, for people, and for the record of a deployed stage."""

    @abstractmethod
    def planned(self, path: PathOf, *, is_complete: bool) -> SinkPlan:
        """Its entry in a plan; `is_complete` if each micro-batch gives all rows."""

    @abstractmethod
    def record(self, path: PathOf) -> dict[str, Any]:
        """Where rows go, what an existing target holds to (`kept`), and what else is said of it: without secrets."""

    @abstractmethod
    def written_twice(self, path: PathOf, *, is_complete: bool) -> str | None:
        """What stands twice, for people, when its stage reads records again; None if nothing does."""

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The columns that tell the later of two changes."""
        return ()

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the columns that it adds to the rows, in the order in which it does."""
        return ()

    def expressions(self) -> Iterator[tuple[Within, str]]:
        """Its SQL expressions, each with its place in it."""
        return iter(())

    def columns_named(self) -> Iterator[tuple[Within, tuple[str, ...], str]]:
        """Columns that it names and does not make: their place in it, and what each of them is."""
        return iter(())

    def refuses_complete(self) -> tuple[str, str] | None:
        """What would hold all rows again with each micro-batch of `mode: complete`, and a hint; None if it may."""
        return None

    def _more(self, *known: str) -> dict[str, Any]:
        """What is said of it beside some fields."""
        return self.model_dump(mode="json", exclude=set(known))
