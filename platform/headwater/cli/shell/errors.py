"""Error reports of the command line: one line on stderr and an exit code, without a stack trace.

Exit codes: 0 success; 1 failure while running; 2 user error (options, names, values); 75 not yet (a
later call may succeed); 130 ended by Ctrl-C.
`HEADWATER_DEBUG=1` prints the stack trace as well.
"""

from __future__ import annotations

from typing import Final

EXIT_FAILED: Final = 1
EXIT_USER: Final = 2
EXIT_NOT_YET: Final = 75  # EX_TEMPFAIL of sysexits.h
EXIT_INTERRUPTED: Final = 130


class CliError(Exception):
    """A failure with the parts of its line: `what`, `why`, and `fix` (the suggested correction)."""

    def __init__(self, what: str, why: str, fix: str = "", *, exit_code: int = EXIT_USER) -> None:
        super().__init__(describe(what, why, fix))
        self.exit_code = exit_code


def describe(what: str, why: str, fix: str) -> str:
    """Format a failure as one line.

    >>> describe("topic create", "0 partitions are not possible", "use 1 to 10000")
    'topic create: 0 partitions are not possible; use 1 to 10000'
    """
    parts = [part for part in (what, why) if part]
    line = ": ".join(parts)
    return " ".join(f"{line}; {fix}".split()) if fix else " ".join(line.split())
