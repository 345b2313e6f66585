"""A registry without HTTP, and values as Confluent's serializers frame them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headwater.pipelines.formats.avro.decoder import AvroDecoder
from headwater.pipelines.formats.framing import Frames, frames
from headwater.pipelines.formats.registry_client import AVRO, NotFoundError, RegisteredSchema
from headwater.pipelines.schemas.schema_ids import header


class Known:
    """Schemas by id, from 1 on."""

    def __init__(self, *schemas: RegisteredSchema) -> None:
        self.by_id = dict(enumerate(schemas, 1))

    def schema(self, schema_id: int) -> RegisteredSchema:
        if schema_id not in self.by_id:
            raise NotFoundError(f"the registry has no schema with the id {schema_id}")
        return self.by_id[schema_id]

    def subjects(self, schema_id: int) -> list[str]:
        return [f"subject-{schema_id}"]


def registered(schema: Any, schema_type: str = AVRO) -> RegisteredSchema:
    return RegisteredSchema(schema_type, schema if isinstance(schema, str) else json.dumps(schema))


def written(schema: Any, record: Any, schema_id: int = 1) -> bytes:
    """A value as fastavro writes it, framed."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return header(schema_id) + out.getvalue()


def framed(values: Sequence[bytes | None]) -> Frames:
    return frames(pa.array(values, pa.binary()))


def decoder(reader: Any, *writers: Any) -> AvroDecoder:
    return AvroDecoder(registered(reader), Known(*(registered(writer) for writer in writers)))


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """numba's kernels, compiled or from its cache, before any test's time counts."""
    from headwater.pipelines.formats.avro import warm

    warm()
