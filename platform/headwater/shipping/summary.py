"""The result of a run of `headwater ship`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MISTAKES_MAX: Final = 10
"""Files listed in a summary; the log lists all."""


@dataclass(slots=True)
class Summary:
    """Counts and failures of a run.

    Attributes:
        shipped: Acknowledged lines.
        undelivered: Lines that were read but not acknowledged: the next run sends them again.
        lost: Lines that the brokers refused permanently, or that were truncated before they were acknowledged.
        unread: Files or patterns that could not be read completely, each with a sentence.
        trouble: Reason why lines were not delivered; empty if unknown.
        unsaved: Reason why the file of positions could not be written; empty if it was.
    """

    shipped: int = 0
    undelivered: int = 0
    lost: int = 0
    unread: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    unsaved: str = ""

    def mistakes(self) -> list[str]:
        """Return one sentence for each failure."""
        sentences = []
        if self.undelivered:
            why = f": {self.trouble}" if self.trouble else ""
            sentences.append(f"{self.undelivered} lines were not acknowledged and are sent again by the next run{why}")
        if self.lost:
            sentences.append(f"{self.lost} lines are lost, see above")
        sentences += list(self.unread.values())[:MISTAKES_MAX]
        if len(self.unread) > MISTAKES_MAX:
            sentences.append(f"and {len(self.unread) - MISTAKES_MAX} more files")
        if self.unsaved:
            sentences.append(f"{self.unsaved}: lines are sent again by the next run")
        return sentences
