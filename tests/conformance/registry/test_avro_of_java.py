"""Avro's own Java library beside ours: how a schema is written, and which readers understand which writers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from headwater.api.registry.avro.schema import AvroSchema
from headwater.pipelines.schemas.errors import InvalidSchemaError
from tests.avro_schemas import changed, schemas
from tests.jars import SPARK_JARS, java

pytestmark = pytest.mark.slow

EVERY_ATTRIBUTE = """
{"type": "record", "name": "x.R", "doc": "ü \\" \\n", "aliases": ["O", "y.P"], "z": [1, {"a": null}], "fields": [
  {"name": "a", "type": ["null", "R"], "default": null, "doc": "d", "order": "descending", "aliases": ["b"], "p": 1.5},
  {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A", "doc": "e"}},
  {"name": "f", "type": "x.E"},
  {"name": "g", "type": {"type": "fixed", "name": "q.F", "size": 3}},
  {"name": "h", "type": "q.F"}
]}"""
NAMESPACES = """
{"type": "record", "name": "R", "namespace": "x", "fields": [
  {"name": "a", "type": {"type": "record", "name": "S", "namespace": "", "fields": []}},
  {"name": "b", "type": {"type": "map", "values": {"type": "array", "items": "x.R"}}}
]}"""
DEFAULTS = """
{"type": "record", "name": "Lists", "fields": [
  {"name": "a", "type": {"type": "array", "items": "int", "p": 1}, "default": [1, 2]},
  {"name": "m", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\\u00ff"}}
]}"""
HAND_WRITTEN = [
    '"string"',
    '{"type":"int","logicalType":"date"}',
    '{"type":"bytes","scale":2,"precision":9,"logicalType":"decimal"}',
    EVERY_ATTRIBUTE,
    NAMESPACES,
    DEFAULTS,
    '["null",{"type":"record","name":"A","fields":[]},{"type":"enum","name":"B","symbols":["X"]},"long"]',
]
REFUSED = [
    "{",
    '{"type":"record","name":"R","fields":[{"name":"x","type":"Unknown"}]}',
    '{"type":"record","name":"R","fields":[{"name":"x","type":"int"},{"name":"x","type":"int"}]}',
    '{"type":"record","name":"R","fields":[{"name":"x","type":"int","default":"a"}]}',
    '{"type":"record","name":"1R","fields":[]}',
    '{"type":"record","name":"R"}',
    '["int","int"]',
    '["int",["null"]]',
    '{"type":"enum","name":"E","symbols":["A","A"]}',
    '{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
    '{"type":"fixed","name":"F","size":-1}',
    '{"type":"array"}',
]


class JavaAvro:
    """`org.apache.avro` in a Java process."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._avro = gateway.jvm.org.apache.avro

    def parse(self, text: str) -> Any:
        return self._avro.Schema.Parser().parse(text)

    def understands(self, reader: str, writer: str) -> bool:
        check = self._avro.SchemaCompatibility.checkReaderWriterCompatibility
        return str(check(self.parse(reader), self.parse(writer)).getType()) == "COMPATIBLE"


@pytest.fixture(scope="module")
def avro() -> Iterator[JavaAvro]:
    port = launch_gateway(
        classpath=f"{SPARK_JARS}/*",
        java_path=java(),
        jarpath=str(next(SPARK_JARS.glob("py4j-*.jar"))),
        javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield JavaAvro(gateway)
    gateway.shutdown()


def parse(text: str, *, new: bool = True) -> AvroSchema:
    return AvroSchema.parse(text, (), new=new)


@pytest.mark.parametrize("text", HAND_WRITTEN)
def test_a_schema_is_written_as_java_writes_it(avro: JavaAvro, text: str) -> None:
    assert parse(text).canonical == avro.parse(text).toString()


@settings(max_examples=200)
@given(schema=schemas())
def test_any_schema_is_written_as_java_writes_it(avro: JavaAvro, schema: Any) -> None:
    text = json.dumps(schema)
    assert parse(text).canonical == avro.parse(text).toString()


@pytest.mark.parametrize("text", REFUSED)
def test_what_java_refuses_is_refused(avro: JavaAvro, text: str) -> None:
    with pytest.raises(Py4JJavaError):
        avro.parse(text)
    with pytest.raises(InvalidSchemaError):
        parse(text)


@settings(max_examples=300)
@given(data=st.data())
def test_readers_understand_the_writers_that_java_says_they_do(avro: JavaAvro, data: st.DataObject) -> None:
    writer = data.draw(schemas())
    reader = data.draw(changed(writer))
    problems = parse(json.dumps(reader)).problems_reading(parse(json.dumps(writer)))
    assert (not problems) == avro.understands(json.dumps(reader), json.dumps(writer)), problems
