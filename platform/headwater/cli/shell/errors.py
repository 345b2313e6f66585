"""What the command line says when something goes wrong: one line on stderr and an exit code, never a stack trace.

Exit codes: 0 done; 1 it failed while running; 2 the user's mistake (options, names, values); 130 ended by Ctrl-C.
`HEADWATER_DEBUG=1` shows the stack trace after all.
"""

from __future__ import annotations

from typing import Final

EXIT_FAILED: Final = 1
EXIT_USER: Final = 2
EXIT_INTERRUPTED: Final = 130


class CliError(Exception):
    """A failure with its one line: `what`: `why`; `fix` (what to do about it)."""

    def __init__(self, what: str, why: str, fix: str = "", *, exit_code: int = EXIT_USER) -> None:
        super().__init__(describe(what, why, fix))
        self.exit_code = exit_code


def describe(what: str, why: str, fix: str) -> str:
    """Put a line together.

    >>> describe("topic create", "0 partitions are not possible", "use 1 to 10000")
    'topic create: 0 partitions are not possible; use 1 to 10000'
    """
    parts = [part for part in (what, why) if part]
    line = ": ".join(parts)
    return " ".join(f"{line}; {fix}".split()) if fix else " ".join(line.split())
