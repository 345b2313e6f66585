"""What a run will do: what each stage reads and writes, where it keeps its place. Pure; a dry run ends here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.graph import dead_letter_topic, known_topics, tables_named, topological_order, writers
from pipelines.spec import DeltaSink, Loaded, Pipeline, Stage, Topic, TopicSink

# A batch is persisted while it is written; half a million records of 1 KiB are 500 MiB, mostly on disk by then.
MAX_OFFSETS_PER_TRIGGER = 500_000

AT_LEAST_ONCE = (
    "topics are written at least once: after a crash the records of one micro-batch may stand twice; "
    "Delta tables are written exactly once"
)
LAST_WINDOWS = (
    "an available-now run leaves the last windows open: "
    "they are written once rows that are later by more than the watermark's delay arrive"
)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic the run needs. `partitions` is None for one that must exist already."""

    name: str
    partitions: int | None
    value: str
    columns: str
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """A place where rows go. `kind` is topic or delta; `guarantee` is at-least-once or exactly-once."""

    kind: str
    target: str
    key: str | None
    partition_by: tuple[str, ...]
    guarantee: str


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage as one streaming query. `checkpoint` is relative to the state folder."""

    name: str
    reads: str
    starting_offsets: str
    max_offsets_per_trigger: int | None
    watermark: str | None
    transform: str
    tables: tuple[str, ...]
    expectations: tuple[str, ...]
    writes: tuple[SinkPlan, ...]
    dead_letters: str
    after: tuple[str, ...]
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline's stages in the order in which an available-now run executes them."""

    pipeline: str
    file: str
    topics: tuple[TopicPlan, ...]
    stages: tuple[StagePlan, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def max_offsets_per_trigger(stage: Stage) -> int | None:
    """Most records of one micro-batch; None reads the whole backlog at once.

    A stage with a watermark reads its backlog at once unless the file says otherwise: the watermark moves between
    micro-batches, and partitions whose keys have unlike rates do not reach one event time together, so that a limit
    makes rows of the slower ones late. Aggregations hold state, not rows, hence such a batch needs no more memory.
    """
    if stage.source.max_offsets_per_trigger is not None:
        return stage.source.max_offsets_per_trigger
    return None if stage.source.watermark else MAX_OFFSETS_PER_TRIGGER


def checkpoint_folder(pipeline: str, stage: str) -> str:
    """Where a stage keeps its place, relative to the state folder.

    >>> checkpoint_folder("flights", "clean")
    'flights/clean/checkpoint'
    """
    return f"{pipeline}/{stage}/checkpoint"


def topics_of(pipeline: Pipeline) -> dict[str, Topic]:
    """Every topic the run needs, with the declaration that holds for it.

    A sink's topic that is not declared gets as many partitions as the stage's source and JSON values; a dead-letter
    topic gets one partition and raw values. A source that is neither is not listed: it exists already.
    """
    topics = dict(pipeline.topics)
    for stage in topological_order(pipeline):
        source = topics.get(stage.source.topic)
        for sink in stage.to:
            if isinstance(sink, TopicSink) and sink.topic not in topics:
                topics[sink.topic] = Topic(partitions=source.partitions if source else 1, value="json")
    for stage in pipeline.stages:
        topics.setdefault(dead_letter_topic(stage.source.topic), Topic(partitions=1, value="raw"))
    return topics


def make_plan(loaded: Loaded) -> Plan:
    """Plan a checked pipeline."""
    pipeline = loaded.pipeline
    topics = topics_of(pipeline)
    order = topological_order(pipeline)
    needed = [TopicPlan(n, t.partitions, t.value, _columns(pipeline, n, t), _configs(t)) for n, t in topics.items()]
    external = sorted({s.source.topic for s in order} - topics.keys())
    needed += [TopicPlan(name, None, "raw", "key and value as bytes", {}) for name in external]
    notes = [AT_LEAST_ONCE] if any(isinstance(t, TopicSink) for s in order for t in s.to) else []
    if any(s.source.watermark for s in order):
        notes.append(LAST_WINDOWS)
    return Plan(
        pipeline.pipeline,
        loaded.document.file,
        tuple(needed),
        tuple(_stage(loaded, stage) for stage in order),
        tuple(notes),
    )


def _configs(topic: Topic) -> dict[str, str]:
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in topic.configs.items()}


def _columns(pipeline: Pipeline, name: str, topic: Topic) -> str:
    if topic.value == "raw":
        return "key and value as bytes"
    if topic.value == "string":
        return "value as text"
    if topic.schema_file:
        return topic.schema_file
    sources = writers(pipeline, name)
    return f"those of stage {sources[0].name}" if len(sources) == 1 else "JSON"


def _stage(loaded: Loaded, stage: Stage) -> StagePlan:
    pipeline = loaded.pipeline
    watermark = stage.source.watermark
    if stage.python:
        transform = f"python {stage.python.file}:{stage.python.function}"
    else:
        transform = "sql" if stage.sql else "none"
    return StagePlan(
        name=stage.name,
        reads=stage.source.topic,
        starting_offsets=stage.source.starting_offsets,
        max_offsets_per_trigger=max_offsets_per_trigger(stage),
        watermark=f"{watermark.column}, {watermark.delay}" if watermark else None,
        transform=transform,
        tables=tables_used(pipeline, stage),
        expectations=tuple(f"{e.name}: {e.that} else {e.otherwise}" for e in stage.expect),
        writes=tuple(
            SinkPlan("delta", loaded.path(t.delta), None, t.partition_by, "exactly-once")
            if isinstance(t, DeltaSink)
            else SinkPlan("topic", t.topic, t.key, (), "at-least-once")
            for t in stage.to
        ),
        dead_letters=dead_letter_topic(stage.source.topic),
        after=tuple(s.name for s in writers(pipeline, stage.source.topic)),
        checkpoint=checkpoint_folder(pipeline.pipeline, stage.name),
    )


def tables_used(pipeline: Pipeline, stage: Stage) -> tuple[str, ...]:
    """The static tables that a stage's SQL names; all of them if it has none or sqlglot cannot tell."""
    named, fault = tables_named(stage.sql) if stage.sql else (frozenset(), "no SQL")
    folded = {name.lower() for name in named}
    return tuple(table for table in pipeline.tables if fault or table.lower() in folded)


def unknown_topics(pipeline: Pipeline) -> frozenset[str]:
    """Source topics that only the broker can know."""
    return frozenset(s.source.topic for s in pipeline.stages) - known_topics(pipeline)
