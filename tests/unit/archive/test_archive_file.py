"""A file of archives becomes an archive a topic, each with its own table, or is refused with the mistake's place."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import textwrap
from collections.abc import Mapping

import pytest

from headwater.pipelines.archive.archive_file import ROUND_BYTES, TOPICS_MAX, TopicArchiveSpec, parse_archive
from headwater.pipelines.archive.errors import ArchiveError
from headwater.pipelines.definition import Loaded
from headwater.pipelines.errors import PipelineError, Problem
from headwater.pipelines.loads.offsets.positions import PositionKind, parse_position

FOLDER = "/etc/flows"
FIVE_MS = 1_357_016_400_000  # 2013-01-01T05:00:00Z


def no_file(path: str) -> str:
    raise FileNotFoundError(path)


def loaded(text: str, variables: Mapping[str, str] | None = None) -> tuple[list[TopicArchiveSpec], Loaded]:
    return parse_archive(textwrap.dedent(text), "archive.yaml", variables or {}, FOLDER, {}, no_file)


def parsed(text: str, variables: Mapping[str, str] | None = None) -> list[TopicArchiveSpec]:
    return loaded(text, variables)[0]


def one(topic: str, whole: str = "", variables: Mapping[str, str] | None = None) -> TopicArchiveSpec:
    """The only archive of a file, by what is said for its topic, and for all."""
    [spec] = parsed(f"archive: {{root: /lake, {whole}topics: {{flights: {topic}}}}}", variables)
    return spec


def problems(text: str, variables: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    with pytest.raises(PipelineError) as caught:
        parsed(text, variables)
    return caught.value.problems


def problem(text: str) -> str:
    """The only problem of a file, as it is shown."""
    [found] = problems(text)
    return str(found)


# -- what is said, and what is not -------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", "{}", "null", "~"])
def test_a_topic_of_which_nothing_is_said_has_the_defaults(topic: str) -> None:
    assert one(topic) == TopicArchiveSpec(
        "flights",
        "/lake/flights",
        parse_position("earliest"),
        raw=False,
        headers=True,
        on_gap="fail",
        on_error="store",
        merge_schema=False,
        freshness_ms=60_000,
        round_bytes=1 << 30,
    )


ALL = (
    "from: latest, raw: true, headers: false, on_gap: record, on_error: suspend, merge_schema: true, "
    "freshness: 5 minutes, round_bytes: 2097152"
)
CHOSEN = TopicArchiveSpec(
    "flights",
    "/lake/flights",
    parse_position("latest"),
    raw=True,
    headers=False,
    on_gap="record",
    on_error="suspend",
    merge_schema=True,
    freshness_ms=300_000,
    round_bytes=2_097_152,
)


def test_each_choice_can_be_said_for_all_topics_and_for_one() -> None:
    assert one("", f"{ALL}, ") == one(f"{{{ALL}}}") == CHOSEN


def test_a_topic_takes_back_what_was_said_for_all() -> None:
    back = (
        "{from: earliest, raw: false, headers: true, on_gap: fail, on_error: store, merge_schema: false, "
        f"freshness: 60 seconds, round_bytes: {ROUND_BYTES}}}"
    )
    assert one(back, f"{ALL}, ") == one("")


def test_topics_are_independent_of_each_other_and_in_the_order_of_the_file() -> None:
    specs = parsed("""
        archive:
          root: /lake
          freshness: 2 minutes
          topics:
            planes:
            flights: {raw: true, freshness: 1 second}
            weather: {on_gap: record}
        """)
    assert [each.topic for each in specs] == ["planes", "flights", "weather"]
    assert [each.freshness_ms for each in specs] == [120_000, 1000, 120_000]
    assert [each.raw for each in specs] == [False, True, False]
    assert [each.on_gap for each in specs] == ["fail", "fail", "record"]


def test_the_topics_declared_in_the_file_are_in_the_pipeline_without_stages() -> None:
    _, found = loaded("""
        topics: {flights: {value: avro, schema: flights.avsc}}
        spark: {spark.sql.shuffle.partitions: 4}
        archive: {root: /lake, topics: {flights: , planes: }}
        """)
    assert list(found.pipeline.topics) == ["flights"]
    assert found.pipeline.topics["flights"].value == "avro"
    assert found.pipeline.stages == ()
    assert found.folder == FOLDER


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "table"),
    [
        ("/lake", "/lake/flights"),
        ("/lake/", "/lake/flights"),
        ("/", "/flights"),
        ("lake", "/etc/flows/lake/flights"),
        ("./lake//", "/etc/flows/lake/flights"),
        ("../lake", "/etc/lake/flights"),
        ("hdfs://namenode:8020/lake", "hdfs://namenode:8020/lake/flights"),
        ("s3a://bucket/", "s3a://bucket/flights"),
        ("file:///lake", "file:///lake/flights"),
    ],
)
def test_a_table_is_below_the_root_by_its_topics_name(root: str, table: str) -> None:
    assert parsed(f"archive: {{root: '{root}', topics: {{flights: }}}}")[0].table == table


@pytest.mark.parametrize(
    ("own", "table"),
    [
        ("/tables/f", "/tables/f"),
        ("/tables/f/", "/tables/f"),
        ("tables/f", "/etc/flows/tables/f"),
        ("s3a://bucket/f/", "s3a://bucket/f"),
    ],
)
@pytest.mark.parametrize("root", ["", "root: 'hdfs://nn/lake', "])
def test_a_topics_own_table_is_not_below_the_root(own: str, table: str, root: str) -> None:
    assert parsed(f"archive: {{{root}topics: {{flights: {{table: '{own}'}}}}}}")[0].table == table


def test_a_topic_without_a_table_is_refused() -> None:
    text = "archive: {topics: {planes: {table: /p}, flights: {raw: true}}}"
    with pytest.raises(ArchiveError, match=r"the archive of flights has no table: give archive\.root, or the topic's"):
        parsed(text)


@pytest.mark.parametrize(
    ("table", "other"),
    [
        ("/lake/flights", "/lake/flights"),
        ("/lake/flights", "/lake/flights/"),
        ("/lake/flights", "../../lake/flights"),
        ("/lake/flights", "/lake//./planes/../flights"),
        ("/lake/flights", "file:///lake/flights"),
        ("/lake/flights", "file:/lake/flights"),
        ("hdfs://nn/lake/flights", "hdfs://nn/lake/./flights/"),
        ("hdfs://nn/lake/flights", "hdfs://nn//lake/flights"),
    ],
)
def test_two_topics_with_one_table_are_refused_however_it_is_written(table: str, other: str) -> None:
    for one_, two in ((table, other), (other, table)):
        with pytest.raises(ArchiveError, match="would be the table of flights and of planes: a table has one topic"):
            parsed(f"archive: {{topics: {{flights: {{table: '{one_}'}}, planes: {{table: '{two}'}}}}}}")


@pytest.mark.parametrize("outer", ["/lake", "/lake/", "file:///lake", "/lake/raw"])
def test_a_table_within_another_is_refused(outer: str) -> None:
    inner = "flights: {table: /lake/raw/flights}"
    for topics in (f"{inner}, all: {{table: '{outer}'}}", f"all: {{table: '{outer}'}}, {inner}"):
        with pytest.raises(ArchiveError, match=r"the table of flights, /lake/raw/flights, would be within that of all"):
            parsed(f"archive: {{topics: {{{topics}}}}}")


def test_tables_beside_each_other_are_apart() -> None:
    tables = [
        "/lake/a",
        "/lake/a b",
        "/lake/ab",
        "hdfs://nn/lake/a",
        "hdfs://other/lake/a",
        "s3a://lake/a",
        "s3a://a/a",
    ]
    topics = ", ".join(f"t{place}: {{table: '{table}'}}" for place, table in enumerate(tables))
    assert [each.table for each in parsed(f"archive: {{topics: {{{topics}}}}}")] == tables


@pytest.mark.parametrize("table", ["gs://b/x", "abfss://c@a/x", "dbfs:/x", "viewfs:///x"])
def test_a_table_of_a_file_system_that_is_not_known_is_refused(table: str) -> None:
    with pytest.raises(ArchiveError, match=f"{table}: the scheme '.*' is not supported; file, hdfs and s3a are"):
        parsed(f"archive: {{topics: {{f: {{table: '{table}'}}}}}}")


@pytest.mark.parametrize("table", ["/", "file:///", "hdfs://nn/", "s3a://bucket//"])
def test_the_root_of_a_file_system_is_no_table(table: str) -> None:
    with pytest.raises(ArchiveError, match=re.escape(f"{table}: the root of a file system is no table")):
        parsed(f"archive: {{topics: {{flights: {{table: '{table}'}}}}}}")


@pytest.mark.parametrize("character", list("*?[]{}\\"))
def test_a_path_that_spark_takes_for_a_pattern_is_refused(character: str) -> None:
    for said in (f"root: '/la{character}ke', topics: {{flights: }}", f"topics: {{f: {{table: 'a{character}b'}}}}"):
        with pytest.raises(ArchiveError, match=re.escape("Spark takes * ? [ ] { } and \\ in a path for a pattern")):
            parsed(f"archive: {{{said}}}")


def test_other_characters_of_paths_are_kept() -> None:
    assert parsed("archive: {root: '/lake of all/100% #1,é', topics: {f: }}")[0].table == "/lake of all/100% #1,é/f"


# -- where a new archive begins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["47", "'47'", "0"])
def test_an_offset_needs_no_quotes(text: str) -> None:
    assert one(f"{{from: {text}}}").start.offset == int(text.strip("'"))


@pytest.mark.parametrize("text", ["'0:47,1:12'", "'1:12,0:47'"])
def test_offsets_are_said_by_partition(text: str) -> None:
    assert one(f"{{from: {text}}}").start.offsets == {0: 47, 1: 12}


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("0:47", {0: 47}),
        ("1:99", {1: 99}),
        ("1:2,3:4", {1: 2, 3: 4}),
        ("1:47", {1: 47}),
        ("3:5", {3: 5}),
        ("12:30", {12: 30}),
    ],
)
def test_offsets_by_partition_are_never_one_offset_for_lack_of_quotes(text: str, offsets: dict[int, int]) -> None:
    """YAML 1.1 reads some of them as numbers to the base of 60: 1:47 is 107."""
    with contextlib.suppress(PipelineError):  # refused, with the advice to quote them
        [spec] = parsed(f"archive:\n  root: /lake\n  from: {text}\n  topics:\n    flights:\n")
        assert (spec.start.offset, spec.start.offsets) == (None, offsets)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2013-01-01T05:00:00Z", FIVE_MS),
        ("2013-01-01T05:00:00", FIVE_MS),
        ("2013-01-01 05:00:00", FIVE_MS),
        ("2013-01-01T06:00:00+01:00", FIVE_MS),
        ("2013-01-01T05:00:00.250Z", FIVE_MS + 250),
        ("2013-01-01", FIVE_MS - 5 * 3_600_000),
        (f"'@{FIVE_MS}'", FIVE_MS),
    ],
)
def test_a_time_needs_no_quotes(text: str, time_ms: int) -> None:
    for quoted in (text, f"'{text}'") if "'" not in text else (text,):
        [spec] = parsed(f"archive:\n  root: /lake\n  topics:\n    flights:\n      from: {quoted}\n")
        assert (spec.start.kind, spec.start.time_ms) == (PositionKind.TIME, time_ms)


@pytest.mark.parametrize("text", ["last", "' last '"])
def test_from_last_is_refused_because_an_archive_goes_on_by_itself(text: str) -> None:
    said = "archive.yaml:3:9: archive.from: an archive goes on where its table ends: `from` says where a new one begins"
    assert problem(f"archive:\n  root: /lake\n  from: {text}\n  topics: {{flights: }}\n") == said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "'soon' is not a position"),
        ("-5", "'-5' is not a position"),
        ("1969-12-31", "is before 1970"),
        ("'0:1,0:2'", "names partition 0 twice"),
        ("true", "text"),
        ("1.5", "text"),
        ("[1]", "text"),
    ],
)
def test_other_beginnings_are_refused(text: str, message: str) -> None:
    found = problem(f"archive:\n  root: /lake\n  topics:\n    flights:\n      from: {text}\n")
    assert found.startswith("archive.yaml:5:13: archive.topics.flights.from: ")
    assert message in found


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_unknown_fields_are_refused_with_their_positions() -> None:
    found = problems("""\
        archive:
          root: /lake
          form: latest
          topics:
            flights:
              tabel: /t
        load: {}
        """)
    assert [(each.line, each.column, each.field, each.message) for each in found] == [
        (3, 3, "archive.form", "unknown field 'form'"),
        (6, 7, "archive.topics.flights.tabel", "unknown field 'tabel'"),
        (7, 1, "load", "unknown field 'load'"),
    ]


@pytest.mark.parametrize(
    ("freshness", "is_enough"),
    [
        ("1 second", True),
        ("1000 milliseconds", True),
        ("999 milliseconds", False),
        ("1 microsecond", False),
        ("0 hours", False),
    ],
)
def test_a_freshness_below_a_second_is_refused(freshness: str, is_enough: bool) -> None:
    if is_enough:
        assert one(f"{{freshness: {freshness}}}").freshness_ms == 1000
        return
    place = "archive.yaml:1:51: archive.topics.flights.freshness"
    text = f"archive: {{root: /l, topics: {{flights: {{freshness: {freshness}}}}}}}"
    assert problem(text) == f"{place}: freshness is at least 1 second: each round is a commit"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{root: '', topics: {f: }}", "archive.root"),
        ("{topics: {f: {table: ''}}}", "archive.topics.f.table"),
        ("{root: /lake, topics: {f: {freshness: soon}}}", "archive.topics.f.freshness"),
        ("{root: /lake, topics: {f: {freshness: 60}}}", "archive.topics.f.freshness"),
        ("{root: /lake, topics: {f: {round_bytes: 1000}}}", "archive.topics.f.round_bytes"),
        ("{root: /lake, topics: {f: {on_gap: store}}}", "archive.topics.f.on_gap"),
        ("{root: /lake, topics: {f: {on_error: fail}}}", "archive.topics.f.on_error"),
        ("{root: /lake, topics: {f: {raw: some}}}", "archive.topics.f.raw"),
        ("{root: /lake, topics: {f: /table}}", "archive.topics.f"),
        ("{root: /lake, topics: [f]}", "archive.topics"),
        ("{root: '${env:ROOT}', topics: {f: }}", "archive.root"),
    ],
)
def test_values_that_are_none_are_refused_at_their_fields(text: str, field: str) -> None:
    assert [each.field for each in problems(f"archive: {text}")] == [field]


@pytest.mark.parametrize("name", ["..", "a/b", "a b", "flights*", "f" * 250])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    [found] = problems(f"archive: {{root: /lake, topics: {{'{name}': }}}}")
    assert found.field.startswith("archive.topics")


def test_there_are_limits_for_the_number_of_topics() -> None:
    names = [f"t{number}: " for number in range(TOPICS_MAX + 1)]
    assert len(parsed(f"archive: {{root: /lake, topics: {{{', '.join(names[1:])}}}}}")) == TOPICS_MAX
    assert problems(f"archive: {{root: /lake, topics: {{{', '.join(names)}}}}}")[0].field == "archive.topics"


@pytest.mark.parametrize("text", ["- archive", "archive", "'5'", "{}", "loads: {}"])
def test_a_file_of_something_else_is_refused(text: str) -> None:
    assert problems(text)


def test_every_problem_of_a_file_is_reported_at_once() -> None:
    found = problems("archive: {from: last, raw: some, topics: {f: {from: soon, freshness: 1 microsecond}}}")
    assert {each.field for each in found} == {
        "archive.from",
        "archive.raw",
        "archive.topics.f.from",
        "archive.topics.f.freshness",
    }


# -- secrets and variables ---------------------------------------------------------------------------------------------


def test_secrets_are_not_needed_to_check_a_file() -> None:
    specs, found = loaded("""
        registry: {url: "http://registry:8081", username: me, password: "${env:REGISTRY_PASSWORD}"}
        archive: {root: /lake, topics: {flights: }}
        """)
    assert [each.table for each in specs] == ["/lake/flights"]
    with pytest.raises(PipelineError, match="the environment has no variable REGISTRY_PASSWORD"):
        found.require_secrets()


def test_variables_are_replaced_in_every_field() -> None:
    text = """
        variables: {lake: /lake, begin: 0, raw: "true", often: 10}
        archive:
          root: ${lake}/raw
          topics:
            flights: {from: "${begin}", raw: "${raw}", freshness: "${often} seconds"}
        """
    expected = TopicArchiveSpec("flights", "/lake/raw/flights", parse_position("0"), raw=True, freshness_ms=10_000)
    assert parsed(text) == [expected]
    given = {"lake": "s3a://bucket", "begin": "latest"}
    changed = dataclasses.replace(expected, table="s3a://bucket/raw/flights", start=parse_position("latest"))
    assert parsed(text, given) == [changed]


def test_variables_that_the_file_lacks_are_refused() -> None:
    assert "the file has no variable ${lake}" in str(problems("archive: {root: /l, topics: {f: }}", {"lake": "x"})[0])
    assert "lake" in problem("archive: {root: '${lake}', topics: {f: }}")
