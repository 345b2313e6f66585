"""The options for JDBC and Spark Connect: what is refused, and why."""

from __future__ import annotations

import socket

import pytest

from headwater.cli.main import main
from headwater.cli.shell.errors import CliError
from headwater.cli.sql.foreign_addresses import foreign_addresses
from headwater.cli.verbs.sql_service import foreign_listener


@pytest.mark.parametrize("text", ["", ":", "x", "127.0.0.1", "127.0.0.1:", "65536", "-1", "1.5", "\u0661"])
def test_a_port_is_a_number(text: str) -> None:
    with pytest.raises(CliError, match="not of the form PORT or ADDRESS:PORT"):
        foreign_addresses("up", {"jdbc": text})


@pytest.mark.parametrize("text", ["0.0.0.0:10000", "[::]:10000", "10.0.0.1:10000", "example:10000"])
def test_other_addresses_than_loopback_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(CliError, match="clients run programs and read files as this user"):
        foreign_addresses("up", {"connect": text})


def test_the_servers_need_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--jdbc", "10000"]) == 2
    assert "give --sql, too" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["jdbc", "connect"])
def test_a_taken_port_is_named(protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        with pytest.raises(CliError, match=f"--{protocol}: cannot listen on 127.0.0.1:{address[1]}: Address already"):
            foreign_listener(protocol, address)


@pytest.mark.parametrize("command", [["up", "--sql"], ["sql-service", "--socket", "none"]])
def test_both_commands_refuse_other_addresses(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--jdbc", "0.0.0.0:1"]) == 2
    assert "JDBC serves loopback addresses only, not 0.0.0.0" in capsys.readouterr().err
