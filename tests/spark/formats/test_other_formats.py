"""Protobuf, JSON Schema, CSV, several event types, change events: each from a topic and back to one."""

from __future__ import annotations

import json
import struct
import threading
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

pytestmark = pytest.mark.slow

PROTO = """
syntax = "proto3";
package shop;
message Customer { int32 id = 1; }
message Order { int32 id = 1; string name = 2; repeated double prices = 3; }
"""
JSON_SCHEMA = json.dumps({
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object", "required": ["id"],
    "properties": {"id": {"type": "integer"}, "name": {"oneOf": [{"type": "null"}, {"type": "string"}]}},
})  # fmt: skip


def test_protobuf_json_schema_and_csv_are_read_and_written(lab: Any, registry: Any, schemas: Any) -> None:
    import pyarrow as pa

    from headwater.pipelines.formats.protobuf.encoder import ProtobufEncoder, row_type
    from headwater.pipelines.formats.registry_client import PROTOBUF, RegisteredSchema

    lab.write("order.proto", PROTO)
    lab.write("order.json", JSON_SCHEMA)
    subject = f"{lab.prefix}proto-value"
    own = RegisteredSchema(PROTOBUF, PROTO)
    schema_id = schemas.register_schema(subject, Schema(PROTO, PROTOBUF))
    rows = pa.array([{"id": 1, "name": "one", "prices": [1.5, 2.0]}], row_type(own, "Order"))
    (good,) = ProtobufEncoder(own, "Order").encode(rows, schema_id).to_pylist()
    customer = good[:5] + b"\x00\x08\x01"
    lab.produce("@proto", [good, good[:-3], customer, struct.pack(">bI", 0, 999_999) + b"\0", None])
    serialize = JSONSerializer(JSON_SCHEMA, schemas)
    context = SerializationContext(f"{lab.prefix}json", MessageField.VALUE)
    framed = serialize({"id": 1, "name": "one"}, context)
    lab.produce("@json", [framed, b'{"id": 2}', framed[:5] + b'{"name": "x"}', framed[:3]])
    lab.produce("@csv", ["1;one", "2;", "x;bad", "1;2;3", ""])
    lab.run(
        f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics:
  "@proto": {{value: protobuf, schema: registry, message: Order}}
  "@json": {{value: json_schema, schema: registry}}
  "@csv": {{value: csv, schema: order.json, options: {{sep: ";"}}}}
  "@proto_out": {{value: protobuf, schema: order.proto, message: Order}}
  "@json_out": {{value: json_schema, schema: order.json}}
  "@csv_out": {{value: csv, schema: order.json, key: json}}
stages:
  - name: proto
    from: {{topic: "@proto", as: p}}
    sql: SELECT id, name, prices FROM p
    to: [{{topic: "@proto_out"}}, {{delta: lake/proto}}]
  - name: json
    from: {{topic: "@json", as: j}}
    sql: SELECT id, name FROM j
    to: [{{topic: "@json_out"}}]
  - name: csv
    from: {{topic: "@csv", as: c}}
    sql: SELECT id, name FROM c
    to: [{{topic: "@csv_out", key: name}}]
"""
    )
    assert lab.delta("lake/proto", "id", "name") == [(1, "one")]
    assert [seen.value[5:] for seen in lab.read("@proto_out")] == [good[5:]]
    said = [seen.headers["headwater.error"].decode() for seen in lab.read("@proto.dead_letters")]
    assert len(said) == 4
    assert any("the reader has the message shop.Order, the writer shop.Customer" in text for text in said)
    (written,) = lab.read("@json_out")
    context = SerializationContext(f"{lab.prefix}json_out", MessageField.VALUE)
    assert JSONDeserializer(None, schema_registry_client=schemas)(written.value, context) == {"id": 1, "name": "one"}
    assert len(lab.read("@json.dead_letters")) == 3
    assert {(seen.key, seen.value) for seen in lab.read("@csv_out")} == {(b'"one"', b"1,one"), (None, b"2,")}
    wrong = {seen.value: seen.headers["headwater.error"].decode() for seen in lab.read("@csv.dead_letters")}
    number = "the value does not fit the schema: it has more or fewer fields than 2"
    assert wrong == {
        b"x;bad": "the value does not fit the schema: the field id is no BIGINT", b"1;2;3": number, b"": number
    }  # fmt: skip


ROW = {"type": "record", "name": "Value", "namespace": "db", "fields": [
    {"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"], "default": None},
]}  # fmt: skip
ENVELOPE = json.dumps({"type": "record", "name": "Envelope", "namespace": "db", "fields": [
    {"name": "before", "type": ["null", ROW], "default": None},
    {"name": "after", "type": ["null", "db.Value"], "default": None},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}},
    {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"], "default": None},
]})  # fmt: skip


def test_change_events_of_avro_become_rows(lab: Any, registry: Any, avro: Any) -> None:
    def change(op: str, before: Any, after: Any, at: int) -> bytes:
        event = {"op": op, "before": before, "after": after, "source": {"ts_ms": at}, "ts_ms": at}
        return bytes(avro("@db", ENVELOPE, event))

    ada, bob = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}
    lab.produce("@db", [
        ("1", change("c", None, ada, 1)), ("2", change("c", None, bob, 2)), ("2", change("d", bob, None, 3)),
        ("2", None),
        ("1", change("u", ada, {"id": 1, "name": "Ada L."}, 4)),
    ])  # fmt: skip
    lab.run(
        f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics: {{"@db": {{value: avro, schema: registry}}}}
stages:
  - name: s
    from: {{topic: "@db", as: c, envelope: debezium}}
    sql: SELECT * FROM c
    to: {{delta: lake/rows, merge: {{keys: [id], sequence: _sequence, delete_when: _op = 'd'}}}}
"""
    )
    assert lab.delta("lake/rows", "id", "name") == [(1, "Ada L.")]


def test_event_types_are_told_by_a_header_and_a_registry_that_is_away_for_a_moment_loses_nothing(
    lab: Any, registry: Any, avro: Any
) -> None:
    def schema(name: str, field: str) -> str:
        return json.dumps({"type": "record", "name": name, "fields": [{"name": field, "type": "int"}]})

    a, b = schema("A", "x"), schema("B", "y")
    lab.write("a.avsc", a)
    lab.write("b.avsc", b)
    first, second = avro("@a", a, {"x": 1}), avro("@b", b, {"y": 2})
    lab.produce("@in", [
        ("1", first, [("kind", b"a")]), ("2", second, [("kind", b"b")]), ("3", second, [("kind", b"c")]),
        ("4", first, None),
    ])  # fmt: skip
    registry.stop()
    timer = threading.Timer(12, registry.start)
    timer.start()
    try:
        lab.run(
            f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics:
  "@in": {{value: avro, event_type: {{header: kind}}, events: {{a: {{schema: a.avsc}}, b: {{schema: b.avsc}}}}}}
stages:
  - {{name: all, from: {{topic: "@in", as: e}}, sql: "SELECT _event, a.x, b.y FROM e", to: {{delta: lake/all}}}}
  - {{name: one, from: {{topic: "@in", event: b, as: e}}, sql: "SELECT y FROM e", to: {{delta: lake/one}}}}
"""
        )
    finally:
        timer.join()
    assert lab.delta("lake/all", "_event", "x", "y") == [("a", 1, None), ("b", None, 2)]
    assert lab.delta("lake/one", "y") == [(2,)]
    said = {seen.key: seen.headers["headwater.error"] for seen in lab.read("@in.dead_letters")}
    assert said == {b"3": b"the event 'c' is not declared", b"4": b"the record does not say which event it is"}
