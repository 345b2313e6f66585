from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headwater.pipelines.publishing.contents import (
    FileContents,
    Files,
    Records,
    TableVersion,
    VersionDifference,
    changed_files,
    content_name,
    owner_of,
    place_key,
    valid_id,
)

FILES = Files((FileContents("a.json", 10, "aa"), FileContents("b.json", 20, "bb")))
RECORDS = Records("topic-id", "id", None, None, {"h": "name"}, {"value": "json"}, {"format": "json"})


@pytest.mark.parametrize(
    "contents",
    [
        Files((FILES.files[0],)),
        Files((FileContents("a.json", 10, "ab"), FILES.files[1])),
        Files((FileContents("c.json", 10, "aa"), FILES.files[1])),
        TableVersion("t", 1, "c1"),
        VersionDifference("t", 1, 2, "c1", "c2"),
    ],
)
def test_other_contents_have_another_name(contents: Any) -> None:
    assert content_name(contents, RECORDS) != content_name(FILES, RECORDS)
    assert content_name(contents, RECORDS) == content_name(dataclasses.replace(contents), RECORDS)


VERSION = TableVersion("t", 1, "c1")
DIFFERENCE = VersionDifference("t", 1, 2, "c1", "c2")


@pytest.mark.parametrize(
    ("contents", "change"),
    [
        (VERSION, {"table_id": "u"}),
        (VERSION, {"version": 2}),
        (VERSION, {"commit": "c2"}),
        (DIFFERENCE, {"to_version": 3}),
        (DIFFERENCE, {"from_commit": "c3"}),
        (DIFFERENCE, {"to_commit": "c3"}),
    ],
)
def test_a_copy_of_a_table_that_went_on_apart_has_another_name(contents: Any, change: dict[str, Any]) -> None:
    other = dataclasses.replace(contents, **change)
    assert content_name(other, RECORDS) != content_name(contents, RECORDS)


@pytest.mark.parametrize(
    "change",
    [
        {"topic_id": "another"},
        {"key": "name"},
        {"key": None},
        {"value": "name"},
        {"timestamp": "at"},
        {"headers": {}},
        {"headers": {"h": "id"}},
        {"formats": {"value": "avro"}},
        {"reading": {"format": "csv"}},
        {"order_by": ("name",)},
    ],
)
def test_other_records_have_another_name(change: dict[str, Any]) -> None:
    other = dataclasses.replace(RECORDS, **change)
    assert content_name(FILES, other) != content_name(FILES, RECORDS)


def test_the_place_is_a_path_and_a_topic() -> None:
    assert place_key("/in", "topic-id") == place_key("/in", "topic-id")
    assert len({place_key("/in", "topic-id"), place_key("/out", "topic-id"), place_key("/in", "another")}) == 3


def test_names_that_users_give_never_meet_those_of_contents() -> None:
    name = content_name(FILES, RECORDS)
    assert owner_of(name, None, "t").transactional_id != owner_of("", name, "t").transactional_id
    assert owner_of(name, "daily", "t").transactional_id == owner_of("other", "daily", "t").transactional_id


@pytest.mark.parametrize("text", ["", "a b", "a/b", "ä", "x" * 201, "a\n"])
def test_an_id_is_short_and_plain(text: str) -> None:
    with pytest.raises(ValueError, match="an id has 1 to 200 letters"):
        valid_id(text)


def test_the_first_difference_of_files_is_named() -> None:
    assert changed_files(FILES.files, FILES.files) is None
    assert changed_files(FILES.files, FILES.files[1:]) == "a.json is gone"
    assert changed_files(FILES.files[1:], FILES.files) == "a.json is new"
