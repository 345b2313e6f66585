"""The unmodified serializers and the client of confluent-kafka for Python, against our registry and our broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.logging.type import http_request_pb2
from google.rpc import error_details_pb2, status_pb2
from google.rpc.context import attribute_context_pb2

pytestmark = pytest.mark.slow

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [{"name": "number", "type": "int"}, {"name": "tail", "type": ["null", "string"], "default": None}],
}
WITH_ORIGIN = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "origin", "type": "string", "default": "?"}]}
FLIGHT_JSON = {
    "title": "Flight",
    "type": "object",
    "properties": {"number": {"type": "integer"}, "tail": {"type": "string"}},
    "required": ["number"],
    "additionalProperties": False,
}


@pytest.fixture
def client(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"flights-{uuid.uuid4().hex[:12]}"


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def through_kafka(bootstrap_servers: str, topic: str, value: bytes) -> bytes:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(30) == 0
    producer.close()
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is None
    found = message.value()
    assert found is not None
    return found


def text_of(schema: Schema) -> str:
    """The text, which the client does not promise."""
    assert schema.schema_str is not None
    return schema.schema_str


def test_avro_records_go_through_a_topic_and_old_ones_are_read_with_a_new_schema(
    bootstrap_servers: str, client: SchemaRegistryClient, topic: str
) -> None:
    serialize = AvroSerializer(client, json.dumps(FLIGHT))
    written = serialize({"number": 7, "tail": "N1"}, value_of(topic))
    assert written is not None
    received = through_kafka(bootstrap_servers, topic, written)
    assert AvroDeserializer(client)(received, value_of(topic)) == {"number": 7, "tail": "N1"}
    newer = AvroDeserializer(client, json.dumps(WITH_ORIGIN))
    assert newer(received, value_of(topic)) == {"number": 7, "tail": "N1", "origin": "?"}
    AvroSerializer(client, json.dumps(WITH_ORIGIN))({"number": 8, "tail": None, "origin": "JFK"}, value_of(topic))
    assert client.get_versions(f"{topic}-value") == [1, 2]


def test_a_second_serializer_finds_the_schema_without_registering_it(client: SchemaRegistryClient, topic: str) -> None:
    first = AvroSerializer(client, json.dumps(FLIGHT))({"number": 1, "tail": None}, value_of(topic))
    settings = {"auto.register.schemas": False}
    for config in (settings, settings | {"use.latest.version": True}, settings | {"normalize.schemas": True}):
        again = AvroSerializer(client, json.dumps(FLIGHT, indent=2), conf=config)
        assert again({"number": 1, "tail": None}, value_of(topic)) == first


def test_an_incompatible_schema_is_refused_where_records_are_written(client: SchemaRegistryClient, topic: str) -> None:
    AvroSerializer(client, json.dumps(FLIGHT))({"number": 1, "tail": None}, value_of(topic))
    required = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "gate", "type": "string"}]}
    with pytest.raises(SchemaRegistryError) as failure:
        AvroSerializer(client, json.dumps(required))({"number": 1, "tail": None, "gate": "A1"}, value_of(topic))
    assert (failure.value.http_status_code, failure.value.error_code) == (409, 409)
    assert "gate" in failure.value.error_message


def test_json_documents_go_through_a_topic_and_are_checked(
    bootstrap_servers: str, client: SchemaRegistryClient, topic: str
) -> None:
    text = json.dumps(FLIGHT_JSON)
    written = JSONSerializer(text, client)({"number": 7}, value_of(topic))
    assert written is not None
    received = through_kafka(bootstrap_servers, topic, written)
    assert JSONDeserializer(None, schema_registry_client=client)(received, value_of(topic)) == {"number": 7}


def test_protobuf_messages_go_through_a_topic_with_the_files_they_import(
    bootstrap_servers: str, client: SchemaRegistryClient, topic: str
) -> None:
    message = http_request_pb2.HttpRequest(request_method="GET", status=200)
    message.latency.seconds = 3
    config = {"use.deprecated.format": False}
    written = ProtobufSerializer(http_request_pb2.HttpRequest, client, config)(message, value_of(topic))
    assert written is not None
    received = through_kafka(bootstrap_servers, topic, written)
    read = ProtobufDeserializer(http_request_pb2.HttpRequest, config, client)(received, value_of(topic))
    assert read == message
    assert "google.protobuf.Duration latency" in text_of(client.get_latest_version(f"{topic}-value").schema)


@pytest.mark.parametrize(
    "message",
    [
        status_pb2.Status(code=5, message="gone"),
        error_details_pb2.BadRequest.FieldViolation(field="f", description="d"),
        attribute_context_pb2.AttributeContext.Peer(ip="::1", port=1),
    ],
)
def test_protobuf_messages_of_any_depth_are_found_in_their_file(
    client: SchemaRegistryClient, topic: str, message: Any
) -> None:
    config = {"use.deprecated.format": False}
    written = ProtobufSerializer(type(message), client, config)(message, value_of(topic))
    assert ProtobufDeserializer(type(message), config, client)(written, value_of(topic)) == message


def test_every_call_of_the_client(client: SchemaRegistryClient, topic: str) -> None:
    subject = f"{topic}-value"
    schema = Schema(json.dumps(FLIGHT), "AVRO")
    schema_id = client.register_schema(subject, schema, normalize_schemas=True)
    full = client.register_schema_full_response(f"{subject}-again", schema, normalize_schemas=True)
    assert (full.schema_id, full.version) == (schema_id, 1)
    stored = text_of(client.get_schema(schema_id))
    assert json.loads(stored)["fields"] == FLIGHT["fields"]
    assert full.guid is not None
    assert client.get_schema_by_guid(full.guid).schema_str == stored
    assert set(client.get_schema_types()) == {"AVRO", "JSON", "PROTOBUF"}
    assert client.get_subjects_by_schema_id(schema_id) == [subject, f"{subject}-again"]
    assert [found.version for found in client.get_schema_versions(schema_id)] == [1, 1]
    assert client.lookup_schema(subject, schema, normalize_schemas=True).version == 1
    assert subject in client.get_subjects()
    assert client.get_latest_version(subject).schema_id == schema_id
    assert client.get_version(subject, 1).schema_id == schema_id
    user = {"type": "record", "name": "Log", "fields": [{"name": "flight", "type": "air.Flight"}]}
    uses = Schema(json.dumps(user), "AVRO", [SchemaReference("air.Flight", subject, 1)])
    user_id = client.register_schema(f"{subject}-log", uses)
    assert client.get_referenced_by(subject, 1) == [user_id]
    assert client.test_compatibility(subject, Schema(json.dumps(WITH_ORIGIN), "AVRO"))
    assert not client.test_compatibility_all_versions(subject, Schema('"int"', "AVRO"))
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility(subject, "FULL")
    assert client.get_compatibility(subject) == "FULL"
    client.set_config(subject, ServerConfig(ConfigCompatibilityLevel.NONE))
    assert client.get_config(subject).compatibility_level == "NONE"
    assert client.delete_config(subject).compatibility_level == "NONE"
    assert client.update_mode(subject, "READONLY") == "READONLY"
    assert client.get_mode(subject) == "READONLY"
    assert client.delete_mode(subject) == "READONLY"
    assert client.get_global_mode() == "READWRITE"
    with pytest.raises(SchemaRegistryError):
        client.delete_subject(subject)
    for name in (f"{subject}-log", f"{subject}-again", subject):
        assert client.delete_subject(name) == [1]
        client.delete_subject(name, permanent=True)
    with pytest.raises(SchemaRegistryError) as failure:
        client.get_version(subject, 1)
    assert (failure.value.http_status_code, failure.value.error_code) == (404, 40401)


def test_metadata_and_rules_are_kept_for_serializers(client: SchemaRegistryClient, topic: str) -> None:
    from confluent_kafka.schema_registry import Metadata, MetadataProperties

    subject = f"{topic}-value"
    metadata = Metadata(None, MetadataProperties({"major": "1"}), None)
    client.register_schema(subject, Schema(json.dumps(FLIGHT), "AVRO", [], metadata))
    client.register_schema(
        subject, Schema(json.dumps(WITH_ORIGIN), "AVRO", [], Metadata(None, MetadataProperties({"major": "2"}), None))
    )
    assert client.get_latest_with_metadata(subject, {"major": "1"}).version == 1
    found = client.get_latest_version(subject).schema.metadata
    assert found is not None
    assert found.properties is not None
    assert found.properties.properties == {"major": "2"}
