"""Long or wide results through the user's pager."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.cli.sql.tables import print_table, table_text

LESS_OPTIONS: Final = "-SRFX"  # chop wide lines, keep colours, leave if it fits, keep the screen
KEPT_LINES: Final = 3  # of the terminal, for the prompt and the time


def show_table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Print a table; through the pager if it does not fit the terminal."""
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_table(names, rows)
        return
    text = table_text(names, rows)
    size = shutil.get_terminal_size()
    if fits(text, size.columns, size.lines) or not _paged(text, os.environ):
        sys.stdout.write(text)
        sys.stdout.flush()


def fits(text: str, columns: int, lines: int) -> bool:
    """Whether a text fits a terminal.

    >>> fits("a\\nb\\n", 80, 25), fits("x" * 81, 80, 25)
    (True, False)
    """
    shown = text.splitlines()
    return len(shown) <= lines - KEPT_LINES and all(len(line) <= columns for line in shown)


def _paged(text: str, environment: Mapping[str, str]) -> bool:
    """Show a text in `$PAGER`, by default less; whether a pager has run. Ctrl-C belongs to the pager."""
    command = shlex.split(environment.get("PAGER", "") or "less")
    if not command or shutil.which(command[0]) is None:
        return False
    # A handler, and not SIG_IGN, which the pager would inherit.
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, env={"LESS": LESS_OPTIONS, **environment}, text=True, encoding="utf-8"
            ) as pager,
            contextlib.suppress(BrokenPipeError),
        ):  # left before the end
            pager.communicate(text)
        return pager.returncode in (0, -signal.SIGINT)
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
