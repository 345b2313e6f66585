"""The archives of a running SQL service: those of the last listing that came."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from headwater.cli.sql_service.served_archives import ServedArchives
from headwater.pipelines.archive.archive_file import parse_declared
from headwater.pipelines.archive.configured import ConfiguredTopic, KnownArchives, ValueFormatAnswer, decide_archives
from headwater.pipelines.archive.errors import ArchiveFailed
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.unified.session_archives import SessionArchives

TEXT = json.dumps({"archive": {"root": "/lake"}})


def no_file(path: str) -> str:
    raise FileNotFoundError(path)


class Listing:
    """Topics whose configs enable an archive, as a broker would answer."""

    def __init__(self) -> None:
        self.topics: Mapping[str, ConfiguredTopic] = {}
        self.failure = ""
        self.is_foreseen = True

    def now(self, present: Collection[str] = ()) -> KnownArchives:
        if self.failure:
            raise ArchiveFailed(self.failure) if self.is_foreseen else KeyError(self.failure)
        answers = {"a": ValueFormatAnswer(fault="no registry")}
        return decide_archives(
            parse_declared(TEXT, "archive.yaml", {}, "/", {}, no_file), self.topics, answers, present
        )


def served(listing: Listing, lines: list[str], forgotten: list[tuple[str, str]] | None = None) -> ServedArchives:
    def forget(name: str, path: str) -> None:
        if forgotten is not None:
            forgotten.append((name, path))

    return ServedArchives(listing, SessionArchives.listed(listing.now()), Known(), lines.append, forget)


def test_archives_that_are_enabled_and_disabled_are_a_new_state() -> None:
    listing, lines = Listing(), list[str]()
    archives = served(listing, lines)
    first = archives.now
    archives.ask()
    assert archives.now is first
    listing.topics = {"b": ConfiguredTopic()}
    archives.ask()
    enabled = archives.now
    assert (enabled.version, enabled.known.lake) == (1, {"b": "/lake/b"})
    archives.ask()
    assert archives.now is enabled
    listing.topics = {}
    archives.ask()
    assert (archives.now.version, archives.now.known.lake) == (2, {})
    assert lines == []


def test_a_listing_that_fails_leaves_the_last_and_is_reported_once() -> None:
    listing, lines = Listing(), list[str]()
    listing.topics = {"b": ConfiguredTopic()}
    archives = served(listing, lines)
    listing.failure = "no broker answers"
    for _ in range(2):
        archives.ask()
    assert archives.now.known.lake == {"b": "/lake/b"}
    assert lines == ["archives cannot be listed: no broker answers; queries know those of the last listing"]
    listing.failure = ""
    archives.ask()
    listing.failure = "no broker answers"
    archives.ask()
    assert len(lines) == 2, "said again after an answer"
    listing.failure, listing.is_foreseen = "unforeseen", False
    archives.ask()
    assert "unforeseen" in lines[-1]


def test_a_table_that_is_no_archives_any_more_is_forgotten() -> None:
    listing, forgotten = Listing(), list[tuple[str, str]]()
    listing.topics = {"b": ConfiguredTopic("/one"), "c": ConfiguredTopic("/c")}
    archives = served(listing, [], forgotten)
    listing.topics = {"b": ConfiguredTopic("/two"), "c": ConfiguredTopic("/c")}
    archives.ask()
    assert forgotten == [("b", "/one")]
    listing.topics = {"b": ConfiguredTopic("/two")}
    archives.ask()
    assert forgotten == [("b", "/one"), ("c", "/c")]


def test_a_topic_that_is_given_the_table_of_another_takes_it_from_nobody() -> None:
    listing = Listing()
    listing.topics = {"b": ConfiguredTopic("/t")}
    archives = served(listing, [])
    listing.topics = {"a": ConfiguredTopic("/t"), "b": ConfiguredTopic("/t")}
    archives.ask()
    assert archives.now.known.lake == {"b": "/t"}


def test_an_archive_that_cannot_be_is_reported_when_that_is_new() -> None:
    listing, lines = Listing(), list[str]()
    archives = served(listing, lines)
    listing.topics = {"a": ConfiguredTopic(value="registry"), "b": ConfiguredTopic()}
    for _ in range(2):
        archives.ask()
    [line] = lines
    assert line.startswith("a is the topic alone, its archive cannot be: no registry")
    assert archives.now.known.lake == {"b": "/lake/b"}
