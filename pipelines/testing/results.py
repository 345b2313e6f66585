"""What became of tests, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater.pipelines.rows.comparison import SHOWN_MAX, Difference


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One way of running a test. `faults` are sentences about what is no row: counts, or that the stage failed."""

    way: str
    rows: tuple[Difference, ...] = ()
    dead_letters: tuple[Difference, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all came as expected."""
        return not (self.rows or self.dead_letters or self.faults)

    def lines(self) -> list[str]:
        """What a person reads, most telling first."""
        found = [*self.faults, *_lines(self.rows, "")]
        return found + _lines(self.dead_letters, "dead letter ")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "run": self.way,
            "passed": self.passed,
            "faults": list(self.faults),
            "rows": [difference.as_dict() for difference in self.rows],
            "dead_letters": [difference.as_dict() for difference in self.dead_letters],
        }


def _lines(differences: Sequence[Difference], before: str) -> list[str]:
    found = [before + line if i == 0 else line for d in differences[:SHOWN_MAX] for i, line in enumerate(d.lines())]
    more = len(differences) - SHOWN_MAX
    return [*found, f"and {more:,} more"] if more > 0 else found


@dataclass(frozen=True, slots=True)
class Judged:
    """A test with its place in the file, counted from 1."""

    name: str
    stage: str
    file: str
    line: int
    column: int
    runs: tuple[RunOutcome, ...]

    @property
    def passed(self) -> bool:
        """Whether it passed in every way."""
        return all(run.passed for run in self.runs)

    def lines(self) -> list[str]:
        """What a person reads: one line, and what differs below it."""
        if self.passed:
            return [f"ok    {self.name}  ({self.stage}: {', '.join(run.way for run in self.runs)})"]
        found = [f"FAIL  {self.name}  ({self.file}:{self.line}:{self.column}, stage {self.stage})"]
        for run in self.runs:
            if not run.passed:
                found.append(f"      {run.way}:")
                found += [f"        {line}" for line in run.lines()]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "stage": self.stage,
            "passed": self.passed,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "runs": [run.as_dict() for run in self.runs],
        }


def summary(results: Sequence[Judged]) -> str:
    """The last line.

    >>> summary([])
    '0 tests, all passed'
    """
    failed = sum(not result.passed for result in results)
    count = f"{len(results)} test{'s' if len(results) != 1 else ''}"
    return f"{count}, {failed} failed" if failed else f"{count}, all passed"
