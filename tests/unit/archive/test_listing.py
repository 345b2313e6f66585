"""What a listing asks of a registry: once for each format, and no further after one that does not answer."""

from __future__ import annotations

import pytest

from headwater.pipelines.analysis import topic_schemas
from headwater.pipelines.archive import listing
from headwater.pipelines.archive.archive_file import parse_declared
from headwater.pipelines.archive.configured import ConfiguredTopic
from headwater.pipelines.archive.listing import ArchiveListing
from headwater.pipelines.datasource.brokers import brokers
from headwater.pipelines.definition import Loaded
from headwater.pipelines.formats.registry_client import (
    NotFoundError,
    RegisteredSchema,
    RegistryAwayError,
    RegistryError,
)

URL = "http://127.0.0.1:8081"


class Registry:
    """Formats by topic; a topic without one has no subject."""

    def __init__(self, **formats: str) -> None:
        self.formats = formats
        self.is_away = False
        self.refused: list[str] = []
        self.asked: list[str] = []

    def format_of(self, loaded: Loaded, topic: str) -> str:
        registry = loaded.pipeline.registry
        assert registry is not None
        assert registry.url.reveal() == URL
        self.asked.append(topic)
        if self.is_away:
            raise RegistryAwayError("the registry does not answer")
        if topic in self.refused:
            raise RegistryError(f"the registry refuses {topic}-value")
        if topic not in self.formats:
            raise NotFoundError(f"no subject {topic}-value")
        return self.formats[topic]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    found = Registry(a="avro")
    monkeypatch.setattr(listing, "registered_format", found.format_of)
    configured = {name: ConfiguredTopic(value="registry") for name in ("a", "b", "c")}
    monkeypatch.setattr(ArchiveListing, "_configured", lambda _self: configured)
    return found


def listing_of(url: str | None) -> ArchiveListing:
    declared = parse_declared("archive: {root: /lake}", "archive.yaml", {}, "/", {}, lambda _: "")
    return ArchiveListing(declared, brokers("127.0.0.1:1", ""), lambda: url)


def test_a_registry_is_found_where_none_is_declared_and_keeps_its_place(registry: Registry) -> None:
    archives = listing_of(URL)
    known = archives.now()
    assert [each.topic for each in known.specs] == ["a"]
    assert known.loaded.pipeline.registry is not None
    assert known.refused["b"].reason.startswith("no subject b-value (")
    registry.formats["b"] = "protobuf"
    assert [each.topic for each in archives.now().specs] == ["a", "b"]
    assert registry.asked == ["a", "b", "c", "b", "c"]


def test_a_registry_that_is_away_ends_no_archive_and_is_asked_once(registry: Registry) -> None:
    archives = listing_of(URL)
    archives.now()
    registry.is_away = True
    registry.asked.clear()
    known = archives.now()
    assert [each.topic for each in known.specs] == ["a"]
    assert {topic: each.is_user_error for topic, each in known.refused.items()} == {"b": False, "c": False}
    assert registry.asked == ["b"]


def test_a_subject_that_the_registry_refuses_ends_no_other(registry: Registry) -> None:
    registry.formats["c"] = "json_schema"
    registry.refused.append("b")
    known = listing_of(URL).now()
    assert [each.topic for each in known.specs] == ["a", "c"]
    assert known.refused["b"].reason.startswith("the registry refuses b-value (")
    assert not known.refused["b"].is_user_error
    assert registry.asked == ["a", "b", "c"]


def test_a_subject_with_a_schema_of_a_type_of_its_own_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def latest(self, subject: str) -> RegisteredSchema:
            return RegisteredSchema("THRIFT" if subject == "a-value" else "AVRO", "")

    monkeypatch.setattr(topic_schemas, "client_of", lambda _: Client())
    configured = {name: ConfiguredTopic(value="registry") for name in ("a", "b")}
    monkeypatch.setattr(ArchiveListing, "_configured", lambda _self: configured)
    known = listing_of(URL).now()
    assert [each.topic for each in known.specs] == ["b"]
    assert known.refused["a"].reason.startswith("the subject 'a-value' has a schema of the type THRIFT, ")


def test_without_a_registry_the_reason_says_what_to_do(registry: Registry) -> None:
    known = listing_of(None).now()
    assert not known.specs
    assert "there is no schema registry: declare `registry:` in the file, or name one" in known.refused["a"].reason
    assert registry.asked == []
