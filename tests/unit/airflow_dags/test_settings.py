"""The DAGs' settings: read whole, and every mistake is one line that names its place."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from headwater_settings import FILE_VARIABLE, SettingsError, read_settings, settings_of

ROOT = Path(__file__).parents[3]
LOAD: dict[str, Any] = {"name": "hourly", "topics": ["a", "b"], "to": "/lake/{topic}", "start": "2024-01-01"}


def test_the_example_is_valid_and_shows_every_kind() -> None:
    found = read_settings({FILE_VARIABLE: str(ROOT / "conf" / "airflow.yaml")})
    assert found.loads
    assert found.events
    assert found.publish
    assert found.lag


def test_defaults_and_times() -> None:
    [load] = settings_of({"loads": [LOAD]}).loads
    assert (load.format, load.schedule, load.retries) == ("delta", "0 * * * *", 3)
    assert load.start == datetime(2024, 1, 1, tzinfo=UTC)
    [load] = settings_of(yaml.safe_load("loads: [{name: n, topics: [a], to: /x, start: 2024-05-01}]")).loads
    assert load.start == datetime(2024, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic": ["a"]}, "loads[0]: unknown setting 'topic'; did you mean 'topics'?"),
        ({"topics": "a"}, "loads[0].topics: must be a list"),
        ({"topics": []}, "hourly: topics: name at least one"),
        ({"to": "/lake"}, "hourly: to: several topics need {topic} in the URL"),
        ({"to": 3}, "loads[0].to: '3' must be text"),
        ({"retries": True}, "loads[0].retries: 'True' must be a whole number"),
        ({"retries": -1}, "loads[0].retries: -1 must not be negative"),
        ({"start": "soon"}, "loads[0].start: 'soon' is no time"),
        ({"name": "a b"}, "name: 'a b': use 1 to 100"),
        ({"check": {"gaps": "maybe"}}, "loads[0].check.gaps: 'maybe' must be one of fail, allow"),
        ({"format": "avro", "maintenance": {"schedule": "0 3 * * 0"}}, "avro has neither OPTIMIZE nor VACUUM"),
        ({"maintenance": {}}, "loads[0].maintenance: schedule is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings_of({"loads": [LOAD | change]})
    assert message in str(raised.value)


def test_what_entries_say_about_each_other_is_checked() -> None:
    publish = {"name": "p", "path": "/x", "topic": "t", "key": ["k"]}
    for document, message in (
        ({"loads": [LOAD, LOAD]}, "'hourly' is given twice"),
        ({"loads": [LOAD], "publish": [publish | {"after": ["hourli"]}]}, "no load 'hourli'; did you mean 'hourly'?"),
        ({"loads": [LOAD, LOAD | {"name": "daily"}]}, "daily: to: /lake/a is a target of hourly already"),
        ({"publish": [publish]}, "give either after or schedule"),
        ({"loads": [{"name": "x"}]}, "topics is missing"),
        ([], "must be a mapping"),
    ):
        with pytest.raises(SettingsError, match=message):
            settings_of(document)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dags.yaml"
    with pytest.raises(SettingsError, match=f"{path}: cannot be read: No such file"):
        read_settings({FILE_VARIABLE: str(path)})
    path.write_text("loads: [\n")
    with pytest.raises(SettingsError, match=rf"{path}:\d+: is not YAML"):
        read_settings({FILE_VARIABLE: str(path)})
    path.write_text("lods: []\n")
    with pytest.raises(SettingsError, match=f"{path}: settings: unknown setting 'lods'; did you mean 'loads'"):
        read_settings({FILE_VARIABLE: str(path)})
