from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.errors import PipelineError
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.offsets.positions import PositionKind
from headwater.pipelines.loads.options import LoadOptions, absolute, requests_of
from headwater.pipelines.loads.request import LoadRequest

EXISTING = ("flights", "flights.late", "clicks", "__consumer_offsets")


def requests(*topics: str, **options: Any) -> list[LoadRequest]:
    return requests_of(LoadOptions(topics, **options), EXISTING)[0]


def test_options_are_one_load_a_topic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    [one, two] = requests("flights", "clicks", to="lake/{topic}/", format="orc", until="47", on_gap="record")
    assert (one.topic, one.target, one.format) == ("flights", f"{os.getcwd()}/lake/flights", "orc")
    assert two.target == f"{os.getcwd()}/lake/clicks"
    assert (one.wanted.start.kind, one.wanted.end.offset, one.wanted.record_gaps) == (PositionKind.LAST, 47, True)
    [one] = requests("flights", to="hdfs:///lake/x")
    assert (one.target, one.format) == ("hdfs:///lake/x", "delta")
    assert absolute("s3a://bucket/x") == "s3a://bucket/x"


def test_a_pattern_names_whole_topics_but_no_internal_ones() -> None:
    assert [one.topic for one in requests(pattern="flights.*", to="/lake/{topic}")] == ["flights", "flights.late"]
    assert [one.topic for one in requests(pattern="flights", to="/lake")] == ["flights"]
    assert [one.topic for one in requests(pattern=".*", to="/lake/{topic}")] == ["clicks", "flights", "flights.late"]


def test_a_file_declares_loads_that_options_override(tmp_path: Path) -> None:
    file = tmp_path / "loads.yaml"
    file.write_text(
        """\
variables: {root: /lake}
topics:
  flights: {value: string}
loads:
  - topics: [flights]
    to: ${root}/{topic}
    format: parquet
    from: earliest
    until: 2013-01-01T00:00:00Z
    partition_by: ["date(_timestamp)"]
  - {pattern: "cl.*", to: "${root}/raw", missing: true, until: 47}
"""
    )
    [one, two] = requests(file=str(file), start="last", assignments={"root": "/other"})
    assert (one.target, one.format, one.wanted.start.text) == ("/other/flights", "parquet", "last")
    assert one.wanted.end.text.startswith("2013-01-01")
    assert [column.name for column in one.partitions] == ["dt"]
    assert (two.topic, two.target, two.wanted.missing) == ("clicks", "/other/raw", True)
    assert two.wanted.end.offset == 47


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        ((), {"to": "/lake"}, "name topics, or give --topics REGEX"),
        (("flights",), {}, r"--to is missing; name the target: --to /lake/\{topic\}"),
        (("flights", "clicks"), {"to": "/lake"}, "2 topics cannot share the target /lake"),
        (("flights",), {"to": "/lake", "pattern": "x"}, "name topics, or give --topics REGEX"),
        ((), {"to": "/lake", "pattern": "("}, "is no regular expression"),
        ((), {"to": "/lake", "pattern": "nothing"}, "no topic matches 'nothing'"),
        (("flights",), {"to": "/lake", "start": "soon"}, "'soon' is not a position"),
        (("flights",), {"to": "/lake", "schema": "x.json"}, "--schema needs --value"),
        ((), {"to": "/lake", "pattern": "f.*", "value": "json"}, "--value needs the topics' names"),
        (("flights",), {"file": "x.yaml"}, "topics stand in the file"),
        ((), {"file": "x.yaml", "value": "json"}, "are for loads without -f"),
        ((), {"file": "/no/such.yaml"}, "cannot read /no/such.yaml: No such file"),
        (("flights",), {"to": "/lake", "interval": "a/b", "until": "5"}, "--interval says start, end and name"),
    ],
)
def test_what_contradicts_itself_is_refused(topics: tuple[str, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        requests(*topics, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "a file of loads is a mapping"),
        ("loads: []", "loads"),
        ("loads: [{to: /x}]", "give either topics or pattern"),
        ("loads: [{to: /x, topics: [a], pattern: b}]", "give either topics or pattern"),
        ("loads: [{to: /x, topics: [a], format: csv}]", "format"),
        ("loads: [{topics: [a]}]", "to"),
        ("loads: [{to: /x, topics: [a]}]\nother: 1", "other"),
        ("topics: {a: {value: csv}}\nloads: [{to: /x, topics: [a]}]", "value: csv needs a schema"),
    ],
)
def test_a_faulty_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "loads.yaml"
    file.write_text(text)
    with pytest.raises(PipelineError) as raised:
        requests(file=str(file))
    assert str(raised.value).startswith(f"{file}:")
    assert message in str(raised.value)


def test_two_loads_into_one_target_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "loads.yaml"
    file.write_text("loads: [{to: /x, topics: [a]}, {to: /x/, topics: [b]}]")
    with pytest.raises(LoadError, match="/x would be the target of two loads"):
        requests(file=str(file))
    with pytest.raises(PipelineError, match="the file has no variable"):
        requests(file=str(file), assignments={"root": "x"})
