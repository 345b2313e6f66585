"""Pictures of pipelines: well-formed, complete, the same each time, whatever stands in the names."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.cli.demo.files import conf_file
from headwater.cli.main import main
from headwater.pipelines.definition import Loaded
from headwater.pipelines.drawing.model import Edge, Graph, Node, graph_of
from headwater.pipelines.drawing.svg import as_svg
from headwater.pipelines.drawing.texts import as_dot, as_mermaid
from headwater.pipelines.validation.pipeline_file import load

SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = sorted(Path(conf_file("pipelines", "flights.yaml")).parent.glob("*.yaml"))


def drawn(text: str) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """The nodes and edges of an SVG."""
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    nodes = Counter(g.attrib["data-id"] for g in root.iter(f"{SVG}g"))
    edges = Counter(
        (p.attrib["data-source"], p.attrib["data-target"]) for p in root.iter(f"{SVG}path") if "data-source" in p.attrib
    )
    return nodes, edges


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_every_node_and_every_edge_stands_in_the_picture_once(path: Path) -> None:
    graph = graph_of(load(str(path), environ={}))
    nodes, edges = drawn(as_svg(graph))
    assert nodes == Counter(node.id for node in graph.nodes)
    assert edges == Counter((edge.source, edge.target) for edge in graph.edges)
    assert set(nodes.values()) == set(edges.values()) == {1}
    assert as_svg(graph) == as_svg(graph_of(load(str(path), environ={})))


def test_the_graph_of_the_flights() -> None:
    graph = graph_of(load(conf_file("pipelines", "flights.yaml"), environ={}))
    assert [node.id for node in graph.nodes] == [
        "topic:flights", "stage:clean", "topic:flights_clean", "delta:lake/flights", "topic:flights.dead_letters",
        "stage:delays", "table:airlines", "table:airports", "topic:delays", "topic:flights_clean.dead_letters",
        "stage:rising", "topic:rising",
    ]  # fmt: skip
    assert {(e.source, e.target) for e in graph.edges if not e.is_aside} == {
        ("topic:flights", "stage:clean"), ("stage:clean", "topic:flights_clean"), ("stage:clean", "delta:lake/flights"),
        ("topic:flights_clean", "stage:delays"), ("stage:delays", "topic:delays"),
        ("topic:flights_clean", "stage:rising"), ("stage:rising", "topic:rising"),
    }  # fmt: skip


def test_a_topics_table_stands_behind_the_topic() -> None:
    graph = graph_of(load(conf_file("pipelines", "cdc.yaml"), environ={}))
    edges = {(edge.source, edge.target): edge for edge in graph.edges}
    assert edges["topic:customers", "table:customer"].is_aside
    assert ("table:customer", "stage:orders") in edges
    assert edges["stage:customers", "delta:lake/customers_history"].label == "history"


HOSTILE = 'a<b>&"quoted" \x00\x1b ]]> #x; |pipe| \\ n' + "w" * 60


def hostile() -> Graph:
    graph = Graph(HOSTILE)
    first = graph.add(Node("topic:1", "topic", HOSTILE, (HOSTILE,)))
    second = graph.add(Node("stage:1", "stage", HOSTILE))
    graph.join(Edge(first, second, HOSTILE))
    return graph


def test_whatever_a_name_holds_the_picture_is_well_formed() -> None:
    nodes, edges = drawn(as_svg(hostile()))
    assert (sum(nodes.values()), sum(edges.values())) == (2, 1)


def test_labels_of_mermaid_and_dot_cannot_end_early() -> None:
    lines = as_mermaid(hostile()).splitlines()
    assert lines[0] == "flowchart LR"
    assert len(lines) == 4
    for line in lines[1:]:
        assert line.count('"') == 2, line
        inner = line.split('"')[1]
        assert not set(inner.replace("<br>", "")) & set('<>"|[]{}`\\\x00\x1b'), inner
    dot = as_dot(hostile())
    assert re.sub(r"\\.", "", dot).count('"') % 2 == 0
    assert "\x00" not in dot


def test_mermaid_is_what_it_was() -> None:
    graph = Graph(
        "p",
        [
            Node("topic:a", "topic", "a", ("json, 1 partition",)),
            Node("stage:s", "stage", "s"),
            Node("table:t", "table", "t"),
        ],
    )
    graph.join(Edge("topic:a", "stage:s", "orders"))
    graph.join(Edge("table:t", "stage:s", is_aside=True))
    assert as_mermaid(graph).splitlines() == [
        "flowchart LR",
        '  n0[["topic<br>a<br>json, 1 partition"]]',
        '  n1("stage<br>s")',
        '  n2["table<br>t"]',
        '  n0 -->|"orders"| n1',
        "  n2 -.-> n1",
    ]


def test_no_secret_is_drawn(load: Callable[..., Loaded]) -> None:
    text = (
        "pipeline: p\nstages:\n  - name: s\n"
        '    from: {jdbc: "jdbc:postgresql://u:${env:PW}@db/shop", table: t, increment: id}\n'
        "    to: {python: {file: f.py, function: send}}\n"
    )
    loaded = load(text, environ={"PW": "hunter2"})
    for draw in (as_svg, as_mermaid, as_dot):
        assert "hunter2" not in draw(graph_of(loaded))


def test_the_condition_of_a_sink_is_the_label_of_its_arrow(load: Callable[..., Loaded]) -> None:
    text = (
        "pipeline: p\ntopics: {a: {value: string}}\nstages:\n  - name: s\n    from: {topic: a}\n"
        "    mode: update\n"
        "    to: [{topic: b, when: value > 'x'}, {delta: c, merge: {keys: value}, when: value < 'x'}, {topic: d}]\n"
    )
    labels = {edge.target: edge.label for edge in graph_of(load(text)).edges if edge.source == "stage:s"}
    assert labels["topic:b"] == "update, when value > 'x'"
    assert labels["delta:c"] == "merge, when value < 'x'"
    assert labels["topic:d"] == "update"


def test_the_command_writes_what_the_files_name_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conf_file("pipelines", "activity.yaml")
    assert main(["pipeline", "graph", file, "--output", str(tmp_path / "a.mmd")]) == 0
    assert (tmp_path / "a.mmd").read_text().startswith("flowchart LR\n")
    assert main(["pipeline", "graph", file]) == 0
    assert drawn(capsys.readouterr().out)[0]["stage:sessions"] == 1
    assert main(["pipeline", "graph", file, "-o", "dot"]) == 0
    assert capsys.readouterr().out.startswith('digraph "activity" {')
    assert main(["pipeline", "graph", file, "--output", str(tmp_path / "none" / "a.svg")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert main(["pipeline", "graph", str(tmp_path / "none.yaml")]) == 2


def test_a_graph_is_plain_data() -> None:
    graph = graph_of(load(conf_file("pipelines", "metrics.yaml"), environ={}))
    assert json.dumps([node.id for node in graph.nodes])


def test_databases_that_are_not_told_apart_are_nodes_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "pipeline: p\ntopics: {u: {value: string}}\nstages:\n  - name: s\n"
        "    from: {jdbc: 'jdbc:unknown:a', table: t, increment: id}\n"
        "    to: [{jdbc: 'jdbc:unknown:b', table: t}, {jdbc: 'jdbc:unknown:c', table: t}]\n"
    )
    nodes = [node for node in graph_of(load(str(path), environ={})).nodes if node.kind == "jdbc"]
    assert [(node.name, node.details) for node in nodes] == [("t", ("jdbc:unknown:***",))] * 3
    assert len({node.id for node in nodes}) == 3
