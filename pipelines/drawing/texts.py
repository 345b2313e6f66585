"""A graph as text for other programs: Mermaid and Graphviz's DOT. Pure."""

from __future__ import annotations

import re
from typing import Final

from headwater.pipelines.drawing.model import KIND_NAMES, Graph, Node

# Mermaid's shapes: brackets of nodes, arrows of edges.
_SHAPES: Final = {
    "stage": ('("', '")'),
    "topic": ('[["', '"]]'),
    "delta": ('[("', '")]'),
    "jdbc": ('[("', '")]'),
    "files": ('[/"', '"/]'),
    "table": ('["', '"]'),
    "rate": ('(["', '"])'),
    "function": ('{{"', '"}}'),
}
_DOT_SHAPES: Final = {
    "stage": 'box, style="rounded,filled", fillcolor="#fff8c5"',
    "topic": 'box, style=filled, fillcolor="#ddf4ff"',
    "delta": 'cylinder, style=filled, fillcolor="#dafbe1"',
    "jdbc": 'cylinder, style=filled, fillcolor="#dafbe1"',
    "files": 'folder, style=filled, fillcolor="#dafbe1"',
    "table": "box",
    "rate": "ellipse",
    "function": "hexagon",
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def as_mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart.

    >>> print(as_mermaid(Graph("p", [Node("topic:a", "topic", "a")])), end="")
    flowchart LR
      n0[["topic<br>a"]]
    """
    numbers = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        before, behind = _SHAPES[node.kind]
        lines.append(f"  {numbers[node.id]}{before}{'<br>'.join(map(_mermaid, _said(node)))}{behind}")
    for edge in graph.edges:
        arrow = "-.->" if edge.is_aside else "-->"
        label = f'|"{_mermaid(edge.label)}"|' if edge.label else ""
        lines.append(f"  {numbers[edge.source]} {arrow}{label} {numbers[edge.target]}")
    return "\n".join(lines) + "\n"


def as_dot(graph: Graph) -> str:
    """Return the graph as a Graphviz digraph."""
    numbers = {node.id: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = [f"digraph {_dot([graph.name])} {{", "  rankdir=LR;", '  node [fontname="sans-serif", fontsize=11];']
    lines += [f"  {numbers[n.id]} [label={_dot(_said(n))}, shape={_DOT_SHAPES[n.kind]}];" for n in graph.nodes]
    for edge in graph.edges:
        style = [f"label={_dot([edge.label])}"] if edge.label else []
        style += ["style=dashed"] if edge.is_aside else []
        how = f" [{', '.join(style)}]" if style else ""
        lines.append(f"  {numbers[edge.source]} -> {numbers[edge.target]}{how};")
    return "\n".join([*lines, "}"]) + "\n"


def _said(node: Node) -> list[str]:
    return [KIND_NAMES[node.kind], node.name, *node.details]


def _mermaid(text: str) -> str:
    """Return a text for quotes, with Mermaid's own entities for characters that are special in Mermaid or HTML."""
    return re.sub(r"[^\w\s.,;:/=+*()%@!?-]", lambda found: f"#{ord(found[0])};", _CONTROL.sub(" ", text))


def _dot(lines: list[str]) -> str:
    escaped = (_CONTROL.sub(" ", line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
