"""The interactive shell: reads statements, runs each in a thread of its own, and stays when one is cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headwater.cli.shell.errors import CliError
from headwater.cli.shell.output import note
from headwater.cli.shell.termination import Terminated
from headwater.cli.sql.execution import may_commit
from headwater.cli.sql.prompt import EXIT_WORDS, INPUT_CHARS_MAX
from headwater.cli.sql.statement_run import CANCEL_WAIT_S
from headwater.pipelines.spark.session import lost_jvm
from headwater.pipelines.sql.statement_errors import StatementError
from headwater.pipelines.sql_text.scanner import Statement, statements

if TYPE_CHECKING:
    from headwater.cli.sql.execution import Executor
    from headwater.cli.sql.statement_run import StatementRun

__all__ = ["InputReader", "Shell"]


class InputReader(Protocol):
    """Where inputs come from."""

    def read(self) -> str:
        """Read an input. Raises KeyboardInterrupt and EOFError."""


class Shell:
    """Runs until the end of its input. A failed statement ends its input's other statements, and not the shell."""

    def __init__(self, reader: InputReader, executor: Executor, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._executor = executor
        self._clock = clock

    def run(self) -> None:
        """Read and run inputs. Raises Terminated on SIGTERM, and CliError when Spark has ended."""
        while True:
            try:
                text = self._reader.read()
            except Terminated:
                raise
            except KeyboardInterrupt:
                continue  # the input is dropped, as in every shell
            except EOFError:
                return
            if text.strip().rstrip(";").strip().lower() in EXIT_WORDS:
                return
            if len(text) > INPUT_CHARS_MAX:
                note(f"headwater: the input is longer than {INPUT_CHARS_MAX:,} characters; run it as a file with -f")
                continue
            for statement in statements(text):
                if not self._run(statement):
                    break

    def _run(self, statement: Statement) -> bool:
        """Run a statement; whether it has succeeded."""
        began = self._clock()
        run = self._executor.start(statement)
        try:
            count = self._executor.show(run)
        except Terminated:
            raise
        except KeyboardInterrupt:
            self._cancel(run, statement)
            return False
        except StatementError as error:
            note(f"headwater: {error.line()}")
            return False
        except CliError as error:
            note(f"headwater: {error}")
            self._require_spark()
            return False
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - the shell outlives any statement
            self._require_spark()
            note(f"headwater: {' '.join(str(error).split()) or type(error).__name__}")
            return False
        took = f"{self._clock() - began:.2f} s"
        note(took if count is None else f"{count:,} {'row' if count == 1 else 'rows'} in {took}")
        return True

    @staticmethod
    def _require_spark() -> None:
        lost = lost_jvm()
        if lost is not None:
            raise CliError("sql", lost, exit_code=1)

    @staticmethod
    def _cancel(run: StatementRun, statement: Statement) -> None:
        """Cancel a statement; a second Ctrl-C, or a statement that does not end, gives the prompt back."""
        run.cancel()
        try:
            note("cancelling the statement; Ctrl-C again gives the prompt back at once")
            has_ended = run.wait(CANCEL_WAIT_S)
        except Terminated:
            raise
        except KeyboardInterrupt:
            has_ended = False
        word = may_commit(statement.text)
        if has_ended:
            note("the statement is cancelled" + (f"; its {word} may have committed before" if word else ""))
        elif word:
            note(f"the statement has not ended yet: its {word} may still commit; look before you repeat it")
        else:
            note("the statement has not ended yet: it goes on being cancelled, and changes nothing")
