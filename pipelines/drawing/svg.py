"""A graph as SVG: one picture, readable on light and dark backgrounds, without scripts or embedded fonts. Pure.

Each node is a `<g class="node …" data-id=…>`, each edge a `<path class="edge" data-source=… data-target=…>`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from headwater.pipelines.drawing.layout import Box, lay_out
from headwater.pipelines.drawing.model import KIND_NAMES, Edge, Graph, Node

_CHARACTER_WIDTH: Final = 7.4  # of the name's font, a little more than browsers need
_SMALL_WIDTH: Final = 6.2
_PADDING: Final = 12.0
_WIDTH_MIN: Final = 96.0
_CHARACTERS_MAX: Final = 42  # of a line; the node's title shows the full text
_KIND_BASELINE, _NAME_BASELINE, _DETAIL_BASELINE, _LINE = 17.0, 35.0, 52.0, 15.0
_HEIGHT: Final = 46.0  # without details

_STYLE: Final = """
svg { color-scheme: light dark; font-family: system-ui, sans-serif; --ground: #ffffff; --ink: #1b1f24;
  --faint: #57606a; --line: #8c959f; --topic: #ddf4ff; --stage: #fff8c5; --store: #dafbe1; --aside: #f6f8fa; }
@media (prefers-color-scheme: dark) { svg { --ground: #0d1117; --ink: #e6edf3; --faint: #9da7b3; --line: #6e7681;
  --topic: #0c2d4d; --stage: #3b2e04; --store: #0f3321; --aside: #161b22; } }
.ground { fill: var(--ground); }
.node rect { stroke: var(--line); fill: var(--aside); }
.topic rect { fill: var(--topic); }
.stage rect { fill: var(--stage); }
.delta rect, .files rect, .jdbc rect { fill: var(--store); }
.kind, .detail, .label { fill: var(--faint); font-size: 11px; }
.name { fill: var(--ink); font-size: 13px; font-weight: 600; }
.edge { fill: none; stroke: var(--line); stroke-width: 1.4; marker-end: url(#arrow); }
.aside { stroke-dasharray: 4 4; }
#arrow path { fill: var(--line); }
"""

_ARROW: Final = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z"/></marker></defs>'
)

# Characters that XML 1.0 cannot contain, even escaped.
_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_svg(graph: Graph) -> str:
    """Return the graph as an SVG document."""
    sizes = {node.id: _size(node) for node in graph.nodes}
    layout = lay_out(sizes, [(edge.source, edge.target) for edge in graph.edges])
    width, height = layout.width, layout.height
    size = f'width="{width:.0f}" height="{height:.0f}"'
    label = _attribute(f"pipeline {graph.name}")
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label={label}'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>',
        f"<title>{_text(f'pipeline {graph.name}')}</title>",
        f"<style>{_STYLE}</style>",
        _ARROW,
        f'<rect class="ground" {size}/>',
    ]
    parts += [_edge(edge, layout.paths[edge.source, edge.target]) for edge in graph.edges]
    parts += [_node(node, layout.boxes[node.id]) for node in graph.nodes]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _size(node: Node) -> tuple[float, float]:
    longest = max([len(_cut(detail)) * _SMALL_WIDTH for detail in node.details], default=0.0)
    wide = max(longest, len(_cut(node.name)) * _CHARACTER_WIDTH, len(KIND_NAMES[node.kind]) * _SMALL_WIDTH)
    details = _DETAIL_BASELINE - _NAME_BASELINE + _LINE * (len(node.details) - 1) if node.details else 0.0
    return max(_WIDTH_MIN, wide + 2 * _PADDING), _HEIGHT + details


def _node(node: Node, box: Box) -> str:
    x = box.x + _PADDING
    radius = 12 if node.kind == "stage" else 3
    lines = [
        f'<g class="node {node.kind}" data-id={_attribute(node.id)}>',
        f"<title>{_text(' · '.join([KIND_NAMES[node.kind], node.name, *node.details]))}</title>",
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="{radius}"/>',
        f'<text class="kind" x="{x:.1f}" y="{box.y + _KIND_BASELINE:.1f}">{KIND_NAMES[node.kind]}</text>',
        f'<text class="name" x="{x:.1f}" y="{box.y + _NAME_BASELINE:.1f}">{_text(_cut(node.name))}</text>',
    ]
    for number, detail in enumerate(node.details):
        y = box.y + _DETAIL_BASELINE + number * _LINE
        lines.append(f'<text class="detail" x="{x:.1f}" y="{y:.1f}">{_text(_cut(detail))}</text>')
    return "\n".join([*lines, "</g>"])


def _edge(edge: Edge, points: Sequence[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (x + to_x) / 2
        path += f"C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"
    kind = "edge aside" if edge.is_aside else "edge"
    ends = f"data-source={_attribute(edge.source)} data-target={_attribute(edge.target)}"
    drawn = f'<path class="{kind}" {ends} d="{path}"/>'
    if not edge.label:
        return drawn
    (x, y), (to_x, to_y) = points[0], points[1]
    place = f'x="{(x + to_x) / 2:.1f}" y="{(y + to_y) / 2 - 5:.1f}"'
    return f'{drawn}\n<text class="label" text-anchor="middle" {place}>{_text(_cut(edge.label))}</text>'


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS_MAX else text[: _CHARACTERS_MAX - 1] + "…"


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", text))
