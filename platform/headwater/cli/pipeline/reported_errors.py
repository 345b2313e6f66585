"""Errors of pipelines, reported as lines on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.output import note

if TYPE_CHECKING:
    from headwater.pipelines.errors import PipelineError

LOST_SECONDS = 1.0
"""How long to wait, after an unexpected error, for the exit of a JVM that may be ending."""


def user_error(error: PipelineError) -> NoReturn:
    """Print one line per problem, and exit with code 2."""
    for problem in error.problems[:-1]:
        note(str(problem))
    raise CliError("", str(error.problems[-1])) from None


@contextmanager
def reported_errors() -> Iterator[None]:
    """Convert errors of pipelines to lines and an exit code."""
    from headwater.pipelines.errors import PipelineBusy, PipelineError, PipelineFailed
    from headwater.pipelines.file_systems.file_system import FileSystemError
    from headwater.pipelines.spark.session import SessionError, lost_jvm

    try:
        yield
    except PipelineError as error:
        user_error(error)
    except (PipelineBusy, PipelineFailed, SessionError, FileSystemError) as error:
        raise CliError("", str(error), exit_code=EXIT_FAILED) from None
    except Exception:
        # Calls into a JVM that has ended fail in many ways, none of which names the cause.
        lost = lost_jvm(LOST_SECONDS) if "py4j" in sys.modules else None
        if lost is None:
            raise
        raise CliError("", lost, exit_code=EXIT_FAILED) from None
