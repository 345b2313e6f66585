"""What is said to be compatible is read by another implementation of Avro, whatever was written."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from headwater.api.registry.avro.schema import AvroSchema
from tests.avro_schemas import changed, schemas, values


def parse(schema: Any) -> AvroSchema:
    return AvroSchema.parse(json.dumps(schema), (), new=True)


@given(st.data())
def test_what_is_compatible_is_read(data: st.DataObject) -> None:
    writer = data.draw(schemas())
    reader = data.draw(changed(writer))
    if parse(reader).problems_reading(parse(writer)):
        return
    value = data.draw(values(writer))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(copy.deepcopy(writer)), value)
    written.seek(0)
    fastavro.schemaless_reader(
        written, fastavro.parse_schema(copy.deepcopy(writer)), fastavro.parse_schema(copy.deepcopy(reader))
    )


@given(schemas())
def test_every_schema_reads_what_it_wrote_and_its_canonical_text_is_the_same_schema(schema: Any) -> None:
    parsed = parse(schema)
    assert parsed.problems_reading(parsed) == []
    again = AvroSchema.parse(parsed.canonical, (), new=True)
    assert again.canonical == parsed.canonical
    assert again.normalized() == parsed.normalized()
    assert not again.problems_reading(parsed)
    assert fastavro.schema.to_parsing_canonical_form(
        fastavro.parse_schema(json.loads(parsed.canonical))
    ) == fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(copy.deepcopy(schema)))


@given(st.data())
def test_no_pair_of_schemas_is_too_much(data: st.DataObject) -> None:
    one, other = data.draw(schemas()), data.draw(schemas())
    for problem in parse(one).problems_reading(parse(other)):
        assert problem.kind
        assert problem.path.startswith("/")
