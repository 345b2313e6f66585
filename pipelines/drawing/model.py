"""The graph of a pipeline as nodes and edges: sources, topics, stages, tables, sinks. Pure.

A place that one stage writes and another reads is one node. A node's `id` consists of its kind and its name, so that
the same file always yields the same graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from headwater.pipelines.definition import (
    DeltaSink,
    FilesTable,
    JdbcSink,
    JdbcSource,
    JdbcTable,
    Loaded,
    Pipeline,
    PythonSink,
    RateSource,
    Sink,
    Source,
    Stage,
    TopicTable,
)
from headwater.pipelines.definition.addresses.places import Place
from headwater.pipelines.definition.graph import (
    dead_letter_topics,
    late_topics,
    tables_used,
    topic_tables,
    topological_order,
)
from headwater.pipelines.definition.topics import Topic

Kind: TypeAlias = Literal["topic", "delta", "files", "jdbc", "rate", "function", "stage", "table"]

KIND_NAMES: dict[str, str] = {
    "topic": "topic",
    "delta": "Delta table",
    "files": "files",
    "jdbc": "database",
    "rate": "rate",
    "function": "function",
    "stage": "stage",
    "table": "table",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A source, step or target of data. `details` are short lines about the node."""

    id: str
    kind: Kind
    name: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Data flow from `source` to `target`. `is_aside` marks edges of dead letters and of tables."""

    source: str
    target: str
    label: str = ""
    is_aside: bool = False


@dataclass(slots=True)
class Graph:
    """Nodes, in the order of the file if they have one, and edges without duplicates."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def add(self, node: Node) -> str:
        """Add a node if missing; returns its id."""
        if all(node.id != other.id for other in self.nodes):
            self.nodes.append(node)
        return node.id

    def join(self, edge: Edge) -> None:
        """Add an edge, unless its nodes are already joined."""
        if all((edge.source, edge.target) != (other.source, other.target) for other in self.edges):
            self.edges.append(edge)


def graph_of(loaded: Loaded) -> Graph:
    """Return the graph of a checked pipeline."""
    pipeline = loaded.pipeline
    found = Graph(pipeline.pipeline)
    for stage in topological_order(pipeline):
        inputs = [
            (found.add(_read(loaded, stage, position, source)), source) for position, source in enumerate(stage.inputs)
        ]
        node = found.add(Node(f"stage:{stage.name}", "stage", stage.name, tuple(_stage_details(stage))))
        for place, source in inputs:
            found.join(Edge(place, node, source.alias or ""))
        for name in tables_used(pipeline, stage):
            found.join(Edge(_table(loaded, found, name), node, is_aside=True))
        for position, sink in enumerate(stage.to):
            target = found.add(_written(loaded, stage, position, sink))
            found.join(Edge(node, target, _how(stage, sink)))
        for topic in dead_letter_topics(pipeline, stage):
            if _can_have_dead_letters(pipeline, stage):
                target = found.add(_place(loaded, ("topic", topic)))
                found.join(Edge(node, target, "dead letters", is_aside=True))
        for topic in late_topics(stage):
            found.join(Edge(node, found.add(_place(loaded, ("topic", topic))), "late records", is_aside=True))
    return found


def _can_have_dead_letters(pipeline: Pipeline, stage: Stage) -> bool:
    topics = stage.topic_inputs or topic_tables(pipeline, stage)
    return bool(topics) or any(e.otherwise == "dead_letter" for e in stage.expect)


def _stage_details(stage: Stage) -> Iterator[str]:
    kinds = [next(iter(type(step).model_fields)) for step in stage.transforms]
    named = [kind if kind != "each_batch" else next(k for k in type(step).model_fields if k != "each_batch")
             for kind, step in zip(kinds, stage.transforms, strict=True)]  # fmt: skip
    if named:
        yield ", ".join(named)
    for source in stage.inputs:
        if source.watermark is not None:
            yield f"watermark {source.watermark.column}, {source.watermark.delay}"
    if stage.expect:
        yield f"expects {', '.join(e.name for e in stage.expect)}"


def _read(loaded: Loaded, stage: Stage, position: int, source: Source) -> Node:
    place = source.place
    if place is not None and not (isinstance(source, JdbcSource) and source.jdbc.named is None):
        return _place(loaded, place, str(source.jdbc) if isinstance(source, JdbcSource) else "")
    if isinstance(source, JdbcSource):  # which database it is, its URL does not tell
        return Node(f"jdbc:{stage.name}.from.{position}", "jdbc", source.table, (str(source.jdbc),))
    assert isinstance(source, RateSource), "everything else is a place"
    return Node(f"rate:{stage.name}.{position}", "rate", "rate", (f"{source.rate:,} rows/s",))


def _written(loaded: Loaded, stage: Stage, position: int, sink: Sink) -> Node:
    place = sink.place
    if place is not None and not (isinstance(sink, JdbcSink) and sink.jdbc.named is None):
        return _place(loaded, place, str(sink.jdbc) if isinstance(sink, JdbcSink) else "")
    if isinstance(sink, JdbcSink):
        return Node(f"jdbc:{stage.name}.to.{position}", "jdbc", sink.table, (str(sink.jdbc),))
    assert isinstance(sink, PythonSink), "everything else is a place"
    return Node(f"function:{stage.name}.{position}", "function", sink.python.function, (sink.python.file,))


def _place(loaded: Loaded, place: Place, address: str = "") -> Node:
    """Return the node of a place; `address` is a database's redacted URL."""
    kind, name = place
    if kind == "topic":
        return Node(f"topic:{name}", "topic", name, tuple(_topic_details(loaded.pipeline.topics.get(name))))
    if kind == "jdbc":
        return Node(f"jdbc:{name}", "jdbc", name.partition(" ")[2], (address,))
    last = name.rstrip("/").rpartition("/")[2] or name
    assert kind in ("delta", "files")
    return Node(f"{kind}:{name}", "delta" if kind == "delta" else "files", last, (name,) if name != last else ())


def _topic_details(declared: Topic | None) -> Iterator[str]:
    if declared is not None:
        yield f"{declared.value}, {declared.partitions} partition{'s' if declared.partitions > 1 else ''}"


def _table(loaded: Loaded, found: Graph, name: str) -> str:
    """Return a table's node; for a topic or a Delta table, an edge leads from the place to the node."""
    table = loaded.pipeline.tables[name]
    place = table.place
    detail = ""
    if isinstance(table, FilesTable):
        detail = f"{table.format} {table.path}"
    elif isinstance(table, TopicTable):
        detail = f"latest of {table.topic}"
    elif isinstance(table, JdbcTable):
        detail = table.table or "query"
    node = found.add(Node(f"table:{name}", "table", name, (detail,) if detail else ()))
    if place is not None and place[0] in ("topic", "delta"):
        found.join(Edge(found.add(_place(loaded, place)), node, is_aside=True))
    return node


def _how(stage: Stage, sink: Sink) -> str:
    how: str = "" if stage.mode == "append" else stage.mode
    if isinstance(sink, DeltaSink) and sink.merge is not None:
        how = "merge" if sink.merge.scd == 1 else "history"
    return ", ".join([*([how] if how else []), *([f"when {sink.when}"] if sink.when is not None else [])])
