"""Where the properties of `headwater broker` come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.main import main
from headwater.cli.shell.broker_properties import broker_properties, read_properties
from headwater.cli.shell.errors import CliError


def test_flags_are_stronger_than_set_and_set_is_stronger_than_the_file() -> None:
    file = {"log.dirs": "file", "listeners": "PLAINTEXT://:1", "num.partitions": 1, "node.id": 1}
    overrides = {"log.dirs": "set", "num.partitions": "2"}
    assert broker_properties(dict(file), overrides, "flag", 0, None) == {
        "log.dirs": "flag",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "num.partitions": "2",
        "node.id": 1,
    }
    assert broker_properties(dict(file), {}, None, None, None) == file


def test_without_anything_there_are_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_HOST", "::1")
    assert broker_properties({}, {}, None, None, None) == {
        "log.dirs": "headwater-data",
        "listeners": "PLAINTEXT://[::1]:9092",
    }


def test_a_list_in_the_file_becomes_kafkas_list(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("log.dirs: [a, b]\nnum.partitions: 3\n")
    assert read_properties(str(path)) == {"log.dirs": "a,b", "num.partitions": 3}


def test_kafkas_own_form_is_read_from_a_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# a broker\nnode.id=3\nzookeeper.connect = zk1:2181,zk2:2181/kafka\nlisteners=PLAINTEXT://:9093\n")
    assert read_properties(str(path)) == {
        "node.id": "3",
        "zookeeper.connect": "zk1:2181,zk2:2181/kafka",
        "listeners": "PLAINTEXT://:9093",
    }
    path.write_text("node.id 3\n")
    with pytest.raises(CliError, match=r"server\.properties: line 1 is not of the form name=value"):
        read_properties(str(path))


@pytest.mark.parametrize("text", ["- a", "a: {b: c}", "a:", "1: 2", "a: b: c", "x: \x00"])
def test_a_file_that_is_no_properties_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text(text)
    with pytest.raises(CliError, match=r"broker\.yaml") as caught:
        read_properties(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--set", "num.partitons=3"], "num.partitons"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "num.partitions"], "is not of the form name=value"),
        (["--set", "a=1", "--set", "a=2"], "'a' is given twice"),
        (["--kafka-port", "99999"], "99999"),
    ],
)
def test_a_wrong_property_is_one_line_and_the_users_mistake(
    capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    assert main(["broker", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headwater: ")
    assert part in line
