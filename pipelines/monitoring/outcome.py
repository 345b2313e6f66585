"""What became of a micro-batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the rows of one micro-batch."""

    stage: str
    written: int
    undecodable: int
    unmet: dict[str, int]
    dead_letters: int
