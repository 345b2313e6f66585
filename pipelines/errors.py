"""What a pipeline says when it cannot go on: problems a user can mend, and failures at run time.

A `PipelineError` is the user's mistake (exit code 2): it lists every problem found, each with file, line, column, field
and what to do. A `PipelineFailed` is a failure while data flowed (exit code 1). Neither is shown with a stack trace.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SUGGESTION_CUTOFF = 0.6  # difflib's own default: below it the suggestion is noise


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it stands (`line` and `column` count from 1, 0 means unknown), what it is, what to do.

    >>> print(Problem("flights.yaml", 9, 5, "stages[0].form", "unknown field 'form'", "did you mean 'from'?"))
    flights.yaml:9:5: stages[0].form: unknown field 'form'; did you mean 'from'?
    """

    file: str
    line: int
    column: int
    field: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = ":".join([self.file, *(str(part) for part in (self.line, self.column) if part)])
        field = f"{self.field}: " if self.field else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}: {field}{self.message}{hint}"


class PipelineError(Exception):
    """The pipeline's text, or what it names, is wrong. `problems` is never empty and is in the order of each file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = list(problems)
        files = list(dict.fromkeys(problem.file for problem in found))
        found.sort(key=lambda p: (files.index(p.file), p.line, p.column))
        self.problems: tuple[Problem, ...] = tuple(found)
        assert self.problems, "a PipelineError without a problem says nothing"
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PipelineFailed(Exception):  # noqa: N818 - it names an outcome, as KeyboardInterrupt does
    """A stage failed while it ran: the message says which stage, why, and that the checkpoint is intact."""


class PipelineBusy(Exception):  # noqa: N818
    """The state folder belongs to another run that is still alive."""


def nearest(name: str, known: Sequence[str]) -> str:
    """Say which known name was probably meant, or list the known names.

    >>> nearest("form", ["from", "name", "to"])
    "did you mean 'from'?"
    >>> nearest("zzz", ["from", "to"])
    'known: from, to'
    >>> nearest("zzz", [])
    ''
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=SUGGESTION_CUTOFF)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(known)}" if known else ""
