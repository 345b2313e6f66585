"""Databases whose names are not shown: another one is another one, and `plan` says where a URL does not tell."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headwater.pipelines.definition import Loaded
from headwater.pipelines.definition.addresses.jdbc_names import database_hash
from headwater.pipelines.deployment.changes import Change, Deployed, Effect, changes_of_stage
from headwater.pipelines.deployment.stage_record import StageRecord, record_of

Load = Callable[..., Loaded]


def record(load: Load, url: str) -> StageRecord:
    loaded = load(
        "pipeline: p\ntopics: {u: {value: string}}\nstages:\n"
        f"  - {{name: db, from: {{jdbc: '{url}', table: t, increment: id}}, to: {{topic: u}}}}\n"
    )
    return record_of(loaded, loaded.pipeline.stages[0], {}, "6")


def moved(load: Load, old: str, new: str) -> list[Change]:
    return changes_of_stage("db", Deployed(True, record(load, old)), record(load, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("jdbc:redshift:iam://c:us-east-1/dev", "jdbc:redshift:iam://c:us-east-1/prod"),
        ("jdbc:postgresql://db/my%20shop", "jdbc:postgresql://db/my%20other"),
        ("jdbc:postgresql://u:p/w@db1/shop", "jdbc:postgresql://u:p/w@db2/other"),
        ("jdbc:sqlite:/data/my shop.db", "jdbc:sqlite:/data/other shop.db"),
        ("jdbc:db2:SAMPLE", "jdbc:db2:OTHER"),
        ("jdbc:phoenix:zk1:2181", "jdbc:phoenix:zk2:2181"),
    ],
)
def test_a_source_in_another_database_needs_a_reset(load: Load, old: str, new: str) -> None:
    [change] = moved(load, old, new)
    assert (change.effect, change.what) == (Effect.NEEDS_RESET, "other input")
    assert moved(load, old, old) == []


def test_another_password_with_a_slash_is_no_change(load: Load) -> None:
    assert moved(load, "jdbc:postgresql://u:p/w@db/shop", "jdbc:postgresql://u:q@db/shop") == []


def test_plan_says_that_a_url_does_not_tell_its_database(load: Load) -> None:
    [change] = moved(load, "jdbc:unknown:a", "jdbc:unknown:b")
    assert (change.effect, change.what) == (Effect.SAFE, "database of input input")
    assert "jdbc:unknown:*** does not tell which one it is" in change.reason


def test_a_recorded_hash_of_what_stood_for_a_name_tells_nothing(load: Load) -> None:
    now = record(load, "jdbc:db2:SAMPLE")
    kept = json.loads(now.encode())
    kept["inputs"][0]["database"] = database_hash("jdbc:db2:***")
    [change] = changes_of_stage("db", Deployed(True, StageRecord.decode(json.dumps(kept))), now)
    assert (change.effect, change.what) == (Effect.SAFE, "database of input input")
