"""Archives of topics whose values have schemas in a registry: ours, as users run it."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headwater.pipelines.formats.protobuf.encoder import ProtobufEncoder, row_type
from headwater.pipelines.formats.registry_client import PROTOBUF, RegisteredSchema
from tests.spark.pipelines.archive.conftest import Archives
from tests.spark.registry_process import registry, schemas

__all__ = ["registry", "schemas"]

pytestmark = pytest.mark.slow

PROTO = 'syntax = "proto3"; package shop; message Order { int32 id = 1; string name = 2; repeated double prices = 3; }'


def avro_schema(*more: dict[str, Any]) -> str:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}, *more]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def avro(archives: Archives, client: SchemaRegistryClient, schema: str, record: dict[str, Any]) -> bytes:
    """A value as Confluent's serializer writes it, its schema registered."""
    context = SerializationContext(f"{archives.lab.prefix}t", MessageField.VALUE)
    made = AvroSerializer(client, schema)(record, context)
    assert made is not None
    return bytes(made)


def test_avro_by_the_latest_schema_and_a_column_that_it_gets(
    archives: Archives, registry: Any, schemas: SchemaRegistryClient
) -> None:
    text = (
        f'registry: {{url: "{registry.url}"}}\n'
        'topics: {"@t": {value: avro, schema: registry}}\n'
        'archive: {root: lake, merge_schema: true, topics: {"@t": }}\n'
    )
    first, second = avro_schema(), avro_schema({"name": "price", "type": ["null", "double"], "default": None})
    archives.lab.produce(
        "@t", [("a", avro(archives, schemas, first, {"id": 1, "name": "one"}), [("h", b"1")]), b"junk", None]
    )
    archives.caught_up(text)
    rows = archives.rows("@t", "_key", "id", "name", "_value")
    assert [row[2:] for row in rows] == [(b"a", 1, "one", None), (None, None, None, b"junk"), (None, None, None, None)]
    errors = [row[2] for row in archives.rows("@t", "_error")]
    assert errors[0] is None
    assert all(errors[1:])
    archives.lab.produce("@t", [avro(archives, schemas, second, {"id": 2, "name": None, "price": 1.5})])
    archives.lab.produce("@t", [avro(archives, schemas, first, {"id": 3, "name": "three"})])
    archives.caught_up(text)
    rows = archives.rows("@t", "id", "name", "price")
    assert [row[2:] for row in rows if row[2]] == [(1, "one", None), (2, None, 1.5), (3, "three", None)]
    assert archives.state("@t").ends == {0: 5}


def test_protobuf_of_a_registry(archives: Archives, registry: Any, schemas: SchemaRegistryClient) -> None:
    schema_id = schemas.register_schema(f"{archives.lab.prefix}t-value", Schema(PROTO, PROTOBUF))
    own = RegisteredSchema(PROTOBUF, PROTO)
    made = pa.array([{"id": 1, "name": "one", "prices": [1.5, 2.0]}], row_type(own, "Order"))
    [good] = ProtobufEncoder(own, "Order").encode(made, schema_id).to_pylist()
    unknown = struct.pack(">bI", 0, 999_999) + b"\0"
    archives.lab.produce("@t", [("a", good), good[:-3], unknown])
    archives.caught_up(
        f'registry: {{url: "{registry.url}"}}\n'
        'topics: {"@t": {value: protobuf, schema: registry, message: Order}}\n'
        'archive: {root: lake, topics: {"@t": }}\n'
    )
    rows = archives.rows("@t", "id", "name", "prices", "_value")
    assert rows[0][2:5] == (1, "one", [1.5, 2.0])
    assert [row[5] for row in rows] == [None, good[:-3], unknown]
    assert (archives.rounds[0].rows, archives.rounds[0].errors) == (3, 2)
