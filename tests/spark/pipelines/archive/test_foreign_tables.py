"""An archive's table is no target of loads and pipelines, and theirs are no archives."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.pipelines.errors import PipelineError, PipelineFailed
from headwater.pipelines.file_systems.opening import file_system
from headwater.pipelines.loads.options import LoadOptions, requests_of
from headwater.pipelines.loads.request import LoadOutcome
from headwater.pipelines.loads.running import LoadRun
from tests.spark.pipelines.archive.conftest import Archives

pytestmark = pytest.mark.slow

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
ARCHIVES = """
topics: {"@t": {value: json, schema: n.json}}
archive: {root: lake, topics: {TOPICS}}
"""
# The other sinks are left out where the run gets as far as to write.
OTHERS = '{delta: lake/first}, {topic: "@out"}, '
PIPELINE = """
pipeline: p
topics: {"@t": {value: json, schema: n.json}}
stages:
  - name: s
    from: {topic: "@t", as: i}
    to: [OTHERS{delta: TABLE}]
"""


@pytest.fixture
def numbers(archives: Archives) -> Archives:
    archives.lab.write("n.json", SCHEMA)
    archives.lab.produce("@t", [{"n": 1}, {"n": 2}])
    return archives


def load(archives: Archives, target: Path) -> LoadOutcome:
    schema = str(archives.lab.folder / "n.json")
    options = LoadOptions((f"{archives.lab.prefix}t",), to=str(target), format="delta", value="json", schema=schema)
    requests, loaded = requests_of(options, ())
    [outcome] = LoadRun(requests, loaded, archives.lab.servers, file_system).run(lambda: archives.lab.spark)
    return outcome


def test_loads_and_pipelines_add_nothing_to_an_archive(numbers: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ARCHIVES.replace("TOPICS", '"@t": ')
    numbers.caught_up(text)
    table, topic = numbers.path("@t"), f"{numbers.lab.prefix}t"
    refusal = f"the table {table} is the archive of topic {topic}, and only the archive adds rows to it"
    outcome = load(numbers, table)
    assert (outcome.error, outcome.is_user_error) == (f"{refusal}: load into another target", True)

    pipeline = PIPELINE.replace("TABLE", f"lake/{topic}")
    with pytest.raises(PipelineError) as refused:
        numbers.lab.run(pipeline.replace("OTHERS", OTHERS))
    [problem] = refused.value.problems
    assert (problem.field, problem.hint) == ("stages[0].to[2].delta", "name another table")
    assert problem.message == refusal
    assert not (numbers.lab.folder / "lake" / "first").exists()
    assert not any(each.name == f"{numbers.lab.prefix}out" for each in numbers.lab.admin.list_topics())

    # One that was made when the run had looked is found by the first batch.
    monkeypatch.setattr("headwater.pipelines.engine.runner.refused_targets", lambda *_: ())
    with pytest.raises(PipelineFailed, match="only the archive adds rows to it; name another table"):
        numbers.lab.run(pipeline.replace("OTHERS", ""))
    assert numbers.rows("@t", "n") == [(0, 0, 1), (0, 1, 2)]
    numbers.lab.produce("@t", [{"n": 3}])
    numbers.caught_up(text)
    assert numbers.rows("@t", "n") == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]


def test_an_archive_takes_no_table_that_a_load_or_a_pipeline_has_made(numbers: Archives) -> None:
    lab = numbers.lab
    lab.produce("@u", [b"raw"])
    assert load(numbers, lab.folder / "lake" / "loaded").error == ""
    lab.run(PIPELINE.replace("OTHERS", "").replace("TABLE", "lake/written"))
    declared = '"@t": {table: lake/loaded}, "@u": {table: lake/written}'
    failures = numbers.once(ARCHIVES.replace("TOPICS", declared))
    assert all(each.is_user_error for each in failures)
    assert {each.error for each in failures} == {
        f"the table {lab.folder}/lake/{name} was not made by an archive: name another table"
        for name in ("loaded", "written")
    }
    for name in ("loaded", "written"):
        assert lab.delta(f"lake/{name}", "n") == [(1,), (2,)]
