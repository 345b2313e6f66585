"""Values of Avro through the registry: several writers, one reader; what is written; what is poison; evolution."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema

from headwater.pipelines.errors import PipelineFailed

pytestmark = pytest.mark.slow


def record(name: str, *fields: Any) -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": list(fields)})


ID = {"name": "id", "type": "int"}
LONG_ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
PRICE = {"name": "price", "type": "double", "default": 1.5}
V1 = record("Order", ID)
V2 = record("Order", LONG_ID, NAME)
V3 = record("Order", LONG_ID, NAME, PRICE)


def test_values_of_several_writers_become_one_readers_columns_and_are_written_for_confluents_clients(
    lab: Any, registry: Any, avro: Any, read_avro: Any, schemas: Any
) -> None:
    schemas.set_compatibility(f"{lab.prefix}in-value", "NONE")
    lab.produce("@in", [
        ("a", avro("@in", V1, {"id": 1})), ("b", avro("@in", V2, {"id": 2, "name": "two"})),
        ("c", avro("@in", V3, {"id": 3, "name": None, "price": 9.0})),
    ])  # fmt: skip
    lab.write("order.avsc", V3)
    lab.run(
        f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics:
  "@in": {{value: avro, schema: order.avsc}}
  "@out": {{value: avro, schema: order.avsc, key: avro}}
  "@derived": {{value: avro}}
stages:
  - name: s
    from: {{topic: "@in", as: o}}
    sql: SELECT id, name, price * 2 AS price FROM o
    to:
      - {{topic: "@out", key: id}}
      - {{topic: "@derived"}}
      - {{delta: lake/orders}}
  - name: again
    from: {{topic: "@derived", as: d}}
    sql: SELECT id, price FROM d WHERE name IS NULL
    to: {{delta: lake/again}}
"""
    )
    expected = [(1, None, 3.0), (2, "two", 3.0), (3, None, 18.0)]
    assert lab.delta("lake/orders", "id", "name", "price") == expected
    assert lab.delta("lake/again", "id", "price") == [(1, 3.0), (3, 18.0)]
    wanted = [{"id": i, "name": n, "price": p} for i, n, p in expected]
    assert sorted(read_avro("@out"), key=lambda row: row["id"]) == wanted
    assert sorted(read_avro("@derived"), key=lambda row: row["id"]) == wanted
    registered = {v: schemas.get_latest_version(f"{lab.prefix}out-{v}").schema_id for v in ("key", "value")}
    seen = lab.read("@out")
    assert {struct.unpack(">bI", record.key[:5]) for record in seen} == {(0, registered["key"])}
    assert {struct.unpack(">bI", record.value[:5]) for record in seen} == {(0, registered["value"])}


def test_without_auto_register_only_a_schema_that_is_there_is_written(
    lab: Any, registry: Any, read_avro: Any, schemas: Any
) -> None:
    lab.produce("@in", ['{"id": 1}'])
    lab.write("order.avsc", V2)
    lab.write("in.json", '{"type": "object", "properties": {"id": {"type": "integer"}}}')
    pipeline = f"""\
pipeline: p
registry: {{url: "{registry.url}", auto_register: false}}
topics:
  "@in": {{value: json, schema: in.json}}
  "@out": {{value: avro, schema: order.avsc}}
stages:
  - name: s
    from: {{topic: "@in", as: o}}
    sql: SELECT id, CAST(NULL AS STRING) AS name FROM o
    to: {{topic: "@out"}}
"""
    subject = f"{lab.prefix}out-value"
    with pytest.raises(PipelineFailed) as caught:
        lab.run(pipeline)
    assert f"(subject {subject}) cannot be used" in str(caught.value)
    assert subject not in schemas.get_subjects()
    assert lab.read("@out") == []

    there = schemas.register_schema(subject, Schema(V2, "AVRO"))
    lab.run(pipeline)
    assert read_avro("@out") == [{"id": 1, "name": None}]
    assert [struct.unpack(">bI", record.value[:5]) for record in lab.read("@out")] == [(0, there)]
    assert len(schemas.get_versions(subject)) == 1


def test_poison_of_every_kind_becomes_a_dead_letter(lab: Any, registry: Any, avro: Any) -> None:
    good = avro("@in", V2, {"id": 2, "name": "two"})
    other = avro("@other", record("Invoice", NAME), {"name": "x"})
    poison = {
        "truncated": good[:-2],
        "no magic": b"\x01" + good[1:],
        "short": b"\x00\x00",
        "empty": b"",
        "json": b'{"id": 1}',
        "unknown id": b"\x00" + struct.pack(">I", 1_000_000) + good[5:],
        "another record": other,
        "null": None,
    }
    lab.produce("@in", [("good", good), *poison.items(), ("good", good)])
    lab.write("order.avsc", V2)
    result = lab.run(
        f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics: {{"@in": {{value: avro, schema: order.avsc}}}}
stages: [{{name: s, from: {{topic: "@in"}}, to: {{delta: lake/orders}}}}]
"""
    )
    assert lab.delta("lake/orders", "id", "name", "_offset") == [(2, "two", 0), (2, "two", 9)]
    assert result.totals["s"].undecodable == len(poison)
    letters = {seen.key.decode(): seen for seen in lab.read("@in.dead_letters")}
    assert {key: seen.value for key, seen in letters.items()} == poison
    said = {key: seen.headers["headwater.error"].decode() for key, seen in letters.items()}
    assert "it ends too early" in said["truncated"]
    assert "does not begin with the id of a schema" in said["no magic"]
    assert "too short" in said["short"]
    assert "no schema with the id 1000000" in said["unknown id"]
    assert said["null"] == "the value is null"
    what = f"(subject {lab.prefix}other-value) cannot be read as the schema here"
    assert what in said["another record"]
    assert "the reader has shop.Order there, the writer shop.Invoice" in said["another record"]


def test_an_incompatible_writer_stops_a_stage_that_says_so_with_everything_in_one_line(
    lab: Any, registry: Any, avro: Any, schemas: Any
) -> None:
    schemas.set_compatibility(f"{lab.prefix}in-value", "NONE")
    lab.produce("@in", [
        avro("@in", V2, {"id": 2, "name": "two"}),
        avro("@in", record("Order", {"name": "id", "type": "string"}), {"id": "x"}),
    ])  # fmt: skip
    lab.write("order.avsc", V2)
    with pytest.raises(PipelineFailed) as caught:
        lab.run(
            f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics: {{"@in": {{value: avro, schema: order.avsc, incompatible: fail}}}}
stages: [{{name: s, from: {{topic: "@in"}}, to: {{delta: lake/orders}}}}]
"""
        )
    said = str(caught.value)
    assert f"topic '{lab.prefix}in'" in said
    assert f"(subject {lab.prefix}in-value)" in said
    assert "field id: string, as the writer has it, cannot be read as long (partition 0, offset 1)" in said
    assert "\n" not in said


def test_a_new_optional_field_flows_to_the_table_at_the_next_start(lab: Any, registry: Any, avro: Any) -> None:
    text = f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics: {{"@in": {{value: avro, schema: registry}}}}
stages: [{{name: s, from: {{topic: "@in", as: o}}, sql: "SELECT * FROM o", to: {{delta: lake/orders}}}}]
"""
    lab.produce("@in", [avro("@in", V1, {"id": 1})])
    lab.run(text)
    assert "name" not in lab.spark.read.format("delta").load(str(lab.folder / "lake/orders")).columns
    lab.produce("@in", [avro("@in", record("Order", ID, NAME), {"id": 2, "name": "two"})])
    lab.run(text)
    assert lab.delta("lake/orders", "id", "name") == [(1, None), (2, "two")]


def test_keys_of_avro_are_columns(lab: Any, registry: Any, schemas: Any, avro: Any) -> None:
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext(f"{lab.prefix}in", MessageField.KEY)
    key = AvroSerializer(schemas, record("Key", ID))({"id": 7}, context)
    value = avro("@in", V1, {"id": 1})
    lab.produce("@in", [(key, value), (None, value), (b"\x00\x00\x00\x00", value)])
    lab.run(
        f"""\
pipeline: p
registry: {{url: "{registry.url}"}}
topics: {{"@in": {{value: avro, schema: registry, key: avro, key_schema: registry}}}}
stages: [{{name: s, from: {{topic: "@in", as: o}}, sql: "SELECT id, o.key.id AS k FROM o", to: {{delta: lake/o}}}}]
"""
    )
    assert lab.delta("lake/o", "id", "k") == [(1, 7), (1, None)]
    (letter,) = lab.read("@in.dead_letters")
    assert letter.headers["headwater.error"] == b"the key is too short for the id of a schema"
