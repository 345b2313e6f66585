"""The graph of a pipeline: stages connected by the topics, tables and files that they write and read. Pure.

`headwater.pipelines.definition.checks` checks references between parts of a pipeline.
"""

from __future__ import annotations

import functools
import re

from headwater.pipelines.definition import (
    INPUT,
    Pipeline,
    SqlStep,
    Stage,
    TopicSource,
    TopicTable,
)
from headwater.pipelines.definition.addresses.places import Place
from headwater.pipelines.sql_text.shape import TEXTS_KEPT, parsed

DEAD_LETTERS_SUFFIX = ".dead_letters"


def dead_letter_topic(topic: str) -> str:
    """Dead-letter topic for records of `topic`.

    >>> dead_letter_topic("flights")
    'flights.dead_letters'
    """
    return topic + DEAD_LETTERS_SUFFIX


def row_dead_letters(pipeline: Pipeline, stage: Stage) -> str:
    """Dead-letter topic for rows of a stage that violate an expectation: its topic's, if that is its only input."""
    if len(stage.inputs) == 1 and isinstance(stage.inputs[0], TopicSource):
        return dead_letter_topic(stage.inputs[0].topic)
    return f"{pipeline.pipeline}.{stage.name}{DEAD_LETTERS_SUFFIX}"


def dead_letter_topics(pipeline: Pipeline, stage: Stage) -> tuple[str, ...]:
    """Every topic that may receive dead letters of a stage: for its rows first, then for its inputs and tables."""
    topics = [*(source.topic for source in stage.topic_inputs), *topic_tables(pipeline, stage)]
    return tuple(dict.fromkeys([row_dead_letters(pipeline, stage), *map(dead_letter_topic, topics)]))


def late_topics(stage: Stage) -> tuple[str, ...]:
    """Return the topics that receive the records of a stage's late rows."""
    marks = [source.watermark for source in stage.topic_inputs if source.watermark is not None]
    return tuple(dict.fromkeys(mark.late for mark in marks if mark.late is not None))


def side_topics(pipeline: Pipeline, stage: Stage) -> tuple[str, ...]:
    """Return every topic that may receive records of a stage beside its sinks: dead letters and late records."""
    return tuple(dict.fromkeys([*dead_letter_topics(pipeline, stage), *late_topics(stage)]))


def topic_tables(pipeline: Pipeline, stage: Stage) -> list[str]:
    """Return the topics that a stage uses as tables."""
    tables = (pipeline.tables[name] for name in tables_used(pipeline, stage))
    return [table.topic for table in tables if isinstance(table, TopicTable)]


def places_written(pipeline: Pipeline, stage: Stage) -> set[Place]:
    """Return every place that a stage writes, including the topics of its dead letters and late records."""
    found = {place for sink in stage.to if (place := sink.place) is not None}
    return found | {("topic", topic) for topic in side_topics(pipeline, stage)}


def writers(pipeline: Pipeline, topic: str) -> list[Stage]:
    """Return the stages that write to a topic."""
    return place_writers(pipeline, ("topic", topic))


def place_writers(pipeline: Pipeline, place: Place) -> list[Stage]:
    """Return the stages with a sink that writes to a place."""
    return [s for s in pipeline.stages if any(sink.place == place for sink in s.to)]


def upstream(pipeline: Pipeline, stage: Stage) -> list[Stage]:
    """Return the stages whose output this stage reads as a stream, including dead letters and late records.

    The stage itself is among them if it reads its own output.
    """
    wanted = {place for source in stage.inputs if (place := source.place) is not None}
    return [other for other in pipeline.stages if wanted & places_written(pipeline, other)]


def table_upstream(pipeline: Pipeline, stage: Stage) -> list[Stage]:
    """Return the other stages that write tables used by this stage."""
    wanted = {place for name in tables_used(pipeline, stage) if (place := pipeline.tables[name].place) is not None}
    return [other for other in pipeline.stages if other is not stage and wanted & places_written(pipeline, other)]


def topological_order(pipeline: Pipeline) -> list[Stage]:
    """Return the stages in topological order; independent stages keep the order of the file.

    A stage also follows the stages that write its tables, if the streams permit that order. Raises ValueError for a
    cycle of streams; `check` reports cycles first.
    """
    ordered: list[Stage] = []
    waiting = list(pipeline.stages)
    while waiting:
        fed = [s for s in waiting if not any(u in waiting for u in upstream(pipeline, s))]
        if not fed:
            raise ValueError(f"cycle among the stages {[s.name for s in waiting]}")
        ready = next((s for s in fed if not any(u in waiting for u in table_upstream(pipeline, s))), fed[0])
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def cycles(pipeline: Pipeline) -> list[list[Stage]]:
    """Return every cycle once, as the stages along it."""
    found: list[list[Stage]] = []
    done: set[str] = set()

    for start in pipeline.stages:
        path: list[Stage] = [start]
        branches: list[list[Stage]] = [upstream(pipeline, start)]
        while path:
            if not branches[-1]:
                done.add(path.pop().name)
                branches.pop()
                continue
            stage = branches[-1].pop(0)
            if stage in path:
                cycle = path[path.index(stage) :][::-1]
                if {s.name for s in cycle} not in [{s.name for s in other} for other in found]:
                    found.append(cycle)
            elif stage.name not in done:
                path.append(stage)
                branches.append(upstream(pipeline, stage))
    return found


@functools.lru_cache(TEXTS_KEPT)
def tables_named(sql: str) -> tuple[frozenset[str], str]:
    """Return the names of the unqualified tables that an SQL text reads, and the parse error ('' if parsed).

    sqlglot rejects some valid Spark SQL, so a parse failure is only a warning.

    >>> sorted(tables_named("WITH x AS (SELECT 1) SELECT * FROM `a.b` JOIN c USING (k), x")[0])
    ['a.b', 'c']
    >>> tables_named("SELEC")[0]
    frozenset()
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = parsed(sql)
    except sqlglot.errors.SqlglotError as error:
        return frozenset(), _first_line(str(error))
    except RecursionError:
        return frozenset(), "it is nested too deep"
    if not isinstance(tree, exp.Query):
        return frozenset(), "it is not a SELECT"
    local = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    names = (t.name for t in tree.find_all(exp.Table) if isinstance(t.this, exp.Identifier) and not t.db)
    return frozenset(name for name in names if name.lower() not in local), ""


def _first_line(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip().splitlines()[0] if text.strip() else "unknown error"


def expression_fault(expression: str) -> str:
    """Return sqlglot's error for an SQL expression, or ''."""
    import sqlglot

    try:
        sqlglot.parse_one(f"SELECT {expression}", read="spark")
    except sqlglot.errors.SqlglotError as error:
        return _first_line(str(error))
    except RecursionError:
        return "it is nested too deep"
    return ""


def input_views(stage: Stage, position: int) -> list[str]:
    """Return the views that a step reads: the inputs for the first step, the previous step's rows for later steps.

    A single input keeps its name from step to step.
    """
    if len(stage.inputs) == 1:
        return list(dict.fromkeys([stage.inputs[0].name, INPUT]))
    return [source.name for source in stage.inputs] if position == 0 else [INPUT]


def tables_used(pipeline: Pipeline, stage: Stage) -> tuple[str, ...]:
    """Return the tables named in a stage's SQL; all tables if a step is not SQL or sqlglot cannot parse it."""
    named: set[str] = set()
    if not stage.transforms or not pipeline.tables:
        return ()
    for step in stage.transforms:
        if isinstance(step, SqlStep):
            names, fault = tables_named(step.sql)
            if fault:
                return tuple(pipeline.tables)
            named |= {name.lower() for name in names}
        elif step.may_read_tables:
            return tuple(pipeline.tables)
    return tuple(table for table in pipeline.tables if table.lower() in named)


def known_topics(pipeline: Pipeline) -> frozenset[str]:
    """Return the topics that the file declares or writes, including those of dead letters and late records."""
    # Only existing records can become dead letters: a topic that is neither declared nor written has none.
    real = set(pipeline.topics) | {t.topic for s in pipeline.stages for t in s.topic_sinks}
    letters = {
        topic
        for stage in pipeline.stages
        for topic in side_topics(pipeline, stage)
        if all(source.topic in real for source in stage.topic_inputs)
    }
    return frozenset(real | letters)
