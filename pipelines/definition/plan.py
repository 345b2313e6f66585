"""The plan of a run: each stage's inputs, sinks and checkpoint. Pure; a dry run ends here.

A plan holds no secrets: URLs and options are shown with the file's references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headwater.pipelines.definition import (
    INFERRED,
    DeduplicateStep,
    Loaded,
    Pipeline,
    PythonFunction,
    PythonStep,
    SqlStep,
    Stage,
    StatefulStep,
    Step,
    Topic,
    TopicTable,
    WatermarkStep,
)
from headwater.pipelines.definition.graph import (
    dead_letter_topics,
    side_topics,
    table_upstream,
    tables_used,
    topological_order,
    upstream,
    writers,
)
from headwater.pipelines.definition.plan_entries import InputPlan, SinkPlan

AT_LEAST_ONCE = (
    "topics with the guarantee at_least_once: after a crash the records of one micro-batch may stand there twice"
)
READ_COMMITTED = (
    "a micro-batch appears in all its topics at once; readers of theirs need isolation.level=read_committed, or they "
    "may see what is aborted afterwards"
)
TOPIC_NOTES = {"exactly_once": READ_COMMITTED, "at_least_once": AT_LEAST_ONCE}
LAST_WINDOWS = (
    "an available-now run leaves the last windows open: "
    "they are written once rows that are later by more than the watermark's delay arrive"
)
CALLED_AGAIN = "a function that is a sink may be called again with the same batch after a crash"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that the run needs. `partitions` is None for a topic that must already exist.

    A topic with `when_needed` receives dead letters or late records, and is created with the first of them.
    """

    name: str
    partitions: int | None
    value: str
    columns: str
    configs: Mapping[str, str]
    replication_factor: int | None = None
    when_needed: bool = False


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage as one streaming query. `checkpoint` is relative to the state folder."""

    name: str
    reads: tuple[InputPlan, ...]
    transform: str
    tables: tuple[str, ...]
    expectations: tuple[str, ...]
    mode: str
    writes: tuple[SinkPlan, ...]
    dead_letters: tuple[str, ...]
    after: tuple[str, ...]
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline's stages in the execution order of an available-now run."""

    pipeline: str
    file: str
    environment: str
    topics: tuple[TopicPlan, ...]
    stages: tuple[StagePlan, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def checkpoint_folder(pipeline: str, stage: str) -> str:
    """Return a stage's checkpoint folder, relative to the state folder.

    >>> checkpoint_folder("flights", "clean")
    'flights/clean/checkpoint'
    """
    return f"{pipeline}/{stage}/checkpoint"


def topics_of(pipeline: Pipeline) -> dict[str, Topic]:
    """Return every topic that the run needs, with its effective declaration.

    An undeclared sink topic gets as many partitions as the stage's first topic, and JSON values; an undeclared topic of
    dead letters or late records gets one partition and raw values. Other undeclared sources are omitted: they must
    already exist.
    """
    topics = dict(pipeline.topics)
    for stage in topological_order(pipeline):
        source = topics.get(stage.topic_inputs[0].topic) if stage.topic_inputs else None
        for sink in stage.topic_sinks:
            if sink.topic not in topics:
                topics[sink.topic] = Topic(partitions=source.partitions if source else 1, value="json")
    for stage in pipeline.stages:
        for name in side_topics(pipeline, stage):
            topics.setdefault(name, Topic(partitions=1, value="raw"))
    return topics


def made_when_needed(pipeline: Pipeline) -> frozenset[str]:
    """Return the topics only of dead letters and late records, which the pipeline neither reads nor declares."""
    written = {sink.topic for stage in pipeline.stages for sink in stage.topic_sinks}
    letters = {name for stage in pipeline.stages for name in side_topics(pipeline, stage)}
    return frozenset(letters - pipeline.topics.keys() - written - topics_read(pipeline))


def make_plan(loaded: Loaded) -> Plan:
    """Plan a checked pipeline."""
    pipeline = loaded.pipeline
    topics = topics_of(pipeline)
    order = topological_order(pipeline)
    letters = made_when_needed(pipeline)
    needed = [
        TopicPlan(n, t.partitions, t.value, _columns(pipeline, n, t), _configs(t), t.replication_factor, n in letters)
        for n, t in topics.items()
    ]
    needed += [
        TopicPlan(name, None, "raw", "key and value as bytes", {})
        for name in sorted(topics_read(pipeline) - topics.keys())
    ]
    return Plan(
        pipeline.pipeline,
        loaded.document.file,
        loaded.environment,
        tuple(needed),
        tuple(_stage(loaded, stage) for stage in order),
        _notes(order),
    )


def _notes(stages: list[Stage]) -> tuple[str, ...]:
    sinks = [sink for stage in stages for sink in stage.to]
    guarantees = {sink.guarantee for stage in stages for sink in stage.topic_sinks}
    return (
        *(text for guarantee, text in TOPIC_NOTES.items() if guarantee in guarantees),
        *([CALLED_AGAIN] if any(sink.kind == "python" for sink in sinks) else []),
        *([LAST_WINDOWS] if any(stage.has_watermark and stage.mode == "append" for stage in stages) else []),
    )


def topics_read(pipeline: Pipeline) -> set[str]:
    """Return the topics that inputs and tables read."""
    inputs = {source.topic for stage in pipeline.stages for source in stage.topic_inputs}
    return inputs | {table.topic for table in pipeline.tables.values() if isinstance(table, TopicTable)}


def _configs(topic: Topic) -> dict[str, str]:
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in topic.configs.items()}


def _columns(pipeline: Pipeline, name: str, topic: Topic) -> str:
    if topic.value == "raw":
        return "key and value as bytes"
    if topic.value == "string":
        return "value as text"
    if topic.events:
        return f"events {', '.join(topic.events)}"
    if topic.schema_source is not None:
        return "found in its records" if topic.schema_source == INFERRED else topic.schema_source
    sources = writers(pipeline, name)
    if len(sources) == 1:
        return f"those of stage {sources[0].name}"
    return "those of the registry" if topic.needs_registry else topic.value.upper()


def _stage(loaded: Loaded, stage: Stage) -> StagePlan:
    pipeline = loaded.pipeline
    return StagePlan(
        name=stage.name,
        reads=tuple(source.planned(loaded.path, has_watermark=stage.has_watermark) for source in stage.inputs),
        transform=", ".join(_step(step) for step in stage.transforms) or "none",
        tables=tables_used(pipeline, stage),
        expectations=tuple(f"{e.name}: {e.that} else {e.otherwise}" for e in stage.expect),
        mode=stage.mode,
        writes=tuple(sink.planned(loaded.path, is_complete=stage.mode == "complete") for sink in stage.to),
        dead_letters=dead_letter_topics(pipeline, stage),
        after=tuple(s.name for s in [*upstream(pipeline, stage), *table_upstream(pipeline, stage)] if s is not stage),
        checkpoint=checkpoint_folder(pipeline.pipeline, stage.name),
    )


def _step(step: Step) -> str:
    if isinstance(step, SqlStep):
        return "sql"
    if isinstance(step, PythonStep):
        return _function(step.python)
    if isinstance(step, WatermarkStep):
        return f"watermark {step.watermark.column}, {step.watermark.delay}"
    if isinstance(step, DeduplicateStep):
        within = f" within {step.deduplicate.within}" if step.deduplicate.within else ""
        return f"deduplicate by {', '.join(step.deduplicate.by)}{within}"
    assert isinstance(step, StatefulStep)
    return f"stateful {step.stateful.file}:{step.stateful.processor} by {', '.join(step.stateful.by)}"


def _function(function: PythonFunction) -> str:
    return f"python {function.file}:{function.function}"
