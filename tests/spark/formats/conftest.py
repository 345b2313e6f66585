"""Pipelines whose values have schemas in a registry: ours, as users run it, on the broker of these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.spark.pipelines.conftest import Lab, delta_spark, lab
from tests.spark.registry_process import registry, schemas

__all__ = ["delta_spark", "lab", "registry", "schemas"]

AvroValue = Callable[..., bytes]


@pytest.fixture
def avro(schemas: SchemaRegistryClient, lab: Lab) -> AvroValue:
    """A value as Confluent's serializer writes it, its schema registered."""

    def value(topic: str, schema: str, record: Any, **conf: Any) -> bytes:
        serialize = AvroSerializer(schemas, schema, conf=conf)
        context = SerializationContext(topic.replace("@", lab.prefix), MessageField.VALUE)
        made = serialize(record, context)
        assert made is not None
        return bytes(made)

    return value


@pytest.fixture
def read_avro(schemas: SchemaRegistryClient, lab: Lab) -> Callable[[str], list[Any]]:
    """The values of a topic as Confluent's deserializer reads them."""

    def read(topic: str) -> list[Any]:
        deserialize = AvroDeserializer(schemas)
        context = SerializationContext(topic.replace("@", lab.prefix), MessageField.VALUE)
        return [None if seen.value is None else deserialize(seen.value, context) for seen in lab.read(topic)]

    return read
