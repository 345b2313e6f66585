"""The outcome of a micro-batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of one micro-batch's rows by their outcome.

    `written` counts the rows that are written, each once, whichever sinks receive it (`when`). `unmet` counts rows by
    expectation; rows of an expectation that only warns are also in `written`.
    """

    stage: str
    written: int
    undecodable: int
    unmet: dict[str, int]
    dead_letters: int
    late_records: int = 0
