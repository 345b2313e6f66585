"""A plan's entries for one input and for one sink. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputPlan:
    """An input. `kind` is topic, delta, files, jdbc or rate; `limit` applies to one micro-batch, None for no limit."""

    kind: str
    target: str
    name: str
    start: str
    limit: str | None
    watermark: str | None


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A sink. `kind` is topic, delta, files, jdbc or python; `how` is the write mode: append, merge and so on.

    It receives the rows for which `when` is true; None for every row.
    """

    kind: str
    target: str
    key: str | None
    partition_by: tuple[str, ...]
    guarantee: str
    how: str = "append"
    when: str | None = None
