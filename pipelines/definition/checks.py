"""Checks across a pipeline's fields: duplicate and unknown names, cycles, SQL without inputs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater.pipelines.definition import (
    INPUT,
    DeduplicateStep,
    Loaded,
    PythonStep,
    SqlStep,
    Stage,
    StatefulStep,
    TopicSink,
    TopicSource,
    TopicTable,
    WatermarkStep,
)
from headwater.pipelines.definition.graph import (
    cycles,
    expression_fault,
    input_views,
    known_topics,
    side_topics,
    tables_named,
    tables_used,
    writers,
)
from headwater.pipelines.definition.late_rule import NoLateRuleError, late_rule
from headwater.pipelines.definition.stage_test_names import check_names
from headwater.pipelines.definition.topics import FRAMED
from headwater.pipelines.definition.yaml_source import Loc
from headwater.pipelines.errors import Problem, nearest


def check(loaded: Loaded, existing_topics: frozenset[str]) -> tuple[list[Problem], list[Problem]]:
    """Return problems and warnings. `existing_topics` are the broker's topics, which need no declaration."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    problems += _duplicates(loaded)
    problems += _topics_read(loaded, existing_topics)
    problems += _inputs(loaded)
    problems += _clashes(loaded)
    problems += _registry(loaded)
    problems += _written_events(loaded)
    problems += _late(loaded)
    for cycle in cycles(loaded.pipeline):
        around = " -> ".join([s.name for s in cycle] + [cycle[0].name])
        problems.append(
            loaded.problem(
                loaded.input_loc(cycle[0], 0),
                f"the stages form a cycle: {around}",
                "a stage cannot read its own output; write to another topic",
            )
        )
    for stage in loaded.pipeline.stages:
        problems += _steps(loaded, stage)
        problems += _modes(loaded, stage)
        _sql(loaded, stage, problems, warnings)
        warnings += _expressions(loaded, stage)
    problems += check_names(loaded)
    warnings += _unused(loaded)
    return problems, warnings


def _duplicates(loaded: Loaded) -> Iterator[Problem]:
    names: set[str] = set()
    for index, stage in enumerate(loaded.pipeline.stages):
        loc = ("stages", index)
        # Stages name folders of the state folder, and some file systems ignore case.
        if stage.name.lower() in names:
            yield loaded.problem((*loc, "name"), f"there are two stages named '{stage.name}'", "rename one")
        names.add(stage.name.lower())
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
            place = sink.place
            if place is None:
                continue
            target = f"{place[0]} {loaded.path(place[1]) if place[0] in ('delta', 'files') else place[1]}"
            if target in targets:
                shown = f"{sink.kind} {sink.target(loaded.path)}"
                yield loaded.problem(
                    loaded.sink_loc(stage, position), f"the stage writes to {shown} twice", "remove one"
                )
            targets.add(target)


def _topics_read(loaded: Loaded, existing_topics: frozenset[str]) -> Iterator[Problem]:
    """Yield problems of the topics that inputs and tables read: missing topics, and missing columns."""
    for stage in loaded.pipeline.stages:
        for position, source in enumerate(stage.inputs):
            if isinstance(source, TopicSource):
                loc = loaded.input_loc(stage, position, "topic")
                yield from _topic_read(loaded, source.topic, loc, existing_topics, stage)
    for name, table in loaded.pipeline.tables.items():
        if isinstance(table, TopicTable):
            loc = ("tables", name, "topic")
            yield from _topic_read(loaded, table.topic, loc, existing_topics, None)
            declared = loaded.pipeline.topics.get(table.topic)
            if declared is not None and declared.events:
                yield loaded.problem(
                    loc, f"the topic '{table.topic}' has several event types; a table can have only one"
                )


def _topic_read(
    loaded: Loaded, topic: str, loc: Loc, existing_topics: frozenset[str], reader: Stage | None
) -> Iterator[Problem]:
    pipeline = loaded.pipeline
    known = sorted(known_topics(pipeline) | existing_topics)
    if topic not in known:
        yield loaded.problem(
            loc,
            f"the topic '{topic}' is neither declared under topics nor written by a stage",
            either(nearest(topic, known), "declare it under topics"),
        )
        return
    declared = pipeline.topics.get(topic)
    sources = [s for s in writers(pipeline, topic) if s is not reader]
    if declared is None:
        if len(sources) > 1:
            yield loaded.problem(
                loc,
                f"the topic '{topic}' is written by {' and '.join(s.name for s in sources)}; their columns may differ",
                "declare it under topics with a schema",
            )
    elif declared.value == "json" and declared.schema_source is None and not declared.events and len(sources) != 1:
        why = "no stage writes it" if not sources else f"{len(sources)} stages write it"
        yield loaded.problem(
            loc,
            f"the topic '{topic}' has value: json but no schema, and {why}",
            f"add a schema to topics.{topic} (`schema: inferred` looks at the records)",
        )


def _inputs(loaded: Loaded) -> Iterator[Problem]:
    """Yield problems of inputs: their names, which are views in SQL, and conflicts with the topic's declaration."""
    for stage in loaded.pipeline.stages:
        names: set[str] = set()
        for position, source in enumerate(stage.inputs):
            loc = loaded.input_loc(stage, position)
            if source.name.lower() in names:
                yield loaded.problem(
                    loc, f"two inputs are named '{source.name}'", "give each a name of its own: `as: NAME`"
                )
            names.add(source.name.lower())
            if source.name.lower() in {name.lower() for name in loaded.pipeline.tables}:
                yield loaded.problem(
                    loc,
                    f"'{source.name}' is also the name of a table",
                    "give the input another name: `as: NAME`",
                )
            if isinstance(source, TopicSource):
                yield from _topic_input(loaded, stage, position, source)


def _topic_input(loaded: Loaded, stage: Stage, position: int, source: TopicSource) -> Iterator[Problem]:
    declared = loaded.pipeline.topics.get(source.topic)
    events = list(declared.events) if declared else []
    if source.event is not None and source.event not in events:
        what = f"the topic '{source.topic}' has no event '{source.event}'"
        hint = nearest(source.event, events) or f"declare it under topics.{source.topic}.events"
        yield loaded.problem(loaded.input_loc(stage, position, "event"), what, hint)
    if source.envelope is not None and declared is not None and declared.value not in ("json", "avro", "json_schema"):
        yield loaded.problem(
            loaded.input_loc(stage, position, "envelope"),
            f"change events are json, avro or json_schema, but the topic has value: {declared.value}",
        )
    if source.max_trigger_delay is not None and source.min_offsets_per_trigger is None:
        yield loaded.problem(
            loaded.input_loc(stage, position, "max_trigger_delay"),
            "max_trigger_delay limits the wait for min_offsets_per_trigger, which is not given",
        )


def _late(loaded: Loaded) -> Iterator[Problem]:
    """Problems of the topics for late records: stages whose late rows cannot be told, and topics of other records."""
    for stage in loaded.pipeline.stages:
        for position, source in enumerate(stage.inputs):
            if not isinstance(source, TopicSource) or source.watermark is None or source.watermark.late is None:
                continue
            loc = loaded.input_loc(stage, position, "watermark", "late")
            others = writers(loaded.pipeline, source.watermark.late)
            if others:
                what = f"the topic '{source.watermark.late}' has the rows of stage {others[0].name}"
                yield loaded.problem(loc, what, "give late records a topic of their own")
            try:
                late_rule(stage)
            except NoLateRuleError as error:
                yield loaded.problem(loc, str(error), error.hint)


def _clashes(loaded: Loaded) -> Iterator[Problem]:
    """Yield tables that share a name, and so a view, with a topic other than their own."""
    topics = {t.lower() for t in known_topics(loaded.pipeline)}
    for name, table in loaded.pipeline.tables.items():
        is_its_own = isinstance(table, TopicTable) and table.topic.lower() == name.lower()
        if name.lower() in topics and not is_its_own:
            yield loaded.problem(("tables", name), f"'{name}' is a topic and a table", "rename the table")
        if name.lower() == INPUT:
            yield loaded.problem(("tables", name), f"'{INPUT}' is the view of a stage's rows", "rename the table")


def _written_events(loaded: Loaded) -> Iterator[Problem]:
    """Yield sinks to topics with several framed event types: rows do not contain their type."""
    for stage in loaded.pipeline.stages:
        for position, sink in enumerate(stage.to):
            declared = loaded.pipeline.topics.get(sink.topic) if isinstance(sink, TopicSink) else None
            if declared is not None and declared.events and declared.value in FRAMED:
                yield loaded.problem(
                    loaded.sink_loc(stage, position, "topic"),
                    f"a stage cannot write a topic with several event types of {declared.value}: "
                    "a row does not carry its type",
                    "write each type to a topic of its own",
                )


def _registry(loaded: Loaded) -> Iterator[Problem]:
    if loaded.pipeline.registry is not None:
        return
    for name, topic in loaded.pipeline.topics.items():
        if topic.needs_registry:
            kind = topic.value if topic.value not in ("raw", "string", "json", "csv") else topic.key
            yield loaded.problem(
                ("topics", name), f"{kind} takes schemas from a registry, and the pipeline has none",
                "add `registry: {url: …}`",
            )  # fmt: skip


def _steps(loaded: Loaded, stage: Stage) -> Iterator[Problem]:
    loc = loaded.stage_loc(stage, "steps")
    if stage.steps and len(stage.inputs) > 1 and not isinstance(stage.steps[0], SqlStep | PythonStep):
        yield loaded.problem(
            (*loc, 0), "the first step of a stage with several inputs is sql or python", "join them first"
        )
    if stage.stream_steps == 0 and len(stage.inputs) > 1:
        yield loaded.problem(
            (*loc, 0, "each_batch"), "each_batch cannot be set on the step that joins the inputs", "remove it"
        )
    has_watermark = any(source.watermark for source in stage.inputs)
    for position, step in enumerate(stage.steps):
        if position > stage.stream_steps and not isinstance(step, SqlStep | PythonStep):
            yield loaded.problem(
                (*loc, position), "this step needs a stream, and follows one with each_batch", "put it before that one"
            )
            continue
        if isinstance(step, WatermarkStep):
            has_watermark = True
        elif isinstance(step, DeduplicateStep):
            if has_watermark and step.deduplicate.within is not None:
                yield loaded.problem(
                    (*loc, position, "deduplicate", "within"),
                    "within cannot be combined with a watermark, whose delay sets how long rows are remembered",
                    "remove within",
                )
            elif not has_watermark and step.deduplicate.within is None:
                yield loaded.problem(
                    (*loc, position, "deduplicate"),
                    "without a watermark, every row would be remembered forever",
                    "add within: INTERVAL",
                )
            has_watermark = True
        elif isinstance(step, StatefulStep) and step.stateful.time == "event_time" and not has_watermark:
            yield loaded.problem(
                (*loc, position, "stateful", "time"), "event_time requires a watermark", "add one to the input"
            )


def _unused(loaded: Loaded) -> Iterator[Problem]:
    """Warnings of declared topics and tables that no stage names.

    Those of included files are exempt: several pipelines may share a file.
    """
    pipeline = loaded.pipeline
    topics = {table.topic for table in pipeline.tables.values() if isinstance(table, TopicTable)}
    tables: set[str] = set()
    for stage in pipeline.stages:
        topics.update(source.topic for source in stage.topic_inputs)
        topics.update(sink.topic for sink in stage.topic_sinks)
        topics.update(side_topics(pipeline, stage))
        tables.update(tables_used(pipeline, stage))
    for name in pipeline.topics:
        if name not in topics and not loaded.is_included(("topics", name)):
            what = f"no stage reads or writes the topic '{name}'"
            guess = nearest(name, sorted(topics - set(pipeline.topics)))
            hint = either(guess if guess.startswith("did you mean") else "", "remove it, or name it in a stage")
            yield loaded.document.problem(("topics", name), what, hint, at_key=True)
    for name in pipeline.tables:
        if name not in tables and not loaded.is_included(("tables", name)):
            what = f"no stage reads the table '{name}'"
            yield loaded.document.problem(("tables", name), what, "remove it, or join it in a stage's SQL", at_key=True)


def _modes(loaded: Loaded, stage: Stage) -> Iterator[Problem]:
    if stage.mode != "complete":
        return
    for position, sink in enumerate(stage.to):
        if refused := sink.refuses_complete():
            what, hint = refused
            yield loaded.problem(
                loaded.sink_loc(stage, position),
                f"mode: complete writes all rows in each micro-batch, and {what} would hold each row many times",
                hint,
            )


def _sql(loaded: Loaded, stage: Stage, problems: list[Problem], warnings: list[Problem]) -> None:
    for position, step in enumerate(stage.transforms):
        if not isinstance(step, SqlStep):
            continue
        loc = loaded.stage_loc(stage, "sql") if stage.sql else loaded.stage_loc(stage, "steps", position, "sql")
        tables, fault = tables_named(step.sql)
        if fault:
            warnings.append(loaded.problem(loc, f"the SQL may not be valid: {fault}", "Spark decides when it runs"))
            continue
        inputs = input_views(stage, position)
        problems += _tables_read(loaded, loc, tables, inputs, all_of_them=position == 0 and len(stage.inputs) > 1)


def _tables_read(
    loaded: Loaded, loc: Loc, tables: Iterable[str], inputs: list[str], *, all_of_them: bool
) -> Iterator[Problem]:
    read = {name.lower() for name in tables}
    known = [*inputs, *loaded.pipeline.tables]
    folded = {name.lower() for name in known}
    unknown = sorted(name for name in tables if name.lower() not in folded)
    for name in unknown:
        yield loaded.problem(
            loc,
            f"the SQL reads '{name}', which is neither the stage's input nor a table",
            either(nearest(name, sorted(known)), "declare it under tables"),
        )
    if unknown:
        return
    if all_of_them:
        for name in inputs:
            if name.lower() not in read:
                yield loaded.problem(loc, f"the SQL does not read the input '{name}'", "read it, or leave it out")
    elif not read & {name.lower() for name in inputs}:
        yield loaded.problem(loc, f"the SQL does not read the stage's input `{inputs[0]}`", f"write FROM `{inputs[0]}`")


def _expressions(loaded: Loaded, stage: Stage) -> Iterator[Problem]:
    for position, expectation in enumerate(stage.expect):
        if fault := expression_fault(expectation.that):
            loc = loaded.stage_loc(stage, "expect", position, "that")
            yield loaded.problem(loc, f"the condition may not be valid SQL: {fault}")
    for position, sink in enumerate(stage.to):
        for more, expression in sink.expressions():
            if fault := expression_fault(expression):
                loc = loaded.sink_loc(stage, position, *more)
                yield loaded.problem(loc, f"{more[0]} may not be a valid SQL expression: {fault}")


def either(first: str, second: str) -> str:
    """Return the first hint, which suggests a similar name, if present; otherwise the second."""
    if first.startswith("did you mean"):
        return f"{first} Else {second}"
    return f"{second} ({first})" if first else second
