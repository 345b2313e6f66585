"""Each kind of source, table, step and sink: what is taken, what is refused, and in which words."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest

from headwater.pipelines.definition import (
    DeltaSource,
    FilesSource,
    JdbcSource,
    Loaded,
    RateSource,
    TopicSource,
    fields_of,
)
from headwater.pipelines.definition.editor_schema import editor_schema
from headwater.pipelines.definition.graph import dead_letter_topics, row_dead_letters, topological_order
from headwater.pipelines.definition.plan import make_plan
from headwater.pipelines.definition.reference import PARTS
from headwater.pipelines.errors import Problem

TOPICS = """\
topics:
  a: {value: string}
  b: {value: string}
  shop: {value: json, events: {sold: {schema: s.json}, returned: {schema: r.json}}, event_type: {header: type}}
"""


def one(source: str = "{topic: a}", more: str = "", sink: str = "{topic: out}", top: str = "") -> str:
    """A pipeline of one stage."""
    return f"pipeline: p\n{TOPICS}{top}stages:\n  - name: s\n    from: {source}\n{more}    to: {sink}\n"


def with_used_topics(text: str) -> str:
    """The text without the topics that it does not read, of which `validate` warns."""
    unread = [line for line in TOPICS.splitlines()[1:] if f"topic: {line.split(':')[0].strip()}" not in text]
    for line in unread:
        text = text.replace(line + "\n", "")
    return text.replace("topics:\nstages:", "stages:")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (
            "{topic: a, isolation: read_uncommitted, min_offsets_per_trigger: 5, max_trigger_delay: 1 minute}",
            TopicSource,
        ),
        ("{topic: a, starting_offsets: latest, fail_on_data_loss: false}", TopicSource),
        ("{topic: shop, event: sold, as: sold}", TopicSource),
        ("{delta: lake/x, changes: true, starting_version: 3}", DeltaSource),
        ("{delta: lake/x, starting_timestamp: 2026-01-01, skip_change_commits: true}", DeltaSource),
        ("{files: in, format: json, schema: 'id BIGINT, name STRING', max_files_per_trigger: 3}", FilesSource),
        ("{files: 's3a://x/in/*.csv', format: csv, options: {sep: ;}}", FilesSource),
        ("{jdbc: 'jdbc:x:y', table: t, increment: id, start: 7, poll: 1 second}", JdbcSource),
        ("{rate: 10, as: ticks, watermark: {column: timestamp, delay: 1 second}}", RateSource),
    ],
)
def test_every_kind_of_source_is_taken_and_planned(load: Callable[..., Loaded], source: str, kind: type) -> None:
    loaded = load(with_used_topics(one(source)))
    assert loaded.warnings == ()
    assert isinstance(loaded.pipeline.stages[0].inputs[0], kind)
    (read,) = make_plan(loaded).stages[0].reads
    assert f"{read.kind}source" == kind.__name__.lower()


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ("earliest", ("startingOffsets", "earliest")),
        ("latest", ("startingOffsets", "latest")),
        ("{0: 17, 1: -1}", ("startingOffsets", '{"a": {"0": 17, "1": -1}}')),
        ("2026-01-01T00:00:00Z", ("startingTimestamp", "1767225600000")),
        ("'2026-01-01T01:00:00+01:00'", ("startingTimestamp", "1767225600000")),
        ("2026-01-01", ("startingTimestamp", "1767225600000")),
    ],
)
def test_a_start_is_a_word_offsets_or_a_moment(
    load: Callable[..., Loaded], given: str, option: tuple[str, str]
) -> None:
    source = load(one(f"{{topic: a, starting_offsets: {given}}}")).pipeline.stages[0].inputs[0]
    assert isinstance(source, TopicSource)
    assert source.starting_option() == option


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        (one("{topic: a, starting_offsets: erliest}"), "from.starting_offsets", "'erliest' is neither earliest"),
        (one("{topic: a, starting_offsets: {}}"), "from.starting_offsets", "give an offset for each partition"),
        (one("{topic: a, starting_offsets: {x: 1}}"), "from.starting_offsets", "'x' is not the number of a partition"),
        (one("{topic: a, starting_offsets: {0: -3}}"), "from.starting_offsets", "-3 is not an offset"),
        (one("{topic: a, max_trigger_delay: 1 minute}"), "from.max_trigger_delay", "min_offsets_per_trigger, which is"),
        (one("{topic: shop, event: sodl}"), "from.event", "has no event 'sodl'"),
        (one("{topic: a, envelope: debezium}"), "from.envelope", "but the topic has value: string"),
        (one("{topc: a}"), "from", "a source names one of topic, delta, files, jdbc, rate"),
        (one("{topic: a, delta: b}"), "from", "this one names topic and delta"),
        (one("a"), "from", "is a mapping, not 'a'"),
        (one("[]"), "from", "it is empty"),
        (one("{files: in, format: xml}"), "from.format", "'xml' is not allowed"),
        (one("{files: in}"), "from.format", "'format' is missing"),
        (one("{delta: x, starting_version: 1, starting_timestamp: 2026-01-01}"), "from", "either starting_version or"),
        (one("{delta: x, starting_timestamp: soon}"), "from.starting_timestamp", "'soon' is neither"),
        (one("{jdbc: x, table: t}"), "from.increment", "'increment' is missing"),
        (one("{rate: 0}"), "from.rate", "greater than or equal to 1, not 0"),
        (one("[{topic: a}, {topic: a}]", "    sql: SELECT * FROM a\n"), "from[1]", "two inputs are named 'a'"),
        (one("[{topic: a}, {rate: 1, as: input}]"), "", "a stage with several inputs says by sql or python"),
        (one("[{topic: a}, {topic: b}]", "    sql: SELECT * FROM a\n"), "sql", "does not read the input 'b'"),
        (one(top="tables: {a: {delta: x}}\n"), "from", "'a' is also the name of a table"),
        (one(top="tables: {input: {delta: x}}\n"), "tables.input", "'input' is the view of a stage's rows"),
        (one(top="tables: {t: {delta: x, version: 1, refresh: every_batch}}\n"), "tables.t", "remove refresh"),
        (one(top="tables: {t: {jdbc: x}}\n"), "tables.t", "give either table or query"),
        (one(top="tables: {t: {topic: none}}\n"), "tables.t.topic", "neither declared under topics nor written"),
        (one(top="tables: {t: {format: csv, path: x, refresh: often}}\n"), "tables.t.refresh", "not an interval"),
        (one(top="tables: {t: {format: csv}}\n"), "tables.t", "a table names one of path (with format), delta, topic"),
        (one(top="tables: {b: {delta: x}}\n"), "tables.b", "'b' is a topic and a table"),
        (one(more="    steps: [{sqll: x}]\n"), "steps[0]", "a step names one of sql"),
        (one(more="    steps: [{deduplicate: {by: [value]}}]\n"), "steps[0].deduplicate", "remembered forever"),
        (
            one("{topic: a, watermark: {column: _timestamp, delay: 1 hour}}",
                "    steps: [{deduplicate: {by: value, within: 1 hour}}]\n"),
            "steps[0].deduplicate.within", "within cannot be combined with a watermark",
        ),
        (
            one(more="    steps: [{stateful: {file: f.py, processor: P, by: a, output: x INT, time: event_time}}]\n"),
            "steps[0].stateful.time", "event_time requires a watermark",
        ),
        (one(more="    steps: [{sql: SELECT * FROM a}, {sql: SELECT * FROM b}]\n"), "steps[1].sql", "reads 'b'"),
        (one(more="    steps: [{sql: SELECT * FROM a}]\n    sql: SELECT * FROM a\n"), "", "either sql or steps"),
        (
            one("[{topic: a}, {topic: b}]", "    steps: [{watermark: {column: x, delay: 1 day}}]\n"),
            "steps[0]", "is sql or python",
        ),
        (
            one(more="    steps: [{sql: SELECT * FROM a, each_batch: true}, {watermark: {column: x, delay: 1 day}}]\n"),
            "steps[1]", "needs a stream, and follows one with each_batch",
        ),
        (
            one("[{topic: a}, {topic: b}]", "    steps: [{sql: SELECT * FROM a JOIN b, each_batch: true}]\n"),
            "steps[0].each_batch", "each_batch cannot be set on the step that joins the inputs",
        ),
        (one(more="    mode: upsert\n"), "mode", "'upsert' is not allowed"),
        (one(more="    mode: complete\n", sink="{files: out, format: json}"), "to", "mode: complete writes all rows"),
        (one(more="    trigger: often\n"), "trigger", "'often' is not an interval"),
        (one(sink="{topic: out, tombstone_when: x}"), "to", "tombstone_when needs a key"),
        (one(sink="{topic: out, guarantee: maybe}"), "to.guarantee", "'maybe' is not allowed"),
        (one(sink="{topic: out, when: ''}"), "to.when", "it is empty"),
        (one(sink="[{python: {file: f.py, function: f}, when: true}]"), "to[0].when", "expected text, not True"),
        (one(sink="{topic: out, compression: lz5}"), "to.compression", "'lz5' is not allowed"),
        (one(sink="{topic: out, headers: {h: 1}}"), "to.headers.h", "expected text, not 1"),
        (one(sink="[{delta: x, merge: {keys: [], scd: 3}}]"), "to[0].merge.scd", "3 is not allowed"),
        (one(sink="[{delta: x, merge: {keys: []}}]"), "to[0].merge.keys", "it is empty"),
        (one(sink="{delta: x, merge: {keys: id, scd: 2}}"), "to.merge", "scd: 2 requires a sequence of one column"),
        (one(sink="{delta: x, merge: {keys: id, columns: a, except: b}}"), "to.merge", "either columns or except"),
        (one(sink="{delta: x, merge: {keys: id, columns: []}}"), "to.merge.columns", "it is empty"),
        (one(sink="{delta: x, merge: {keys: Id, except: [a, iD]}}"), "to.merge", "except names iD, which the merge"),
        (one(sink="{delta: x, merge: {keys: id, sequence: v, except: V}}"), "to.merge", "except names V, which the"),
        (one(sink="{delta: x, merge: {keys: id, except: _offset}}"), "to.merge", "except names _offset, which the"),
        (
            one(sink="{delta: x, partition_by: [year(at) AS y], merge: {keys: id, except: Y}}"),
            "to", "except names Y, which is a column of partition_by",
        ),
        (one(sink="{delta: x, cluster_by: [c], merge: {keys: id, except: c}}"), "to", "except names c"),
        (one(sink="{delta: x, merge: {keys: id, sequence: v, track_history: a}}"), "to.merge", "needs scd: 2"),
        (
            one(sink="{delta: x, merge: {keys: id, sequence: v, scd: 2, except: a, track_history: [b, A]}}"),
            "to.merge", "track_history names A, which except leaves out",
        ),
        (
            one(sink="{delta: x, merge: {keys: id, sequence: v, scd: 2, columns: [a, C], track_history: [c, b]}}"),
            "to", "track_history names b, which is none of the columns that the table stores",
        ),
        (
            one(sink="{delta: x, merge: {keys: id, sequence: v, scd: 2, track_history: []}}"),
            "to.merge.track_history", "it is empty",
        ),
        (
            one(sink="{delta: x, merge: {keys: id, sequence: v, scd: 2, track_history: {}}}"),
            "to.merge.track_history", "either a list of columns or",
        ),
        (
            one(sink="{delta: x, merge: {keys: id, sequence: v, scd: 2, track_history: {but: a}}}"),
            "to.merge.track_history.but", "",
        ),
        (one(sink="{delta: x, partition_by: [a], cluster_by: [b]}"), "to", "either partition_by or cluster_by"),
        (one(sink="{jdbc: x, table: t, keys: id, except: y}"), "to.except", "except"),
        (one(sink="{jdbc: x, table: t, delete_when: y}"), "to", "delete_when and sequence need keys"),
        (one(sink="{python: {file: f.py}}"), "to.python.function", "'function' is missing"),
        (one(sink="{python: {file: f.py, function: a-b}}"), "to.python.function", "'a-b' is not a name of Python"),
        (one(sink="[{files: out, format: json}, {files: ./out, format: csv}]"), "to[1]", "writes to files"),
        (one(top="tests: [{name: t, stage: x, given: {a: []}, expect: []}]\n"), "tests[0].stage", "no stage 'x'"),
        (one(top="tests: [{name: t, stage: s, given: {b: []}, expect: []}]\n"), "tests[0].given.b", "reads no 'b'"),
        (one(top="registry: {url: x, username: y}\n"), "registry", "username and password go together"),
        (one(top="registry: {url: x, token: y, username: z, password: p}\n"), "registry", "either username and"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_at_its_field(
    problems: Callable[..., list[Problem]], text: str, field: str, message: str
) -> None:
    where = field if field.startswith(("tables", "tests", "registry")) else f"stages[0].{field}".rstrip(".")
    found = {problem.field: problem.message for problem in problems(text)}
    assert where in found, found
    assert message in found[where]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("{value: avro}", "avro takes schemas from a registry, and the pipeline has none"),
        ("{value: string, key: avro}", "avro takes schemas from a registry"),
        ("{value: csv}", "value: csv needs a schema"),
        ("{value: csv, schema: inferred}", "schema: inferred is for value: json"),
        ("{value: json, schema: registry}", "schema: registry is for avro, protobuf, json_schema"),
        ("{value: string, message: m}", "message is for value: protobuf"),
        ("{value: raw, events: {a: {schema: x}}}", "events are for json, avro, protobuf, json_schema"),
        ("{value: json, events: {a: {schema: x}}}", "events of value: json need event_type"),
        ("{value: json, events: {a: {}}, event_type: {field: t}}", "each event of value: json needs a schema"),
        ("{value: json, schema: x, event_type: {field: t}}", "event_type is for a topic with events"),
        ("{value: json, schema: x, events: {a: {schema: x}}, event_type: {field: t}}", "has no schema of its own"),
        ("{value: json, events: {a: {schema: x}}, event_type: {field: t, header: h}}", "either header or field"),
    ],
)
def test_a_topic_whose_parts_do_not_fit_is_refused(
    problems: Callable[..., list[Problem]], topic: str, message: str
) -> None:
    found = problems(one().replace("topics:\n", f"topics:\n  x: {topic}\n"))
    assert any(message in problem.message for problem in found), found


def test_one_source_one_sink_and_one_column_need_no_list(load: Callable[..., Loaded]) -> None:
    text = one(
        more="    steps: [{deduplicate: {by: value, within: 1 hour}}]\n",
        sink="{delta: x, merge: {keys: id, sequence: n}}",
    )
    stage = load(text).pipeline.stages[0]
    assert [len(stage.inputs), len(stage.to)] == [1, 1]
    listed = text.replace("by: value", "by: [value]").replace("keys: id, sequence: n", "keys: [id], sequence: [n]")
    assert load(listed).pipeline.stages[0] == stage


def test_steps_see_each_other_as_input_and_by_the_inputs_own_name(load: Callable[..., Loaded]) -> None:
    steps = "    steps: [{sql: SELECT * FROM a}, {sql: SELECT * FROM input}, {sql: SELECT * FROM a}]\n"
    assert load(with_used_topics(one(more=steps))).warnings == ()


def test_dead_letters_of_a_stage_without_a_topic_of_its_own_have_a_topic_of_theirs(
    load: Callable[..., Loaded],
) -> None:
    loaded = load(one("[{topic: a}, {topic: b}]", "    sql: SELECT * FROM a JOIN b USING (key)\n"))
    stage = loaded.pipeline.stages[0]
    assert row_dead_letters(loaded.pipeline, stage) == "p.s.dead_letters"
    assert dead_letter_topics(loaded.pipeline, stage) == ("p.s.dead_letters", "a.dead_letters", "b.dead_letters")
    assert {topic.name for topic in make_plan(loaded).topics} >= {"p.s.dead_letters", "a.dead_letters"}


def test_records_of_a_tables_topic_have_dead_letters_of_their_own_topic(load: Callable[..., Loaded]) -> None:
    text = one("{topic: a}", "    sql: SELECT a.* FROM a JOIN t USING (key)\n", top="tables: {t: {topic: b}}\n")
    stage = load(text).pipeline.stages[0]
    assert dead_letter_topics(load(text).pipeline, stage) == ("a.dead_letters", "b.dead_letters")


@pytest.mark.parametrize(
    ("first", "second", "tables"),
    [
        ("to: {delta: lake/x}", "from: {delta: ./lake/x}", ""),
        ("to: {files: out, format: json}", "from: {files: out, format: json}", ""),
        ("to: {jdbc: 'jdbc:x', table: t}", "from: {jdbc: 'jdbc:x', table: t, increment: id}", ""),
        ("to: {topic: made, key: key}", "from: {topic: b}, sql: SELECT b.* FROM b JOIN made USING (key)",
         "tables: {made: {topic: made}}\n"),
        ("to: {delta: lake/x}", "from: {topic: b}, sql: SELECT b.* FROM b JOIN t USING (key)",
         "tables: {t: {delta: lake/x}}\n"),
    ],
)  # fmt: skip
def test_stages_are_joined_by_whatever_one_writes_and_another_reads(
    load: Callable[..., Loaded], first: str, second: str, tables: str
) -> None:
    stages = (
        f"stages:\n  - {{name: two, {second}, to: {{topic: end}}}}\n  - {{name: one, from: {{topic: a}}, {first}}}\n"
    )
    loaded = load(f"pipeline: p\n{TOPICS}{tables}{stages}")
    assert [stage.name for stage in topological_order(loaded.pipeline)] == ["one", "two"]


def test_two_stages_may_use_each_others_topics_as_tables(load: Callable[..., Loaded]) -> None:
    stages = "".join(
        f"  - {{name: {n}, from: {{topic: {n}}}, sql: SELECT * FROM {n} JOIN {t} USING (key), to: {{topic: t_{n}}}}}\n"
        for n, t in (("a", "t_b"), ("b", "t_a"))
    )
    loaded = load(f"pipeline: p\n{TOPICS}tables: {{t_a: {{topic: t_a}}, t_b: {{topic: t_b}}}}\nstages:\n{stages}")
    assert len(topological_order(loaded.pipeline)) == 2


def test_the_editors_schema_has_every_field_and_lets_variables_stand_for_numbers_and_choices() -> None:
    schema = editor_schema()
    assert json.loads(json.dumps(schema)) == schema
    definitions = {**schema["$defs"], "Pipeline": schema}
    for model in PARTS.values():
        assert list(definitions[model.__name__]["properties"]) == fields_of(model)
        assert definitions[model.__name__]["additionalProperties"] is False
    topic: Any = definitions["Topic"]["properties"]
    assert {"type": "string", "pattern": r"\$\{"} in topic["partitions"]["anyOf"]
    assert topic["partitions"]["description"]
    (choice, variable) = topic["value"]["anyOf"]
    assert "avro" in choice["enum"]
    assert variable["type"] == "string"
    assert len(definitions["Stage"]["properties"]["from"]["anyOf"]) == 2
    assert "required" not in schema


def test_rows_of_tests_keep_their_types(load: Callable[..., Loaded]) -> None:
    rows = "{n: 1, at: 2026-01-01T00:00:00Z, day: 2026-01-01, x: null, deep: {a: [1, 2.5, true]}}"
    text = one(top=f"tests: [{{name: t, stage: s, given: {{a: [{rows}]}}, expect: out.json, dead_letters: 0}}]\n")
    (test,) = load(text).pipeline.tests
    assert test.given["a"] == (
        {
            "n": 1,
            "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            "day": dt.date(2026, 1, 1),
            "x": None,
            "deep": {"a": [1, 2.5, True]},
        },
    )
    assert test.expect == "out.json"
