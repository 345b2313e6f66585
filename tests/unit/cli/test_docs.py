"""The reference and the annotated examples name every setting, verb and option, with the defaults that the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from headwater.cli.main import VERBS, load_verb
from headwater.logtier.config import BROKER_CONFIGS, BrokerConfig
from headwater.settings import FIELDS, environment_name

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"
EXAMPLES_ONLY = {"listeners", "advertised.listeners", "broker.rack", "zookeeper.connect"}
"""Properties of conf/broker.yaml that show an example, because their default is something else or nothing."""


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(f"{path} {name}", inner)


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ `{re.escape(heading)}`$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"cli.md has no heading `{heading}`"
    return found[1]


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_command_and_option_is_in_the_reference(verb: str) -> None:
    text = (REFERENCE / "cli.md").read_text()
    for path, command in commands(f"headwater {verb}", load_verb(verb)):
        documented = section(text, path)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in parameter.opts:
                    assert f"`{option}`" in documented, f"{path} {option} is not in docs/reference/cli.md"


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_command_says_what_it_does(verb: str) -> None:
    for path, command in commands(f"headwater {verb}", load_verb(verb)):
        assert command.help, path


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    text = (REFERENCE / "settings.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\S+) \|", text, re.MULTILINE)
    assert documented == [
        (name, environment_name(name), f"`{field.default}`" if field.default != "" else "(empty)")
        for name, field in FIELDS.items()
    ]


def uncommented(path: Path) -> dict[str, object]:
    """The values that an annotated example shows behind `#`."""
    lines = [line[1:] for line in path.read_text().splitlines() if re.match(r"#[\w.]+:", line)]
    values = yaml.safe_load("\n".join(lines))
    assert isinstance(values, dict)
    return values


def test_the_example_settings_are_all_settings_with_their_defaults() -> None:
    assert uncommented(ROOT / "conf" / "platform.yaml") == {name: field.default for name, field in FIELDS.items()}


def test_the_example_broker_properties_exist_and_show_their_defaults() -> None:
    values = uncommented(ROOT / "conf" / "broker.yaml")
    config = BrokerConfig.from_properties(values)
    defaults = BrokerConfig.from_properties()
    for name in values.keys() - EXAMPLES_ONLY:
        assert config.value(name) == defaults.value(name), name
    assert values.keys() <= BROKER_CONFIGS.keys()


@pytest.mark.parametrize("name", ["platform.yaml", "broker.yaml"])
def test_an_example_as_it_is_changes_nothing(name: str) -> None:
    assert yaml.safe_load((ROOT / "conf" / name).read_text()) is None
