"""The options that the commands share, and the file that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.cli.pipeline.options import set_option
from headwater.cli.pipeline.reported_errors import reported_errors
from headwater.cli.shell.errors import EXIT_FAILED, CliError
from headwater.cli.shell.options import key_values

if TYPE_CHECKING:
    from headwater.pipelines.archive.archive_file import TopicArchiveSpec
    from headwater.pipelines.definition import Loaded

__all__ = ["archive_options", "load_archives", "reported_archive_errors"]

_F = TypeVar("_F", bound=Callable[..., Any])


def archive_options(function: _F) -> _F:
    """Add FILE, TOPIC... and `--set`."""
    for each in (
        set_option,
        click.argument("topics", nargs=-1, metavar="[TOPIC]..."),
        click.argument("file", type=click.Path(), metavar="FILE"),
    ):
        function = each(function)
    return function


@contextmanager
def reported_archive_errors() -> Iterator[None]:
    """Convert errors of archives and pipelines to lines and an exit code."""
    from headwater.pipelines.archive.errors import ArchiveError, ArchiveFailed
    from headwater.pipelines.loads.errors import LoadFailed

    with reported_errors():
        try:
            yield
        except ArchiveError as error:
            raise CliError("archive", str(error)) from None
        except (ArchiveFailed, LoadFailed) as error:
            raise CliError("archive", str(error), exit_code=EXIT_FAILED) from None


def load_archives(
    file: str, assignments: Sequence[str], topics: Sequence[str]
) -> tuple[list[TopicArchiveSpec], Loaded]:
    """The archives of a file. Raises ArchiveError and PipelineError."""
    from headwater.pipelines.archive.declared import declared_archives

    return declared_archives(file, key_values(tuple(assignments), "--set"), topics)
