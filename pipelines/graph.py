"""The graph of a pipeline: stages joined by topics. Pure.

What no single field can tell is checked here: names that are used twice or do not exist, and cycles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipelines.errors import Problem, nearest
from pipelines.spec import DeltaSink, Loaded, Pipeline, Stage, TopicSink

DEAD_LETTERS_SUFFIX = ".dead_letters"


def dead_letter_topic(topic: str) -> str:
    """Topic for the records of `topic` that could not be used.

    >>> dead_letter_topic("flights")
    'flights.dead_letters'
    """
    return topic + DEAD_LETTERS_SUFFIX


def writers(pipeline: Pipeline, topic: str) -> list[Stage]:
    """The stages that write to a topic."""
    return [s for s in pipeline.stages if any(isinstance(t, TopicSink) and t.topic == topic for t in s.to)]


def upstream(pipeline: Pipeline, stage: Stage) -> list[Stage]:
    """The stages whose output this stage reads, dead letters included (itself, if it reads its own)."""
    topic = stage.source.topic
    origin = topic.removesuffix(DEAD_LETTERS_SUFFIX) if topic.endswith(DEAD_LETTERS_SUFFIX) else None
    return [
        other
        for other in pipeline.stages
        if any(isinstance(t, TopicSink) and t.topic == topic for t in other.to)
        or (origin is not None and other.source.topic == origin)
    ]


def topological_order(pipeline: Pipeline) -> list[Stage]:
    """Stages so that each comes after those that feed it, else in the order of the file.

    Raises ValueError for a cycle; `check` reports those first.
    """
    ordered: list[Stage] = []
    waiting = list(pipeline.stages)
    while waiting:
        ready = next((s for s in waiting if not any(u in waiting for u in upstream(pipeline, s))), None)
        if ready is None:
            raise ValueError(f"cycle among the stages {[s.name for s in waiting]}")
        waiting.remove(ready)
        ordered.append(ready)
    return ordered


def cycles(pipeline: Pipeline) -> list[list[Stage]]:
    """Every cycle once, each as the stages along it."""
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


def tables_named(sql: str) -> tuple[frozenset[str], str]:
    """Names of the unqualified tables that an SQL text reads, and why it could not be parsed ('' if it could).

    sqlglot rejects some valid Spark SQL, so that a parse failure is never more than a warning.

    >>> sorted(tables_named("WITH x AS (SELECT 1) SELECT * FROM `a.b` JOIN c USING (k), x")[0])
    ['a.b', 'c']
    >>> tables_named("SELEC")[0]
    frozenset()
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(sql, read="spark")
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
    """Why sqlglot cannot parse an SQL expression, or ''."""
    import sqlglot

    try:
        sqlglot.parse_one(f"SELECT {expression}", read="spark")
    except sqlglot.errors.SqlglotError as error:
        return _first_line(str(error))
    except RecursionError:
        return "it is nested too deep"
    return ""


def check(loaded: Loaded, existing_topics: frozenset[str]) -> tuple[list[Problem], list[Problem]]:
    """Problems, and warnings, of the whole: names, references, cycles, SQL."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    problems += _duplicates(loaded)
    problems += _sources(loaded, existing_topics)
    problems += _clashes(loaded)
    for cycle in cycles(loaded.pipeline):
        around = " -> ".join([s.name for s in cycle] + [cycle[0].name])
        problems.append(
            loaded.problem(
                loaded.stage_loc(cycle[0], "from", "topic"),
                f"the stages form a cycle: {around}",
                "a stage cannot read what it feeds; write to another topic",
            )
        )
    for stage in loaded.pipeline.stages:
        _sql(loaded, stage, problems, warnings)
    return problems, warnings


def _duplicates(loaded: Loaded) -> Iterable[Problem]:
    names: dict[str, Stage] = {}
    for index, stage in enumerate(loaded.pipeline.stages):
        loc = ("stages", index)
        # Folders of the state are named after stages, and some file systems ignore case.
        if stage.name.lower() in names:
            yield loaded.problem((*loc, "name"), f"there are two stages named '{stage.name}'", "rename one")
        names[stage.name.lower()] = stage
        expectations: set[str] = set()
        for position, expectation in enumerate(stage.expect):
            if expectation.name in expectations:
                yield loaded.problem(
                    (*loc, "expect", position, "name"),
                    f"there are two expectations named '{expectation.name}'",
                    "rename one",
                )
            expectations.add(expectation.name)
        targets: set[str] = set()
        for position, sink in enumerate(stage.to):
            target = f"topic {sink.topic}" if isinstance(sink, TopicSink) else f"delta {loaded.path(sink.delta)}"
            if target in targets:
                yield loaded.problem((*loc, "to", position), f"the stage writes to {target} twice", "remove one")
            targets.add(target)


def _sources(loaded: Loaded, existing_topics: frozenset[str]) -> Iterable[Problem]:
    pipeline = loaded.pipeline
    known = sorted(known_topics(pipeline) | existing_topics)
    for index, stage in enumerate(pipeline.stages):
        topic = stage.source.topic
        loc = ("stages", index, "from", "topic")
        if topic not in known:
            yield loaded.problem(
                loc,
                f"the topic '{topic}' is neither declared under topics nor written by a stage",
                _or(nearest(topic, known), "declare it under topics"),
            )
            continue
        declared = pipeline.topics.get(topic)
        sources = [s for s in writers(pipeline, topic) if s is not stage]
        if declared is None or declared.value != "json" or declared.schema_file is not None:
            if declared is None and len(sources) > 1:
                yield loaded.problem(
                    loc,
                    f"the topic '{topic}' is written by {' and '.join(s.name for s in sources)}: which columns has it?",
                    "declare it under topics with a schema",
                )
            continue
        if len(sources) != 1:
            why = "no stage writes it" if not sources else f"{len(sources)} stages write it"
            yield loaded.problem(
                loc, f"the topic '{topic}' has value: json but no schema, and {why}", f"add a schema to topics.{topic}"
            )


def _clashes(loaded: Loaded) -> Iterable[Problem]:
    """A table and a topic of one name would be one view."""
    topics = {t.lower() for t in known_topics(loaded.pipeline)}
    for name in loaded.pipeline.tables:
        if name.lower() in topics:
            yield loaded.problem(("tables", name), f"'{name}' is a topic and a table", "rename the table")


def known_topics(pipeline: Pipeline) -> frozenset[str]:
    """Topics that the file declares or writes, dead letters included."""
    written = {t.topic for s in pipeline.stages for t in s.to if isinstance(t, TopicSink)}
    # Only records that exist can be dead letters: a topic nobody declares or writes has none.
    real = set(pipeline.topics) | written
    return frozenset(real | {dead_letter_topic(s.source.topic) for s in pipeline.stages if s.source.topic in real})


def _sql(loaded: Loaded, stage: Stage, problems: list[Problem], warnings: list[Problem]) -> None:
    for position, expectation in enumerate(stage.expect):
        if fault := expression_fault(expectation.that):
            loc = loaded.stage_loc(stage, "expect", position, "that")
            warnings.append(loaded.problem(loc, f"the condition may not be valid SQL: {fault}"))
    for position, sink in enumerate(stage.to):
        named: Sequence[tuple[str, str | None]] = (
            [(f"partition_by[{i}]", e) for i, e in enumerate(sink.partition_by)]
            if isinstance(sink, DeltaSink)
            else [("key", sink.key), ("value", sink.value)]
        )
        for name, expression in named:
            if expression is not None and (fault := expression_fault(expression)):
                loc = loaded.stage_loc(stage, "to", position, name.split("[")[0])
                warnings.append(loaded.problem(loc, f"{name} may not be a valid SQL expression: {fault}"))
    if stage.sql is None:
        return
    loc = loaded.stage_loc(stage, "sql")
    tables, fault = tables_named(stage.sql)
    if fault:
        warnings.append(loaded.problem(loc, f"the SQL may not be valid: {fault}", "Spark decides when it runs"))
        return
    known = {stage.source.topic, *loaded.pipeline.tables}
    folded = {name.lower() for name in known}
    unknown = sorted(name for name in tables if name.lower() not in folded)
    problems.extend(
        loaded.problem(
            loc,
            f"the SQL reads '{name}', which is neither the stage's topic nor a table",
            _or(nearest(name, sorted(known)), "declare it under tables"),
        )
        for name in unknown
    )
    if not unknown and stage.source.topic.lower() not in {name.lower() for name in tables}:
        quoted = f"`{stage.source.topic}`"
        problems.append(
            loaded.problem(loc, f"the SQL does not read the stage's topic {quoted}", f"write FROM {quoted}")
        )


def _or(first: str, second: str) -> str:
    return (
        f"{first} Else {second}" if first.startswith("did you mean") else (f"{second} ({first})" if first else second)
    )
