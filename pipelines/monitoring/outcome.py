"""The outcome of a micro-batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of one micro-batch's rows by their outcome.

    `written` counts the rows that meet all expectations, each once, whichever sinks receive it (`when`).
    """

    stage: str
    written: int
    undecodable: int
    unmet: dict[str, int]
    dead_letters: int
