"""Micro-batches of history against random files: each offset once, in order, whatever the files."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.seam.history_batches import FileBounds, first_offset, history_ends

Row = tuple[int, int, int]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[Row]], dict[int, int]]:
    """Files of rows (partition, offset, timestamp), in any grouping, with gaps; and the seams."""
    rows: list[Row] = []
    seams = {}
    for partition in range(draw(st.integers(1, 3))):
        seams[partition] = draw(st.integers(0, 30))
        kept = draw(st.sets(st.integers(0, 29), max_size=30))
        rows += [(partition, offset, offset) for offset in sorted(kept) if offset < seams[partition]]
    files: list[list[Row]] = [[] for _ in range(draw(st.integers(1, 6)))]
    for row in rows:
        files[draw(st.integers(0, len(files) - 1))].append(row)
    return [each for each in files if each], seams


def bounds_of(rows: list[Row], *, known: bool) -> FileBounds:
    if not known:
        return FileBounds(*[(-math.inf, math.inf)] * 3)
    partitions, offsets, times = zip(*rows, strict=True)
    return FileBounds(*[(min(each), max(each)) for each in (partitions, offsets, times)])


@given(tables(), st.integers(1, 40), st.data())
def test_batches_have_each_row_once_and_reach_the_seams(
    table: tuple[list[list[Row]], dict[int, int]], most: int, data: st.DataObject
) -> None:
    files, seams = table
    bounds = [bounds_of(each, known=data.draw(st.booleans())) for each in files]
    known = {key: first_offset(bounds, key, seam) for key, seam in seams.items()}
    read: list[Row] = []
    while any(known[key] < seam for key, seam in seams.items()):
        ends = history_ends(bounds, known, seams, most)
        assert ends != known
        assert all(known[key] <= ends[key] <= seams[key] for key in seams)
        read += sorted(row for rows in files for row in rows if known[row[0]] <= row[1] < ends[row[0]])
        known = ends
    assert sorted(read) == sorted(row for rows in files for row in rows)
    for partition in seams:
        offsets = [row[1] for row in read if row[0] == partition]
        assert offsets == sorted(set(offsets))


def file(partition: int, first: int, last: int, low_ms: int, high_ms: int) -> FileBounds:
    return FileBounds((partition, partition), (first, last), (low_ms, high_ms))


def test_a_batch_ends_where_a_file_does() -> None:
    files = [file(0, 0, 9, 0, 9), file(0, 10, 14, 10, 14), file(0, 15, 19, 15, 19)]
    assert history_ends(files, {0: 0}, {0: 20}, 1) == {0: 10}
    assert history_ends(files, {0: 3}, {0: 20}, 1) == {0: 10}
    assert history_ends(files, {0: 0}, {0: 20}, 12) == {0: 15}


def test_a_partition_waits_until_the_others_have_come_to_its_time() -> None:
    files = [file(0, 0, 9, 0, 100), file(0, 10, 19, 100, 200), file(1, 0, 4, 150, 180)]
    assert history_ends(files, {0: 0, 1: 0}, {0: 20, 1: 5}, 1) == {0: 10, 1: 0}
    assert history_ends(files, {0: 10, 1: 0}, {0: 20, 1: 5}, 1) == {0: 20, 1: 5}


def test_a_gap_at_the_end_is_passed_over() -> None:
    assert history_ends([file(0, 0, 9, 0, 9)], {0: 10}, {0: 50}, 1) == {0: 50}


def test_history_begins_at_the_first_row_that_a_file_may_hold() -> None:
    assert first_offset([file(0, 7, 9, 0, 9)], 0, 10) == 7
    assert first_offset([file(0, 7, 9, 0, 9)], 1, 10) == 10
    assert first_offset([FileBounds((0, 0), (-math.inf, math.inf), (0, 0))], 0, 10) == 0
