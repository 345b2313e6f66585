from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.publishing.errors import PublishRefused
from headwater.pipelines.publishing.opened_source import named_source
from headwater.pipelines.publishing.request import PublishRequest, format_of_names
from headwater.pipelines.publishing.topic_declaration import declared_topic


def request(path: str = "in", **more: Any) -> PublishRequest:
    return PublishRequest(**({"path": path, "topic": "t", "key": "id"} | more))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"version": 1, "between": (1, 2)}, "either a version or two versions"),
        ({"between": (2, 1)}, "--from-version 2 is later"),
        ({"version": 1, "input_format": "json"}, "--input-format is json"),
        ({"key": None, "order_by": ("id",)}, "it needs --key"),
    ],
)
def test_contradictions_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(PublishRefused, match=message):
        request(**more)


@pytest.mark.parametrize("names", [["a.txt"], ["a.json", "b.csv"], ["json"], [".json.gz.tmp"], ["a.json", "b"]])
def test_names_that_say_no_single_format_are_refused(names: list[str]) -> None:
    with pytest.raises(PublishRefused, match="--input-format"):
        format_of_names(names)


def test_the_format_is_found_from_what_lies_there(tmp_path: Path) -> None:
    files = LocalFiles()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv.gz").write_bytes(b"")
    assert named_source(request(str(tmp_path / "in")), files).input_format == "csv"
    (tmp_path / "in" / "_delta_log").mkdir()
    assert named_source(request(str(tmp_path / "in")), files).input_format == "delta"
    assert named_source(request(str(tmp_path / "nowhere"), version=0), files).input_format == "delta"
    with pytest.raises(PublishRefused, match="no such file"):
        named_source(request(str(tmp_path / "nowhere")), files)
    with pytest.raises(PublishRefused, match="name its format"):
        named_source(request("abfs://c/in"), None)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"value": "raw", "schema": "a.json"}, "schema is for"),
        ({"value": "csv"}, "value: csv needs a schema"),
        ({"value": "json", "message": "M"}, "message is for value: protobuf"),
        ({"key_schema": "a.avsc"}, "key_schema is for keys with fields"),
    ],
)
def test_declarations_are_checked_as_in_a_pipelines_file(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(PublishRefused, match=message):
        declared_topic(request(), declared, None, None)


def test_a_topic_is_declared_by_options_alone() -> None:
    made = declared_topic(request(headers={"h": "x"}), {"value": "avro"}, "http://registry:8081", None)
    assert (made.sink.topic, made.sink.key, made.sink.headers) == ("t", "id", {"h": "x"})
    assert made.loaded.pipeline.topics["t"].value == "avro"
    assert made.loaded.pipeline.registry is not None
    with pytest.raises(PublishRefused, match="not a topic name"):
        declared_topic(request(topic="a/b"), {}, None, None)
