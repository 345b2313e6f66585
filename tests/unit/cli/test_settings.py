"""Where settings come from, and what is said about one that cannot be used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headwater.settings import FIELDS, Settings, SettingsError, load_settings


def write(tmp_path: Path, text: str) -> dict[str, str]:
    """A settings file, and the environment that names it."""
    path = tmp_path / "platform.yaml"
    path.write_text(text)
    return {"HEADWATER_SETTINGS": str(path)}


def test_without_a_file_and_an_environment_there_are_the_defaults() -> None:
    assert load_settings({}) == Settings()


def test_the_file_replaces_defaults_and_the_environment_replaces_the_file(tmp_path: Path) -> None:
    environment = write(tmp_path, "kafka_port: 0\nhttp_port: 1\ndata_dir: lake\n") | {"HEADWATER_HTTP_PORT": "2"}
    assert load_settings(environment) == dataclasses.replace(Settings(), kafka_port=0, http_port=2, data_dir="lake")


def test_the_file_of_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "platform.yaml").write_text("kafka_port: 5\n")
    assert load_settings({}).kafka_port == 5


@pytest.mark.parametrize("text", ["", "# only\n\n  # comments\n", "---\n"])
def test_a_file_without_settings_changes_nothing(tmp_path: Path, text: str) -> None:
    assert load_settings(write(tmp_path, text)) == Settings()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("kafka_port: 0\nkafka_prot: 1\n", 2, "unknown setting 'kafka_prot'; did you mean 'kafka_port'"),
        ("zzz: 1\n", 1, "unknown setting 'zzz'; known are"),
        ("kafka_port: 1\nkafka_port: 2\n", 2, "kafka_port is set twice"),
        ("kafka_port: high\n", 1, "kafka_port is 'high'; it must be a whole number"),
        ("kafka_port: 70000\n", 1, "kafka_port is 70000; it must be from 0 to 65535"),
        ("kafka_port: -1\n", 1, "it must be from 0 to 65535"),
        ("kafka_port: [1, 2]\n", 1, "kafka_port must be one value"),
        ("log_level: LOUD\n", 1, "it must be one of DEBUG"),
        ("host: ''\n", 1, "host is empty"),
        ("- kafka_port\n", 1, "must be a mapping"),
        ("a: b: c\n", 1, "is not YAML"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    environment = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_settings(environment)
    assert str(caught.value).startswith(f"{environment['HEADWATER_SETTINGS']}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_named_and_not_there_is_told() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_settings({"HEADWATER_SETTINGS": "nowhere.yaml"})


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load_settings({"HEADWATER_SETTINGS": str(path)})


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(SettingsError, match="is larger than"):
        load_settings({"HEADWATER_SETTINGS": str(path)})


def test_every_setting_is_documented_and_every_number_has_limits() -> None:
    for name, field in FIELDS.items():
        assert field.metadata["doc"].endswith("."), name
        if isinstance(field.default, int):
            assert field.metadata["min"] <= field.default <= field.metadata["max"], name
            assert name.endswith(("_ms", "_max", "_port")), f"{name}: units last"
