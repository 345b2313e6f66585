"""The root: its help, and how failures end."""

from __future__ import annotations

import click
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headwater.cli import main as root_module
from headwater.cli.main import VERBS, main
from headwater.cli.shell.errors import CliError
from headwater.logtier.config import ConfigError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A verb `fail` that raises what a test puts into the list."""
    failures: list[BaseException] = []

    @click.command()
    def fail() -> None:
        raise failures[0]

    monkeypatch.setattr(root_module, "load_verb", lambda _name: fail)
    return failures


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines of stderr; nothing may stand on stdout."""
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_the_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in VERBS)


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headwater ")
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("headwater ")


def test_a_mistyped_verb_is_one_line_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topc"]) == 2
    assert lines(capsys) == ["headwater: there is no command 'topc'; did you mean 'topic'?"]


def test_a_mistyped_option_is_one_line_that_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--fromat", "json"]) == 2
    (line,) = lines(capsys)
    assert line.startswith("headwater: ")
    assert line.endswith("`headwater topic list --help` shows the options")


def test_a_missing_verb_shows_the_help_and_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "exit_code", "line"),
    [
        (
            CliError("up", "the port is in use", "choose another"),
            2,
            "headwater: up: the port is in use; choose another",
        ),
        (CliError("up", "it failed", exit_code=1), 1, "headwater: up: it failed"),
        (
            ValueError("a\nb"),
            1,
            "headwater: unexpected ValueError: a b; set HEADWATER_DEBUG=1 to see where it happened",
        ),
        (
            PermissionError(13, "Permission denied", "out.txt"),
            1,
            "headwater: out.txt: Permission denied; check the path and its permissions",
        ),
    ],
)
def test_a_failure_is_one_line(
    failing: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    exit_code: int,
    line: str,
) -> None:
    failing.append(failure)
    assert main(["version"]) == exit_code
    assert lines(capsys) == [line]


def test_properties_that_librdkafka_does_not_take_are_the_users_mistake(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KafkaException) as refused:
        AdminClient({"sasl.passwort": "secret"})
    failing.append(refused.value)
    assert main(["version"]) == 2
    assert lines(capsys) == [
        'headwater: No such configuration property: "sasl.passwort"; correct the file of --command-config'
    ]


def test_ctrl_c_is_silent_and_130(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(KeyboardInterrupt())
    assert main(["version"]) == 130
    assert "".join(lines(capsys)).strip() == ""


def test_an_exit_code_of_a_verb_is_kept(failing: list[BaseException]) -> None:
    failing.append(click.exceptions.Exit(3))
    assert main(["version"]) == 3
    failing[0] = SystemExit(4)
    assert main(["version"]) == 4


def test_the_stack_trace_is_there_for_those_who_ask(
    failing: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_DEBUG", "1")
    failing.append(ZeroDivisionError("x"))
    with pytest.raises(ZeroDivisionError):
        main(["version"])


def test_a_broken_setting_is_the_users_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWATER_REQUEST_TIMEOUT_MS", "soon")
    assert main(["topic", "list"]) == 2
    assert lines(capsys) == [
        "headwater: HEADWATER_REQUEST_TIMEOUT_MS: request_timeout_ms is 'soon'; it must be a whole number"
    ]


def test_a_broken_config_is_the_users_mistake(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(ConfigError("num.partitions: must be at least 1, not 0"))
    assert main(["version"]) == 2
    assert lines(capsys) == ["headwater: num.partitions: must be at least 1, not 0"]
