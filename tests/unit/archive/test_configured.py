"""Which archives there are: a file's, and those that topic configs enable; the file wins."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.archive.archive_file import TopicArchiveSpec, overlap, parse_declared
from headwater.pipelines.archive.configured import (
    ConfiguredTopic,
    KnownArchives,
    ValueFormatAnswer,
    chosen_archives,
    decide_archives,
)
from headwater.pipelines.archive.errors import ArchiveError


def no_file(path: str) -> str:
    raise FileNotFoundError(path)


def known(
    text: str,
    configured: Mapping[str, ConfiguredTopic],
    formats: Mapping[str, ValueFormatAnswer] | None = None,
    present: Collection[str] = (),
) -> KnownArchives:
    return decide_archives(
        parse_declared(text, "archive.yaml", {}, "/etc/flows", {}, no_file), configured, formats or {}, present
    )


def tables(found: KnownArchives) -> dict[str, str]:
    return {each.topic: each.table for each in found.specs}


def reason(found: KnownArchives, topic: str) -> str:
    assert topic not in tables(found)
    assert topic not in found.loaded.pipeline.topics
    return found.refused[topic].reason


ROOT = "archive: {root: /lake}"


def test_a_topic_that_its_configs_enable_is_below_the_root_or_where_they_say() -> None:
    found = known(ROOT, {"b": ConfiguredTopic(), "a": ConfiguredTopic("hdfs://nn/sales/a")})
    assert [(each.topic, each.table) for each in found.specs] == [("a", "hdfs://nn/sales/a"), ("b", "/lake/b")]
    assert not found.refused


def test_what_is_said_for_all_topics_of_a_file_holds_for_it() -> None:
    [spec] = known("archive: {root: /lake, freshness: 5 seconds, on_gap: record}", {"a": ConfiguredTopic()}).specs
    assert (spec.freshness_ms, spec.on_gap) == (5_000, "record")


def test_the_file_wins_for_a_topic_that_it_names() -> None:
    text = "topics: {a: {value: json}}\narchive: {root: /lake, topics: {a: {table: /own}}}"
    found = known(text, {"a": ConfiguredTopic("/other", "string")})
    assert tables(found) == {"a": "/own"}
    assert found.loaded.pipeline.topics["a"].value == "json"
    assert found.overruled == {"a"}
    assert found.specs[0].configs == ""
    assert known(text, {}).overruled == frozenset()


def test_a_format_that_the_file_declares_is_not_that_of_the_configs() -> None:
    found = known("topics: {a: {value: json}}\narchive: {root: /lake}", {"a": ConfiguredTopic(value="registry")})
    assert tables(found) == {"a": "/lake/a"}
    assert found.loaded.pipeline.topics["a"].value == "json"


def test_values_are_bytes_text_or_as_the_registry_says() -> None:
    configured = {"b": ConfiguredTopic(), "t": ConfiguredTopic(value="string"), "r": ConfiguredTopic(value="registry")}
    found = known(ROOT, configured, {"r": ValueFormatAnswer("protobuf")})
    topics = found.loaded.pipeline.topics
    assert {name: (each.value, each.schema_source) for name, each in topics.items()} == {
        "t": ("string", None), "r": ("protobuf", "registry"),
    }  # fmt: skip
    assert len(found.specs) == 3


def test_bytes_that_all_topics_keep_are_not_kept_twice() -> None:
    text = "archive: {root: /lake, raw: true}"
    found = known(text, {"b": ConfiguredTopic(), "t": ConfiguredTopic(value="string")})
    assert {each.topic: each.raw for each in found.specs} == {"b": False, "t": True}


@pytest.mark.parametrize("table", ["lake/a", "a", "~/a"])
def test_a_relative_table_is_refused(table: str) -> None:
    assert "headwater.archive.table is an absolute path or a URL" in reason(
        known(ROOT, {"a": ConfiguredTopic(table)}), "a"
    )


def test_a_wrong_combination_stops_only_its_topic_and_names_the_configs() -> None:
    configured = {
        "a": ConfiguredTopic(),
        "b": ConfiguredTopic("/b"),
        "c": ConfiguredTopic("/c*"),
        "d": ConfiguredTopic("gs://d/d"),
    }
    found = known("archive: {}", configured)
    assert tables(found) == {"b": "/b"}
    assert reason(found, "a") == (
        "there is no root below which its table could be: set headwater.archive.table, or name a root "
        "(the topic's configs: headwater.archive.enable=true, headwater.archive.value=raw)"
    )
    assert "/c*: Spark takes" in reason(found, "c")
    assert "gs://d/d: the scheme 'gs' is not supported" in reason(found, "d")


@pytest.mark.parametrize("is_user_error", [True, False])
def test_a_registry_that_knows_no_format_is_the_reason(is_user_error: bool) -> None:
    answer = ValueFormatAnswer(fault="no subject a-value", is_user_error=is_user_error)
    found = known(ROOT, {"a": ConfiguredTopic(value="registry")}, {"a": answer})
    assert reason(found, "a").startswith("no subject a-value (the topic's configs: ")
    assert found.refused["a"].is_user_error is is_user_error


def test_a_table_that_is_or_is_within_anothers_displaces_neither_a_files_nor_one_below_the_root() -> None:
    text = "archive: {root: /lake, topics: {f: {table: /f}}}"
    for table in ("/f", "/f/x", "/lake/z", "/lake/z/y", "/lake"):
        found = known(text, {"a": ConfiguredTopic(table), "z": ConfiguredTopic()})
        assert tables(found) == {"f": "/f", "z": "/lake/z"}
        assert "a table has one topic" in reason(found, "a") or "VACUUM" in reason(found, "a")


def test_of_two_tables_in_one_place_that_of_the_running_archive_stays() -> None:
    configured = {"a": ConfiguredTopic("/x"), "b": ConfiguredTopic("/x")}
    assert tables(known(ROOT, configured)) == {"a": "/x"}
    assert tables(known(ROOT, configured, present=["b"])) == {"b": "/x"}


PLACES = st.sampled_from(["", "/lake/a", "/lake/b", "/lake", "/x", "/x/y", "relative", "hdfs://nn/x"])
CONFIGURED = st.dictionaries(
    st.sampled_from("abcdef"), st.builds(ConfiguredTopic, PLACES, st.sampled_from(["raw", "string"]))
)


@given(CONFIGURED, st.sets(st.sampled_from("abcdef")))
def test_each_enabled_topic_is_archived_or_refused_and_no_tables_overlap(
    configured: dict[str, ConfiguredTopic], present: set[str]
) -> None:
    found = known("archive: {root: /lake, topics: {f: }}", configured, present=present)
    assert {each.topic for each in found.specs} | found.refused.keys() == configured.keys() | {"f"}
    assert not tables(found).keys() & found.refused.keys()
    for place, spec in enumerate(found.specs):
        assert overlap(spec, found.specs[:place]) == ""


@given(CONFIGURED)
def test_what_runs_goes_on_whatever_is_enabled_beside_it(configured: dict[str, ConfiguredTopic]) -> None:
    running = known(ROOT, {name: each for name, each in configured.items() if name in "def"})
    later = known(ROOT, configured, present=tables(running).keys())
    explicit = {spec.topic for spec in running.specs if configured[spec.topic].table}
    below = {name for name, each in configured.items() if not each.table}
    # Only a table below the root, which has its place by its topic's name, can take that of one named elsewhere.
    lost = tables(running).keys() - tables(later).keys()
    assert lost <= explicit
    assert not lost or below


def test_topics_are_chosen_by_name_and_an_unknown_one_is_named() -> None:
    found = known(ROOT, {"flights": ConfiguredTopic(), "a": ConfiguredTopic("rel")})
    assert tables(chosen_archives(found, ["flights"], "x.yaml")) == {"flights": "/lake/flights"}
    assert chosen_archives(found, ["a"], "x.yaml").refused.keys() == {"a"}
    assert chosen_archives(found, ()) is found
    with pytest.raises(ArchiveError, match=r"x.yaml has no archive of the topic 'flight', and its config .* 'flights'"):
        chosen_archives(found, ["flight"], "x.yaml")
    assert chosen_archives(found, ["flight"]).specs == ()


def test_an_archive_says_which_configs_declare_it() -> None:
    [spec] = known(ROOT, {"a": ConfiguredTopic("/x", "string")}).specs
    assert spec == dataclasses.replace(
        TopicArchiveSpec("a", "/x", spec.start),
        configs="headwater.archive.enable=true, headwater.archive.table=/x, headwater.archive.value=string",
    )
