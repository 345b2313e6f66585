"""What a plan says of one input and of one sink. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputPlan:
    """What a stage reads. `kind` is topic, delta, files, jdbc or rate; `limit` is of one micro-batch, None for all."""

    kind: str
    target: str
    name: str
    start: str
    limit: str | None
    watermark: str | None


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A place where rows go. `kind` is topic, delta, files, jdbc or python; `how` is append, merge and the like."""

    kind: str
    target: str
    key: str | None
    partition_by: tuple[str, ...]
    guarantee: str
    how: str = "append"
