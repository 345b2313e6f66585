"""The options that say which relations a command's statements know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["relation_options"]

F = TypeVar("F", bound=Callable[..., Any])


def relation_options(function: F) -> F:
    """Add `--pipeline`, `--archive`, `--set`, `--delta` and `--registry`.

    The function receives them as `file`, `archive`, `assignments`, `deltas` and `registry` (see `SqlOptions`).
    """
    for option in reversed(
        (
            click.option(
                "--pipeline",
                "file",
                type=click.Path(),
                help="Pipeline file, by which topics get typed columns and tables get names.",
            ),
            click.option(
                "--archive",
                type=click.Path(),
                metavar="FILE|ROOT",
                help="File that declares archives, or the root of those that topic configs enable: the name of an "
                "archived topic is its table and, behind it, the log.",
            ),
            click.option(
                "--set",
                "assignments",
                multiple=True,
                metavar="NAME=VALUE",
                help="Value of a variable ${NAME} of the pipeline, or of the archives' file without one; may be "
                "repeated.",
            ),
            click.option(
                "--delta",
                "deltas",
                multiple=True,
                metavar="NAME=PATH",
                help="Delta table to show as lake.NAME; may be repeated.",
            ),
            click.option(
                "--registry",
                metavar="URL",
                help="Schema registry for the columns of topics; '' for none.  [default: the one on the brokers' node, "
                "if any]",
            ),
        )
    ):
        function = option(function)
    return function
