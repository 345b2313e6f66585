"""The statements of `-e`, of a file and of standard input, one after the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from headwater.cli.shell.errors import EXIT_FAILED, EXIT_USER, CliError
from headwater.cli.shell.output import note
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql_text.scanner import Statement, statements

if TYPE_CHECKING:
    from headwater.cli.sql.execution import Executor

__all__ = ["Script", "read_script", "run_script"]

SCRIPT_BYTES_MAX: Final = 16 << 20
STATEMENTS_MAX: Final = 10_000
STOP_WAIT_S: Final = 2.0  # for a statement that Ctrl-C has cancelled; the session's end stops the rest


class Script:
    """Statements with the name of their file, '' for an argument."""

    def __init__(self, text: str, file: str = "") -> None:
        """Raises CliError for a text without statements, or with too many."""
        self.file = file
        self.statements: Sequence[Statement] = statements(text)
        if not self.statements:
            raise CliError("sql", f"{file or 'the text'} has no statement")
        if len(self.statements) > STATEMENTS_MAX:
            raise CliError("sql", f"{file or 'the text'} has more than {STATEMENTS_MAX:,} statements")


def read_script(path: str) -> Script:
    """Read a file of statements, `-` for standard input. Raises CliError."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(SCRIPT_BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise CliError("sql", f"{path}: {error.strerror}") from None
    name = "" if path == "-" else os.path.normpath(path)
    if len(data) > SCRIPT_BYTES_MAX:
        raise CliError("sql", f"{name or 'standard input'} is larger than {SCRIPT_BYTES_MAX >> 20} MiB")
    try:
        return Script(data.decode("utf-8-sig"), name or "")
    except UnicodeDecodeError:
        raise CliError("sql", f"{name or 'standard input'} is not UTF-8 text") from None


def run_script(executor: Executor, script: Script, *, goes_on: bool) -> None:
    """Run the statements. The first that fails ends the script; with `goes_on`, the exit code remains its own.

    Raises CliError; KeyboardInterrupt after the running statement is cancelled.
    """
    exit_code = 0
    for statement in script.statements:
        run = executor.start(statement)
        try:
            executor.show(run)
        except KeyboardInterrupt:
            run.cancel()
            run.wait(STOP_WAIT_S)
            raise
        except StatementError as error:
            code = EXIT_USER if error.is_users else EXIT_FAILED
            if not goes_on:
                raise CliError("" if script.file else "sql", error.line(script.file), exit_code=code) from None
            note(f"headwater: {error.line(script.file)}")
            exit_code = exit_code or code
    if exit_code:
        raise click.exceptions.Exit(exit_code)
