"""Options that several verbs share, and the settings they fall back to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headwater.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def settings() -> Settings:
    """Return the settings of this run, read once."""
    return load_settings()


def bootstrap_servers_option(function: F) -> F:
    """Add `-b, --bootstrap-servers`; the function gets None when it is not given (see `servers`)."""
    return click.option(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT[,...]",
        help="Brokers to talk to.  [default: HEADWATER_BOOTSTRAP_SERVERS, else 127.0.0.1:9092]",
    )(function)


def servers(option: str | None) -> str:
    """Return the brokers to talk to: the flag, else the settings."""
    return option if option is not None else settings().bootstrap_servers


def output_option(function: F) -> F:
    """Add `-o, --output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "jsonl", "yaml"]),
        default="table",
        show_default=True,
        help="Format of what is printed.",
    )(function)


def host_option(function: F) -> F:
    """Add `--host`."""
    return click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")(function)


def port_option(name: str, help_text: str) -> Callable[[F], F]:
    """Add the option of a port."""
    return click.option(name, type=click.IntRange(0, 65_535), metavar="PORT", help=help_text)


def child_options(function: F) -> F:
    """Add the hidden options by which a supervisor starts a process (see `headwater.child`)."""
    ready = click.option("--ready-fd", type=int, hidden=True)
    parent = click.option("--parent-fd", type=int, hidden=True)
    return ready(parent(function))


def key_value(text: str, what: str) -> tuple[str, str]:
    """Split `name=value`.

    >>> key_value("retention.ms=1000", "--config")
    ('retention.ms', '1000')
    """
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise click.BadParameter(f"{text[:80]!r} is not of the form name=value", param_hint=what)
    return name.strip(), value


def key_values(texts: tuple[str, ...], what: str) -> dict[str, str]:
    """Split several `name=value`, each name once."""
    values: dict[str, str] = {}
    for text in texts:
        name, value = key_value(text, what)
        if name in values:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=what)
        values[name] = value
    return values
