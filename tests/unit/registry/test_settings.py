"""Levels, modes and compatibility checks over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

INT = '{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}'
LONG = '{"type":"record","name":"R","fields":[{"name":"x","type":"long"}]}'
OTHER = '{"type":"record","name":"R","fields":[{"name":"y","type":"int"}]}'
OPTIONAL = '{"type":"record","name":"R","fields":[{"name":"x","type":"int"},{"name":"y","type":"int","default":0}]}'


def test_backward_is_the_default_and_a_subject_may_have_its_own(client: Any) -> None:
    assert client.call("GET", "/config").json() == {"compatibilityLevel": "BACKWARD"}
    assert client.failure("GET", "/config/s") == (404, 40408)
    assert client.call("GET", "/config/s?defaultToGlobal=true").json() == {"compatibilityLevel": "BACKWARD"}
    assert client.call("PUT", "/config", {"compatibility": "FULL"}).json() == {"compatibility": "FULL"}
    assert client.call("PUT", "/config/s", {"compatibility": "none"}).json() == {"compatibility": "NONE"}
    assert client.call("PUT", "/config/s", {"normalize": True}).json() == {"normalize": True}
    assert client.call("GET", "/config/s").json() == {"normalize": True, "compatibilityLevel": "NONE"}
    assert client.call("DELETE", "/config/s").json() == {"normalize": True, "compatibilityLevel": "NONE"}
    assert client.failure("DELETE", "/config/s") == (404, 40401)
    assert client.call("GET", "/config/s?defaultToGlobal=true").json() == {"compatibilityLevel": "FULL"}
    assert client.call("DELETE", "/config").json() == {"compatibilityLevel": "FULL"}
    assert client.call("GET", "/config").json() == {"compatibilityLevel": "BACKWARD"}


def test_a_level_that_does_not_exist_is_42203_and_an_unknown_setting_is_named(client: Any) -> None:
    assert client.failure("PUT", "/config", {"compatibility": "SIDEWAYS"}) == (422, 42203)
    answer = client.call("PUT", "/config/s", {"compatibilityGroup": "major"})
    assert answer.status_code == 422
    assert "compatibilityGroup" in answer.json()["message"]
    assert client.call("PUT", "/config/s", {"compatibility": "FULL", "validateFields": False}).status_code == 200


@pytest.mark.parametrize(
    ("level", "first", "second", "compatible"),
    [
        ("NONE", INT, OTHER, True),
        ("BACKWARD", INT, LONG, True),
        ("BACKWARD", LONG, INT, False),
        ("FORWARD", LONG, INT, True),
        ("FORWARD", INT, LONG, False),
        ("FULL", INT, OPTIONAL, True),
        ("FULL", INT, LONG, False),
    ],
)
def test_each_level_looks_in_its_direction(client: Any, level: str, first: str, second: str, compatible: bool) -> None:
    client.register("s", first)
    client.call("PUT", "/config/s", {"compatibility": level})
    for path in ("/compatibility/subjects/s/versions/latest", "/compatibility/subjects/s/versions"):
        answer = client.call("POST", path, {"schema": second})
        assert answer.json() == {"is_compatible": compatible}
    registered = client.call("POST", "/subjects/s/versions", {"schema": second})
    assert registered.status_code == (200 if compatible else 409)


@pytest.mark.parametrize(("level", "compatible"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)])
def test_a_transitive_level_looks_at_every_version(client: Any, level: str, compatible: bool) -> None:
    client.call("PUT", "/config/s", {"compatibility": "NONE"})
    client.register("s", LONG)
    client.register("s", OTHER)
    client.call("PUT", "/config/s", {"compatibility": level})
    candidate = {"schema": '{"type":"record","name":"R","fields":[{"name":"y","type":"int"},{"name":"x","type":"int",'
                           '"default":1}]}'}  # fmt: skip
    answer = client.call("POST", "/compatibility/subjects/s/versions?verbose=true", candidate).json()
    assert answer["is_compatible"] is compatible
    assert bool(answer["messages"]) is not compatible


def test_a_verbose_check_tells_what_is_wrong_and_with_which_version(client: Any) -> None:
    client.register("s", LONG)
    path = "/compatibility/subjects/s/versions/1?verbose=true"
    messages = client.call("POST", path, {"schema": INT}).json()["messages"]
    assert "TYPE_MISMATCH" in messages[0]
    assert "/fields/0/type/" in messages[0]
    assert "{oldSchemaVersion: 1}" in messages
    assert "{compatibility: 'BACKWARD'}" in messages
    assert client.call("POST", path, {"schema": "{"}).json()["is_compatible"] is False
    assert client.failure("POST", path.partition("?")[0], {"schema": "{"}) == (422, 42201)


def test_checking_against_what_is_not_there(client: Any) -> None:
    assert client.call("POST", "/compatibility/subjects/s/versions/latest", {"schema": INT}).json()["is_compatible"]
    assert client.call("POST", "/compatibility/subjects/s/versions", {"schema": INT}).json()["is_compatible"]
    assert client.failure("POST", "/compatibility/subjects/s/versions/1", {"schema": INT}) == (404, 40402)


def test_another_language_is_incompatible(client: Any) -> None:
    client.register("s", INT)
    body = {"schema": '{"type":"object"}', "schemaType": "JSON"}
    answer = client.call("POST", "/compatibility/subjects/s/versions/latest?verbose=true", body).json()
    assert answer["is_compatible"] is False
    assert "different schema type" in answer["messages"][0]


def test_nothing_is_written_in_a_read_only_mode(client: Any) -> None:
    client.register("s", INT)
    assert client.failure("GET", "/mode/s") == (404, 40409)
    assert client.call("PUT", "/mode/s", {"mode": "READONLY"}).json() == {"mode": "READONLY"}
    assert client.failure("POST", "/subjects/s/versions", {"schema": LONG}) == (422, 42205)
    assert client.failure("DELETE", "/subjects/s") == (422, 42205)
    assert client.failure("DELETE", "/subjects/s/versions/1") == (422, 42205)
    assert client.failure("PUT", "/config/s", {"compatibility": "FULL"}) == (422, 42205)
    assert client.call("DELETE", "/mode/s").json() == {"mode": "READONLY"}
    assert client.register("s", LONG) == 2
    assert client.failure("DELETE", "/mode/s") == (404, 40401)


def test_read_only_for_all_is_overridden_by_a_subject_unless_it_says_so(client: Any) -> None:
    client.call("PUT", "/mode", {"mode": "READONLY"})
    client.call("PUT", "/mode/s", {"mode": "READWRITE"})
    assert client.register("s", INT) == 1
    client.call("PUT", "/mode", {"mode": "READONLY_OVERRIDE"})
    assert client.failure("POST", "/subjects/s/versions", {"schema": LONG}) == (422, 42205)
    assert client.call("GET", "/mode/s?defaultToGlobal=true").json() == {"mode": "READONLY_OVERRIDE"}
    assert client.call("DELETE", "/mode").json() == {"mode": "READONLY_OVERRIDE"}


def test_a_mode_that_does_not_exist_is_42204(client: Any) -> None:
    assert client.failure("PUT", "/mode", {"mode": "ASLEEP"}) == (422, 42204)


def test_an_import_keeps_ids_and_versions_of_another_registry(client: Any) -> None:
    assert client.failure("POST", "/subjects/s/versions", {"schema": INT, "id": 40}) == (422, 42205)
    client.call("PUT", "/mode", {"mode": "IMPORT"})
    assert client.failure("POST", "/subjects/s/versions", {"schema": INT}) == (422, 42205)
    assert client.register("s", INT, id=40, version=3) == 40
    assert client.register("s", OTHER, id=41, version=5) == 41
    assert client.call("GET", "/subjects/s/versions").json() == [3, 5]
    assert client.failure("POST", "/subjects/t/versions", {"schema": LONG, "id": 40, "version": 1}) == (422, 42205)
    assert client.failure("POST", "/subjects/s/versions", {"schema": LONG, "id": 50, "version": 5}) == (422, 42205)
    client.call("PUT", "/mode", {"mode": "READWRITE"})
    assert client.register("u", LONG) == 42


def test_imports_begin_with_nothing_unless_forced(client: Any) -> None:
    client.register("s", INT)
    assert client.failure("PUT", "/mode", {"mode": "IMPORT"}) == (422, 42205)
    assert client.call("PUT", "/mode/other", {"mode": "IMPORT"}).status_code == 200
    assert client.call("PUT", "/mode?force=true", {"mode": "IMPORT"}).status_code == 200
    client.call("PUT", "/mode", {"mode": "READWRITE"})
    client.call("DELETE", "/subjects/s")
    assert client.call("PUT", "/mode", {"mode": "IMPORT"}).status_code == 200
    assert client.call("GET", "/subjects?deleted=true").json() == []


def test_a_version_out_of_turn_is_refused(client: Any) -> None:
    client.register("s", INT)
    assert client.failure("POST", "/subjects/s/versions", {"schema": LONG, "version": 3}) == (422, 42201)
    assert client.register("s", LONG, version=2) == 2


def test_the_settings_of_a_subject_go_with_it(client: Any) -> None:
    client.register("s", INT)
    client.call("PUT", "/config/s", {"compatibility": "FULL"})
    client.call("PUT", "/mode/s", {"mode": "READWRITE"})
    client.call("DELETE", "/subjects/s/versions/1")
    assert client.failure("GET", "/config/s") == (404, 40408)
    assert client.failure("GET", "/mode/s") == (404, 40409)
