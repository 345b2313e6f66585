"""Where clients of JDBC, ODBC and Spark Connect reach the SQL service: the options of `sql-service` and `up`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from headwater.cli.shell.errors import CliError

__all__ = ["CONNECT", "JDBC", "SERVER_NAMES", "foreign_addresses", "foreign_options"]

JDBC: Final = "jdbc"
CONNECT: Final = "connect"
SERVER_NAMES: Final = {JDBC: "JDBC", CONNECT: "Spark Connect"}
PORT_MAX: Final = 65_535

F = TypeVar("F", bound=Callable[..., Any])


def foreign_options(function: F) -> F:
    """Add `--jdbc` and `--connect`; the function receives their texts, or None."""
    who = "on 127.0.0.1 or another loopback address, for users of this machine alone. 0 picks a free port."
    jdbc = click.option("--jdbc", metavar="[ADDRESS:]PORT", help=f"Serve JDBC and ODBC (HiveServer2's protocol) {who}")
    connect = click.option("--connect", metavar="[ADDRESS:]PORT", help=f"Serve Spark Connect {who}")
    return jdbc(connect(function))


def foreign_addresses(verb: str, texts: Mapping[str, str | None]) -> dict[str, tuple[str, int]]:
    """Addresses and ports by protocol, of the options that are given. Raises CliError.

    >>> foreign_addresses("up", {"jdbc": "10000", "connect": None})
    {'jdbc': ('127.0.0.1', 10000)}
    >>> foreign_addresses("up", {"connect": "[::1]:15002"})
    {'connect': ('::1', 15002)}
    """
    return {name: _address(verb, name, text) for name, text in texts.items() if text is not None}


def _address(verb: str, protocol: str, text: str) -> tuple[str, int]:
    # `up` starts its children before it imports anything of theirs.
    from headwater.pipelines.sql.loopback import LOCALHOST, ServerRefusedError, loopback_address

    address, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= PORT_MAX):
        raise CliError(verb, f"--{protocol} {text}: not of the form PORT or ADDRESS:PORT, with ports 0 to {PORT_MAX}")
    try:
        return loopback_address(address.strip("[]") or LOCALHOST, SERVER_NAMES[protocol]), int(port)
    except ServerRefusedError as error:
        raise CliError(verb, f"--{protocol} {text}: {error}") from None
