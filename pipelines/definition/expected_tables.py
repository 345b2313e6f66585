"""`expect_table` of a test: the Delta sinks of its stage, and the rows that their tables must have. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headwater.pipelines.definition.addresses.places import normal_path
from headwater.pipelines.definition.loaded import Loaded
from headwater.pipelines.definition.sinks import DeltaSink
from headwater.pipelines.definition.stage import Stage
from headwater.pipelines.definition.tests import PipelineTest, Rows
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem, nearest

__all__ = ["ExpectedTable", "check_tables", "expected_tables"]


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """The expected rows of one sink's table, or their file; `within` is their place in the test."""

    sink: DeltaSink
    rows: Rows | str
    within: Loc


def expected_tables(loaded: Loaded, stage: Stage, test: PipelineTest) -> list[ExpectedTable]:
    """The tables that a test compares, without those that `check_tables` reports."""
    sinks = _sinks(loaded, stage)
    given = test.expect_table
    if given is None:
        return []
    if not isinstance(given, dict):
        return [ExpectedTable(sink, given, ("expect_table",)) for sink in sinks.values()] if len(sinks) == 1 else []
    return [
        ExpectedTable(sinks[where], rows, ("expect_table", path))
        for path, rows in given.items()
        if (where := _place(loaded, path)) in sinks
    ]


def check_tables(loaded: Loaded, loc: Loc, test: PipelineTest, stage: Stage) -> Iterator[Problem]:
    """Problems of a test's `expect_table`: no Delta sink, an unknown or ambiguous one."""
    given = test.expect_table
    if given is None:
        return
    place = (*loc, "expect_table")
    sinks = _sinks(loaded, stage)
    paths = [sink.delta for sink in sinks.values()]
    if not sinks:
        yield loaded.problem(place, f"the stage {stage.name} has no Delta sink", "compare its rows with expect")
    elif not isinstance(given, dict):
        if len(sinks) > 1:
            what = f"the stage {stage.name} has {len(sinks)} Delta sinks"
            yield loaded.problem(place, what, f"give each table's rows under its path: {paths[0]}: [...]")
    else:
        found: set[str] = set()
        for path in given:
            where = _place(loaded, path)
            if where not in sinks:
                what = f"the stage {stage.name} has no Delta sink '{path}'"
                hint = nearest(path, paths) or f"there is {' and '.join(paths)}"
                yield loaded.problem((*place, path), what, hint)
            elif where in found:
                yield loaded.problem((*place, path), f"the rows of the table '{path}' are given twice", "remove one")
            found.add(where)


def _sinks(loaded: Loaded, stage: Stage) -> dict[str, DeltaSink]:
    """The Delta sinks of a stage by their table's folder."""
    return {_place(loaded, sink.delta): sink for sink in stage.to if isinstance(sink, DeltaSink)}


def _place(loaded: Loaded, path: str) -> str:
    return loaded.path(normal_path(path))
