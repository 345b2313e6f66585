"""Results of tests as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.pipelines.rows.comparison import SHOWN_MAX, Difference


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of one way of running a test.

    `faults` are messages not about rows: counts, or the stage's failure. `tables` are the differences of the compared
    tables by their sink's path.
    """

    way: str
    rows: tuple[Difference, ...] = ()
    dead_letters: tuple[Difference, ...] = ()
    faults: tuple[str, ...] = ()
    tables: Mapping[str, tuple[Difference, ...]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether the output is as expected."""
        return not (self.rows or self.dead_letters or self.faults or any(self.tables.values()))

    def lines(self) -> list[str]:
        """Readable lines, the most important first."""
        found = [*self.faults, *_lines(self.rows, "")]
        for path, differences in self.tables.items():
            found += _lines(differences, f"table {path} ")
        return found + _lines(self.dead_letters, "dead letter ")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "run": self.way,
            "passed": self.passed,
            "faults": list(self.faults),
            "rows": [difference.as_dict() for difference in self.rows],
            "tables": {path: [each.as_dict() for each in found] for path, found in self.tables.items()},
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
        """Whether the test passed in every way."""
        return all(run.passed for run in self.runs)

    def lines(self) -> list[str]:
        """Readable lines: the test's result, followed by its differences."""
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
    """The summary line.

    >>> summary([])
    '0 tests, all passed'
    """
    failed = sum(not result.passed for result in results)
    count = f"{len(results)} test{'s' if len(results) != 1 else ''}"
    return f"{count}, {failed} failed" if failed else f"{count}, all passed"
