"""Whatever determines the records is part of a publish's name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from headwater.pipelines.formats import ValueColumns
from headwater.pipelines.formats.framed_tasks import Writer
from headwater.pipelines.formats.registry_client import Connection, RegisteredSchema
from headwater.pipelines.formats.topic_encoding import Encoding, RegisteredPart
from headwater.pipelines.publishing.record_identity import records_of
from headwater.pipelines.publishing.request import PublishRequest

COLUMNS = StructType().add("id", LongType()).add("name", StringType())
OTHER_COLUMNS = StructType().add("id", StringType()).add("name", StringType())
REQUEST = PublishRequest("/in", "t", "id", input_schema="columns.json", input_format="csv")


def part(
    message: str | None = "A", subject: str = "t-value", text: str = "message A {} message B {}"
) -> RegisteredPart:
    writer = Writer("protobuf", RegisteredSchema("PROTOBUF", text), "t", message)
    return RegisteredPart(writer, subject, Connection(("http://registry",)), auto_register=True)


ENCODING = Encoding("t", "protobuf", value_part=part(), key_format="protobuf", key_part=part())


def test_other_columns_of_the_same_schema_file_are_other_records() -> None:
    one, other = (records_of(REQUEST, columns.json(), ENCODING, "u") for columns in (COLUMNS, OTHER_COLUMNS))
    assert one == records_of(REQUEST, COLUMNS.json(), ENCODING, "u")
    assert one != other


@pytest.mark.parametrize(
    "change",
    [
        {"value_part": part(message="B")},
        {"value_part": part(subject="other")},
        {"value_part": part(text="message A {}")},
        {"value_part": None},
        {"key_part": part(message="B")},
        {"key_format": "json"},
        {"value_format": "json"},
        {"wanted": ValueColumns(COLUMNS)},
        {"wanted": ValueColumns(options={"sep": ";"})},
    ],
)
def test_another_encoding_makes_other_records(change: dict[str, Any]) -> None:
    other = dataclasses.replace(ENCODING, **change)
    assert records_of(REQUEST, COLUMNS.json(), other, "u") != records_of(REQUEST, COLUMNS.json(), ENCODING, "u")


@pytest.mark.parametrize(
    "change", [{"key": "name"}, {"order_by": ("name",)}, {"input_options": {"sep": ";"}}, {"headers": {"h": "name"}}]
)
def test_another_request_makes_other_records(change: dict[str, Any]) -> None:
    other = dataclasses.replace(REQUEST, **change)
    assert records_of(other, COLUMNS.json(), ENCODING, "u") != records_of(REQUEST, COLUMNS.json(), ENCODING, "u")
