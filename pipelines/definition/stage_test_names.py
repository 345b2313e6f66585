"""Checks the names in tests: stages, inputs, tables, expectations, sinks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.pipelines.definition import JdbcTable, Loaded, PipelineTest, Stage, TopicTable
from headwater.pipelines.definition.expected_tables import check_tables
from headwater.pipelines.definition.graph import tables_used
from headwater.pipelines.definition.stage import SEQUENCE_KNOWN
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem, nearest


def check_names(loaded: Loaded) -> Iterator[Problem]:
    """Yield problems of duplicate names, and of names that do not exist."""
    pipeline = loaded.pipeline
    names: set[str] = set()
    stages = {stage.name: stage for stage in pipeline.stages}
    for index, test in enumerate(pipeline.tests):
        loc = ("tests", index)
        if test.name.lower() in names:
            yield loaded.problem((*loc, "name"), f"there are two tests named '{test.name}'", "rename one")
        names.add(test.name.lower())
        stage = stages.get(test.stage)
        if stage is None:
            hint = nearest(test.stage, list(stages))
            yield loaded.problem((*loc, "stage"), f"there is no stage '{test.stage}'", hint)
            continue
        yield from _given(loaded, loc, test, stage)
        yield from _expectations(loaded, loc, test, stage)
        yield from check_tables(loaded, loc, test, stage)


def _given(loaded: Loaded, loc: Loc, test: PipelineTest, stage: Stage) -> Iterator[Problem]:
    inputs = [source.name for source in stage.inputs]
    known = [*inputs, *loaded.pipeline.tables]
    for name in test.given:
        if name not in known:
            what = f"the stage {stage.name} reads no '{name}'"
            yield loaded.problem((*loc, "given", name), what, nearest(name, known))
    if not set(inputs) & set(test.given):
        yield loaded.problem((*loc, "given"), f"no rows are given for {' or '.join(inputs)}")
    for name in tables_used(loaded.pipeline, stage):
        table = loaded.pipeline.tables[name]
        if name not in test.given and isinstance(table, TopicTable | JdbcTable):
            where = "a topic" if isinstance(table, TopicTable) else "a database"
            what = f"the table '{name}' is that of {where}, which tests do not ask"
            yield loaded.problem((*loc, "given"), what, f"give its rows: {name}: []")


def _expectations(loaded: Loaded, loc: Loc, test: PipelineTest, stage: Stage) -> Iterator[Problem]:
    kinds = {SEQUENCE_KNOWN: "dead_letter", **{each.name: each.otherwise for each in stage.expect}}
    for name in test.unmet or {}:
        if name not in kinds:
            what = f"the stage {stage.name} has no expectation '{name}'"
            yield loaded.problem((*loc, "unmet", name), what, nearest(name, list(kinds)))
    if test.stopped_by is not None and kinds.get(test.stopped_by) != "fail":
        fails = [name for name, otherwise in kinds.items() if otherwise == "fail"]
        what = f"the stage {stage.name} has no expectation '{test.stopped_by}' with otherwise: fail"
        yield loaded.problem((*loc, "stopped_by"), what, nearest(test.stopped_by, fails))
