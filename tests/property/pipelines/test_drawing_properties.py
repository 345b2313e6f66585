"""Whatever the graph, no box covers another, nothing is drawn outside, and the picture does not depend on chance."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.drawing.layout import MARGIN, columns_of, lay_out

SIZES = st.tuples(st.floats(20, 400), st.floats(20, 160))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, tuple[float, float]], list[tuple[str, str]]]:
    """Sizes by node, and edges: any between two nodes, cycles included."""
    names = [f"n{number}" for number in range(draw(st.integers(1, 14)))]
    sizes = {name: draw(SIZES) for name in names}
    pairs = [(one, other) for one in names for other in names if one != other]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    return sizes, edges


@given(graphs())
def test_no_two_boxes_overlap_and_all_lie_within(
    graph: tuple[dict[str, tuple[float, float]], list[tuple[str, str]]],
) -> None:
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    assert set(layout.boxes) == set(sizes)
    for (name, box), (other, second) in combinations(layout.boxes.items(), 2):
        assert not box.overlaps(second), (name, other)
    for name, box in layout.boxes.items():
        assert (box.width, box.height) == sizes[name]
        assert box.x >= MARGIN - 0.01
        assert box.y >= MARGIN - 0.01
        assert box.x + box.width <= layout.width - MARGIN + 0.01
        assert box.y + box.height <= layout.height - MARGIN + 0.01


@given(graphs())
def test_every_edge_goes_from_its_box_to_its_box(
    graph: tuple[dict[str, tuple[float, float]], list[tuple[str, str]]],
) -> None:
    sizes, edges = graph
    layout = lay_out(sizes, edges)
    assert set(layout.paths) == set(edges)
    for (source, target), points in layout.paths.items():
        first, last = layout.boxes[source], layout.boxes[target]
        assert (
            points[0] == (first.x + first.width, first.y + first.height / 2)
            or abs(points[0][1] - first.y - first.height / 2) < 0.01
        )
        assert abs(points[-1][0] - last.x) < 0.01
        assert abs(points[-1][1] - last.y - last.height / 2) < 0.01
    assert lay_out(sizes, edges) == layout


@given(graphs())
def test_data_flow_to_the_right_unless_they_flow_in_a_circle(
    graph: tuple[dict[str, tuple[float, float]], list[tuple[str, str]]],
) -> None:
    sizes, edges = graph
    forward = [(one, other) for one, other in edges if int(one[1:]) < int(other[1:])]  # no circle among these
    columns = columns_of(list(sizes), forward)
    assert min(columns.values()) >= 0
    assert all(columns[one] < columns[other] for one, other in forward)
