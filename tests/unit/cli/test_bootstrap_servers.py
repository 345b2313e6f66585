"""Brokers are named as in Kafka's tools, by every command that has brokers to name."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from headwater.cli.main import VERBS, load_verb


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(f"{path} {name}", inner)


WITH_BROKERS = [
    pytest.param(command, id=path)
    for verb in VERBS
    for path, command in commands(verb, load_verb(verb))
    if any(parameter.name == "bootstrap_servers" for parameter in command.params)
]


def test_commands_that_talk_to_brokers_are_found() -> None:
    assert len(WITH_BROKERS) > 20


@pytest.mark.parametrize("option", ["-b", "--bootstrap-servers", "--bootstrap-server"])
@pytest.mark.parametrize("command", WITH_BROKERS)
def test_brokers_have_the_name_of_kafkas_tools_too(command: click.Command, option: str) -> None:
    context = click.Context(command, resilient_parsing=True)
    command.parse_args(context, [option, "broker:1"])
    assert context.params["bootstrap_servers"] == "broker:1"


@pytest.mark.parametrize("command", WITH_BROKERS)
def test_the_help_shows_one_name(command: click.Command) -> None:
    text = command.get_help(click.Context(command))
    assert "--bootstrap-servers" in text
    assert "--bootstrap-server " not in text
