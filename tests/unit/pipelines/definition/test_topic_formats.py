"""What validate says of topics' formats, schemas and keys, before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.validation.pipeline_file import load as load_file

TEXT = """\
pipeline: p
registry: {{url: "http://localhost:8081"}}
topics: {{t: {topic}}}
stages: [{{name: s, from: {{topic: t}}, to: {{delta: lake/t}}}}]
"""


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("{value: json_schema, events: {a: {schema: x}}}", "events of value: json_schema need event_type"),
        ("{value: avro, events: {a: {}}, event_type: {field: f}}", "is for json and json_schema, not for avro"),
        ("{value: avro, events: {a: {message: M}}}", "message is for value: protobuf"),
        ("{value: avro, key: string, key_schema: k.avsc}", "key_schema is for keys with fields"),
        ("{value: avro, key: json, key_schema: registry}", "key_schema: registry is for avro, protobuf, json_schema"),
        ("{value: avro, options: {sep: x}}", "options are for json, csv, json_schema"),
        ("{value: json, schema: x, options: {mode: DROPMALFORMED}}", "the option mode is PERMISSIVE or FAILFAST"),
    ],
)
def test_parts_that_do_not_suit_the_format_are_told(
    problems: Callable[..., list[Problem]], topic: str, says: str
) -> None:
    (found,) = problems(TEXT.format(topic=topic))
    assert says in found.message


def test_rows_are_not_written_to_a_topic_of_several_types(problems: Callable[..., list[Problem]]) -> None:
    text = TEXT.format(topic="{value: avro, events: {a: {}}}").replace("{delta: lake/t}", "[{topic: u}]")
    text = text.replace("topics: {t:", "topics: {u: {value: avro, events: {a: {}}}, t:")
    (found,) = problems(text)
    assert "a stage cannot write a topic with several event types of" in found.message
    assert found.field == "stages[0].to[0].topic"


@pytest.mark.parametrize(
    ("topic", "schema", "says"),
    [
        ("{value: avro, schema: s}", "{", "the schema {path} cannot be used: not JSON"),
        (
            "{value: avro, schema: s}",
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}',
            "$.a: a union of several types cannot be a column",
        ),
        (
            "{value: avro, schema: s}",
            '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": "x"}]}',
            "invalid default",
        ),
        ("{value: protobuf, schema: s}", "message A {} message B {}", "2 messages (A, B): say which one"),
        ("{value: protobuf, schema: s, message: C}", "message A {}", "the file has no message C"),
        ("{value: json_schema, schema: s}", "[]", 'the schema of a value has "type": "object"'),
        ("{value: csv, schema: s}", "{}", 'the schema of a value has "type": "object"'),
        ("{value: string, key: avro, key_schema: s}", "x y", "not JSON"),
    ],
)
def test_a_schema_that_gives_no_columns_is_told_without_spark(
    tmp_path: Path, topic: str, schema: str, says: str
) -> None:
    (tmp_path / "s").write_text(schema)
    path = tmp_path / "p.yaml"
    path.write_text(TEXT.format(topic=topic))
    with pytest.raises(PipelineError) as caught:
        load_file(str(path), environ={})
    (found,) = caught.value.problems
    assert says.replace("{path}", str(tmp_path / "s")) in found.message
    assert found.line == 3
