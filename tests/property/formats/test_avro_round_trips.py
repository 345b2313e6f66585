"""Any schema, any values: decoded as fastavro wrote them, written as fastavro reads them; damage stays in its row."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipelines.formats.avro.encoder import AvroEncoder, row_type
from tests.example_counts import examples
from tests.unit.formats.conftest import decoder, framed, registered, written

_LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
}


@st.composite
def schemas(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and values of it as Arrow gives them back."""
    kinds = [*_LEAVES, *(["array", "map", "record", "optional"] if depth < 3 else [])]
    kind = draw(st.sampled_from(kinds))
    if kind in _LEAVES:
        return kind, _LEAVES[kind]
    if kind == "record":
        fields = [draw(schemas(depth + 1)) for _ in range(draw(st.integers(1, 3)))]
        name = f"R{draw(st.integers(0, 10**9))}_{depth}"
        parts = [{"name": f"f{n}", "type": inner} for n, (inner, _) in enumerate(fields)]
        schema = {"type": "record", "name": name, "fields": parts}
        return schema, st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(fields)})
    inner, values = draw(schemas(depth + 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(_LEAVES["string"], values, max_size=3).map(
            lambda found: list(found.items())
        )
    if isinstance(inner, list):
        return inner, values
    return ["null", inner], st.none() | values


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    inner, values = draw(schemas())
    schema = {"type": "record", "name": "Top", "fields": [{"name": "a", "type": inner}, {"name": "z", "type": "int"}]}
    rows = st.fixed_dictionaries({"a": values, "z": _LEAVES["int"]})
    return schema, draw(st.lists(rows, min_size=1, max_size=6))


def for_fastavro(value: Any) -> Any:
    """Maps as dictionaries."""
    if isinstance(value, dict):
        return {name: for_fastavro(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return {name: for_fastavro(inner) for name, inner in value}
    return [for_fastavro(item) for item in value] if isinstance(value, list) else value


def for_writing(value: Any, schema: Any) -> Any:
    """An empty map looks like an empty array."""
    if isinstance(schema, list):
        return None if value is None else for_writing(value, schema[1])
    if not isinstance(schema, dict):
        return value
    if schema["type"] == "array":
        return [for_writing(item, schema["items"]) for item in value]
    if schema["type"] == "map":
        return {name: for_writing(inner, schema["values"]) for name, inner in value}
    return {part["name"]: for_writing(value[part["name"]], part["type"]) for part in schema["fields"]}


@settings(max_examples=examples(150), deadline=None)
@given(records())
def test_what_fastavro_wrote_is_read_and_written_again(drawn: tuple[Any, list[Any]]) -> None:
    schema, rows = drawn
    values = [written(schema, for_writing(row, schema)) for row in rows]
    found = decoder(schema, schema).decode(framed(values))
    assert found.faults == {}
    found.values.validate(full=True)
    assert found.values.to_pylist() == rows
    again = AvroEncoder(registered(schema)).encode(pa.array(rows, row_type(registered(schema))), 1)
    assert again.to_pylist() == values


@settings(max_examples=examples(150), deadline=None)
@given(records(), st.data())
def test_damaged_bytes_are_faults_or_other_values_and_leave_their_neighbours_alone(
    drawn: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    schema, rows = drawn
    value = written(schema, for_writing(rows[0], schema))
    place = data.draw(st.integers(5, len(value) - 1))
    damaged = value[:place] + data.draw(st.binary(max_size=4)) + value[place + data.draw(st.integers(0, 3)) :]
    found = decoder(schema, json.loads(json.dumps(schema))).decode(framed([value, damaged, value]))
    found.values.validate(full=True)
    assert set(found.faults) <= {1}
    read = found.values.to_pylist()
    assert (read[0], read[2]) == (rows[0], rows[0])
    assert (read[1] is None) == (1 in found.faults)
