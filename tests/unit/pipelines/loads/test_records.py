from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines.file_systems.local import LocalFiles
from headwater.pipelines.loads.errors import LoadError
from headwater.pipelines.loads.partitions import parse_partitions
from headwater.pipelines.loads.request import LoadOutcome, LoadStatus, target_of
from headwater.pipelines.loads.targets.manifest import LoadedFile, LoadPlan, Manifest, TargetDescription, check_id
from headwater.pipelines.loads.targets.records import Commit, LoadRecords
from headwater.pipelines.loads.targets.schemas import check_schema

PLAN = LoadPlan("a", "flights", "id", {0: ((0, 5),)}, {1: ((3, 4),)}, ("last", "latest"), "2013-01-01T00:00:00+00:00")
MANIFEST = Manifest(
    PLAN, 1, "parquet", 5, 1, '{"fields": [], "type": "struct"}', ("dt",), (LoadedFile("dt=1/x", 7, "00"),),
    coverage={0: ((0, 5),)}, chain_ends={0: 5}, loaded_at="2013-01-01T00:00:09+00:00",
)  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> LoadRecords:
    return LoadRecords(LocalFiles(), f"file://{tmp_path}/lake")


def replacing(sequence: int) -> Manifest:
    return Manifest(PLAN, sequence, "parquet", 6, 0, "", replaces=True, removed=("dt=1/x",))


def test_what_is_written_once_stays(records: LoadRecords) -> None:
    first = TargetDescription("lock", "flights", "id", "parquet")
    assert records.description() is None
    assert records.describe(first) == first
    assert records.describe(TargetDescription("other", "flights", "id", "orc")) == first
    assert records.plan("a") is None
    assert records.write_plan(PLAN) == PLAN
    assert records.write_plan(LoadPlan("a", "flights", "id", {0: ((0, 99),)})) == PLAN


def test_commits_are_numbered(records: LoadRecords) -> None:
    assert records.last_sequence() == 0
    commit = Commit(MANIFEST, {"dt=1/x": "_headwater/staged/0/dt=1/x"})
    assert records.create_commit(commit)
    assert not records.create_commit(Commit(MANIFEST, {}))
    assert records.last_sequence() == 1
    assert records.commit(1) == commit
    with pytest.raises(LoadError, match="is missing: somebody removed a record"):
        records.commit(2)


def test_the_last_of_a_loads_manifests_holds(records: LoadRecords) -> None:
    assert records.manifest("a") is None
    assert not records.has_manifest(MANIFEST)
    records.write_manifest(MANIFEST)
    assert records.has_manifest(MANIFEST)
    assert records.manifest("a") == MANIFEST
    for sequence in (4, 12):
        records.write_manifest(replacing(sequence))
    found = records.manifest("a")
    assert found is not None
    assert found.sequence == 12
    assert [each.sequence for each in records.manifests()] == [1, 4, 12]


@pytest.mark.parametrize("name", ["", ".x", "a/b", "x" * 151, "a~1", "ä", "2013-01-01T00:00"])
def test_names_are_safe_in_paths(name: str) -> None:
    with pytest.raises(LoadError, match="cannot name a load"):
        check_id(name)


def test_airflows_names_are_names() -> None:
    assert check_id("scheduled__2013-01-01T000000+0000")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"version": 2}', b'{"version": 1}', b'{"version": 1, "id": 5}', b"\xff"],
)
def test_other_files_are_refused_by_name(records: LoadRecords, data: bytes) -> None:
    records.files.replace(f"{records.folder}/plans/a.json", data)
    records.files.replace(f"{records.folder}/manifests/a.json", data)
    records.files.replace(f"{records.folder}/target.json", data)
    records.files.replace(f"{records.folder}/commits/{1:020}.json", data)
    asked: list[Any] = [lambda: records.plan("a"), lambda: records.manifest("a"), records.description]
    for ask in [*asked, lambda: records.commit(1)]:
        with pytest.raises(LoadError, match=r"/lake/_headwater/.*\.json (is not a record|is no|has the version 2)"):
            ask()


def test_a_damaged_manifest_is_refused(records: LoadRecords) -> None:
    for name in ("rows", "files", "sequence", "coverage", "schema"):
        value = MANIFEST.value()
        del value[name]
        if name == "coverage":
            value[name] = [1]
        with pytest.raises(LoadError, match=r"manifest of a load|record of a load"):
            Manifest.decode(json.dumps(value).encode(), "x.json")


def test_outcomes_are_lines() -> None:
    done = LoadOutcome("flights", "/lake", LoadStatus.LOADED, MANIFEST, seconds=2.0)
    assert str(done) == (
        "flights: a loaded in 2.0 s: 5 rows, 1 of them could not be decoded in /lake; 1 offsets were gone by retention"
    )
    assert done.value()["bytes"] == 7
    assert str(LoadOutcome("flights", "/lake", LoadStatus.NOTHING_NEW)) == "flights: nothing new for /lake"
    failed = LoadOutcome("flights", "/lake", LoadStatus.FAILED, error="no")
    assert str(failed) == "flights: no"
    assert failed.value()["error"] == "no"


def test_topics_do_not_share_a_target() -> None:
    with pytest.raises(LoadError, match=r"2 topics cannot share the target /lake: name it with \{topic\}"):
        target_of("/lake", "flights", 2)


@pytest.mark.parametrize(
    ("texts", "timezone"),
    [(["day(x)"], "UTC"), (["a b"], "UTC"), (["dt", "date(x)"], "UTC"), (["x"], "Mars/Olympus"), (["x'"], "UTC")],
)
def test_partition_columns_are_checked(texts: list[str], timezone: str) -> None:
    with pytest.raises(LoadError, match=r"--partition-by|--timezone"):
        parse_partitions(texts, timezone)


def schema(**types: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def test_columns_keep_their_types() -> None:
    check_schema("", schema(n="long"), merge=False)
    check_schema(schema(n="long", m="long"), schema(n="long"), merge=False)
    check_schema(schema(n="long"), schema(n="long", m="long"), merge=True)
    nested = {"type": "array", "elementType": "long", "containsNull": False}
    check_schema(schema(n=nested), schema(n=nested | {"containsNull": True}), merge=False)
    with pytest.raises(LoadError, match="the target has no column m"):
        check_schema(schema(n="long"), schema(n="long", m="long"), merge=False)
    with pytest.raises(LoadError, match="column n was array<long> and is string now"):
        check_schema(schema(n=nested), schema(n="string"), merge=True)
    before, now = (
        {"type": "struct", "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": {}}]}
        for kind in ("long", {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True})
    )
    with pytest.raises(LoadError, match="column n was struct<a: long> and is struct<a: map<string, long>> now"):
        check_schema(schema(n=before), schema(n=now), merge=True)
