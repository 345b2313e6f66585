"""Reading the log back, other writers, and what else the log may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.api.registry import errors
from headwater.api.registry.errors import RegistryError
from headwater.api.registry.model import Schema, SchemaType, SchemaVersion
from headwater.api.registry.record_codec import SchemaRecord, encode

INT = '{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}'
LONG = '{"type":"record","name":"R","fields":[{"name":"x","type":"long"}]}'


def compacted(records: list[tuple[bytes, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    """The last record of each key, in order, without tombstones."""
    last = {key: index for index, (key, _) in enumerate(records)}
    return [record for index, record in enumerate(records) if last[record[0]] == index and record[1] is not None]


def everything(client: Any) -> Any:
    return [
        client.call("GET", path).json()
        for path in ("/schemas?deleted=true", "/subjects", "/config", "/config/s", "/mode", "/mode/t")
    ]


def busy(client: Any) -> None:
    for subject in "stuv":
        client.register(subject, INT)
        client.register(subject, LONG)
    client.call("PUT", "/config/s", {"compatibility": "FULL"})
    client.call("PUT", "/mode/t", {"mode": "READWRITE"})
    client.call("DELETE", "/subjects/t/versions/1")
    client.call("DELETE", "/subjects/u")
    client.call("DELETE", "/subjects/v")
    client.call("DELETE", "/subjects/v?permanent=true")
    client.register("u", INT)


def test_another_process_comes_to_the_same_state_from_the_same_records(client: Any) -> None:
    busy(client)
    again = type(client)(list(client.records))
    assert everything(again) == everything(client)


def test_compaction_loses_nothing(client: Any) -> None:
    busy(client)
    kept = compacted(client.records)
    assert len(kept) < len(client.records)
    assert everything(type(client)(kept)) == everything(client)


def test_a_change_is_decided_anew_when_another_registry_wrote_in_between(client: Any) -> None:
    client.register("s", INT)
    taken = SchemaVersion("t", 1, 2, Schema(SchemaType.AVRO, '"string"'))
    client.log.fence([encode(SchemaRecord("t", 1, taken))])
    assert client.register("s", LONG) == 3
    assert client.call("GET", "/schemas/ids/2").json()["schema"] == '"string"'


def test_a_registry_that_is_always_too_late_gives_up(client: Any) -> None:
    for _ in range(10):
        client.log.fence([])
    assert client.failure("POST", "/subjects/s/versions", {"schema": INT}) == (500, 50004)


def test_a_write_that_fails_is_told_and_the_next_one_goes_on(client: Any) -> None:
    client.register("s", INT)
    client.log.failures.append(RegistryError(errors.STORE_TIMED_OUT, "no answer"))
    assert client.failure("POST", "/subjects/s/versions", {"schema": LONG}) == (500, 50002)
    client.log.failures.append(RegistryError(errors.SCHEMA_TOO_LARGE, "too large"))
    assert client.failure("POST", "/subjects/s/versions", {"schema": LONG}) == (422, 42209)
    assert client.register("s", LONG) == 2


def test_nothing_is_written_for_what_is_there(client: Any) -> None:
    client.register("s", INT)
    count = len(client.records)
    client.register("s", INT)
    assert len(client.records) == count


def test_records_that_nobody_here_knows_are_left_alone(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    client.register("s", INT)
    elsewhere = SchemaVersion(":.lab:s", 1, 1, Schema(SchemaType.AVRO, '"string"'))
    client.records += [
        (b'{"keytype":"ASSOCIATION","magic":0}', b"{}"),
        encode(SchemaRecord(":.lab:s", 1, elsewhere)),
        (b"garbage", b"more"),
        (b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"compatibilityLevel":"FULL","compatibilityGroup":"g"}'),
    ]
    assert client.call("GET", "/subjects").json() == ["s"]
    assert client.call("GET", "/config/s").json() == {"compatibilityLevel": "FULL", "compatibilityGroup": "g"}
    assert client.call("PUT", "/config/s", {"compatibility": "NONE"}).status_code == 200
    assert json.loads(client.records[-1][1])["compatibilityGroup"] == "g"
    assert "contexts" in caplog.text
    assert "garbage" not in caplog.text


def test_a_text_laid_out_by_another_registry_is_the_same_schema(client: Any) -> None:
    text = 'syntax = "proto3";\nmessage M { string a = 1; }'
    theirs = SchemaVersion("s", 1, 9, Schema(SchemaType.PROTOBUF, text))
    client.records.append(encode(SchemaRecord("s", 1, theirs)))
    assert client.register("s", 'syntax = "proto3"; message M { string a=1; }', schemaType="PROTOBUF") == 9


def test_a_stored_schema_that_cannot_be_understood_stands_in_the_way_of_checks_only(client: Any) -> None:
    broken = SchemaVersion("s", 1, 1, Schema(SchemaType.AVRO, "{"))
    client.records.append(encode(SchemaRecord("s", 1, broken)))
    assert client.call("GET", "/subjects/s/versions/1").json()["schema"] == "{"
    assert client.failure("POST", "/subjects/s/versions", {"schema": INT}) == (409, 409)
    client.call("PUT", "/config/s", {"compatibility": "NONE"})
    assert client.register("s", INT) == 2
