"""SHOW TABLES, answered from the cluster's topics and the known tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cli.sql.listing import Relation, parse_listing, relations_listed
from headwater.pipelines.sql.lake_tables import archive_tables
from headwater.pipelines.sql.relations import Known
from headwater.pipelines.sql.topic_names import TopicNames


def listed(text: str, *of_spark: Relation) -> list[Relation] | None:
    topics = TopicNames(lambda: ["flights", "delays", "__consumer_offsets"])
    relations: Any = SimpleNamespace(topics=topics, known=Known(tables={"flights": "/lake/flights", "old": "/lake/o"}))
    asked = parse_listing(text)
    assert asked is not None
    return relations_listed(asked, relations, lambda: list(of_spark))


def test_topics_tables_and_sparks_own_are_listed_without_those_that_statements_have_made() -> None:
    found = listed("SHOW TABLES", Relation("", "flights", True), Relation("default", "mine", False))
    assert found == [
        Relation("", "delays", True),
        Relation("", "flights", True),
        Relation("default", "mine", False),
        Relation("lake", "flights", False),
        Relation("lake", "old", False),
    ]


def test_a_schema_and_a_pattern_select() -> None:
    assert listed("SHOW TABLES IN lake") == [Relation("lake", "flights", False), Relation("lake", "old", False)]
    assert listed("show tables from log like 'FL*|x'") == [Relation("log", "flights", True)]
    assert listed("SHOW TABLES 'd*'") == [Relation("", "delays", True)]
    assert listed("SHOW TABLES IN other") is None


def test_the_tables_of_archives_are_in_lake_beside_their_topics() -> None:
    known = Known(
        tables={"old": "/lake/o"}, archives=archive_tables({"flights": "/lake/flights", "a.b": "/lake/a.b"}, {})
    )
    relations: Any = SimpleNamespace(topics=TopicNames(lambda: ["a.b", "flights"]), known=known)
    asked = parse_listing("SHOW TABLES")
    assert asked is not None
    assert relations_listed(asked, relations, list) == [
        Relation("", "a.b", True),
        Relation("", "flights", True),
        Relation("lake", "a_b", False),
        Relation("lake", "flights", False),
        Relation("lake", "old", False),
    ]


@pytest.mark.parametrize("text", ["SHOW TABLES IN", "SHOW TABLES x y", "SHOW TABLE EXTENDED LIKE 'a'", "SELECT 1"])
def test_other_statements_are_sparks(text: str) -> None:
    assert parse_listing(text) is None
