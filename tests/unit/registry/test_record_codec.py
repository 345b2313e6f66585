"""Records as Confluent's registry writes them: the bytes of keys decide what compaction keeps."""

from __future__ import annotations

import json

import pytest

from headwater.api.registry.model import CompatibilityLevel, Config, Mode, Reference, Schema, SchemaType, SchemaVersion
from headwater.api.registry.record_codec import (
    ClearSubjectRecord,
    ConfigRecord,
    DeleteSubjectRecord,
    ModeRecord,
    NoopRecord,
    Record,
    RecordFormatError,
    SchemaRecord,
    decode,
    encode,
)

PLAIN = SchemaVersion("s", 2, 7, Schema(SchemaType.AVRO, '"int"'))
FULL = SchemaVersion(
    "s",
    3,
    8,
    Schema(
        SchemaType.PROTOBUF,
        'syntax = "proto3";\n',
        (Reference("a.proto", "a", 1),),
        {"properties": {"owner": "me"}, "tags": {"x": ["PII"]}},
        {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}]},
    ),
    deleted=True,
)


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (SchemaRecord("s", 2, PLAIN), '{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}'),
        (ConfigRecord("s", Config()), '{"keytype":"CONFIG","subject":"s","magic":0}'),
        (ConfigRecord(None, Config()), '{"keytype":"CONFIG","magic":0}'),
        (ModeRecord("s", Mode.IMPORT), '{"keytype":"MODE","subject":"s","magic":0}'),
        (DeleteSubjectRecord("s", 2), '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}'),
        (ClearSubjectRecord("s"), '{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}'),
        (NoopRecord(), '{"keytype":"NOOP","magic":0}'),
    ],
)
def test_keys_have_confluents_bytes(record: Record, key: str) -> None:
    assert encode(record)[0] == key.encode()


def test_avro_is_not_said_and_the_digest_is() -> None:
    value = encode(SchemaRecord("s", 2, PLAIN))[1]
    assert value is not None
    assert json.loads(value) == {
        "subject": "s",
        "version": 2,
        "id": 7,
        "md5": "71JOobkecxc9k4reNsHbMg==",
        "schema": '"int"',
        "deleted": False,
    }


@pytest.mark.parametrize(
    "record",
    [
        SchemaRecord("s", 2, PLAIN),
        SchemaRecord("s", 3, FULL),
        SchemaRecord("s", 3, None),
        ConfigRecord("s", Config(CompatibilityLevel.FULL, True)),
        ConfigRecord(None, Config(None, None, {"compatibilityGroup": "g"})),
        ConfigRecord("s", None),
        ModeRecord(None, Mode.READONLY),
        ModeRecord("s", None),
        DeleteSubjectRecord("ü/s", 4),
        ClearSubjectRecord(None),
        NoopRecord(),
    ],
)
def test_what_is_written_is_read(record: Record) -> None:
    assert decode(*encode(record)) == record


def test_a_record_of_an_older_registry_gets_its_digest_here() -> None:
    key = b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}'
    old = decode(key, b'{"subject":"s","version":2,"id":7,"schema":"\\"int\\"","deleted":false}')
    assert old == SchemaRecord("s", 2, PLAIN)


def test_a_kind_from_the_future_is_none_of_ours() -> None:
    assert decode(b'{"keytype":"ASSOCIATION","magic":0}', b"{}") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\x00\x01", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","magic":1}', None),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1,"schema":"","schemaType":"XML"}'),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":1,"schema":"","md5":"AA=="}'),
        (b'{"keytype":"MODE","magic":0}', b'{"mode":"ASLEEP"}'),
        (b"[" * 100_000, None),
    ],
)
def test_what_is_no_record_is_told(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(RecordFormatError):
        decode(key, value)
