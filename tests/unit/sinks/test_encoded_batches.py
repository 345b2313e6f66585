from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.sinks.exactly_once.encoded_batches import (
    HANDED_OVER_BYTES,
    HANDED_OVER_ROWS,
    EncodedReader,
    EncodedWriter,
)

BATCHES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 1000), st.binary(max_size=300).map(bytearray)))


def written(batches: list[tuple[int, int, bytearray]], folder: str | None, task: int = 3) -> list[pa.RecordBatch]:
    rows: list[pa.RecordBatch] = []
    with EncodedWriter(task, 10, folder) as out:
        for batch in batches:
            out.add(*batch)
            if out.is_full:
                rows += out.take()
        rows += out.take()
    return rows


@pytest.mark.parametrize("is_in_files", [True, False], ids=["in files", "in rows"])
@given(batches=BATCHES)
def test_batches_come_back_as_they_were_encoded(
    tmp_path_factory: pytest.TempPathFactory, is_in_files: bool, batches: list[tuple[int, int, bytearray]]
) -> None:
    rows = written(batches, str(tmp_path_factory.mktemp("encoded")) if is_in_files else None)
    with EncodedReader() as reader:
        found = [(one.target, one.records, one.data) for row in rows for one in reader.batches(row)]
    assert found == [(10 + partition, records, data) for partition, records, data in batches]
    numbers = [number for row in rows for number in row["number"].to_pylist()]
    assert numbers == list(range(len(batches)))
    assert {task for row in rows for task in row["task"].to_pylist()} <= {3}


def test_rows_are_handed_over_before_they_are_many_or_large(tmp_path: Path) -> None:
    large = [(0, 1, bytearray(HANDED_OVER_BYTES // 2))] * 5
    assert [row.num_rows for row in written(large, None)] == [2, 2, 1]
    assert [row.num_rows for row in written(large, str(tmp_path))] == [5]
    small = [(0, 1, bytearray(1))] * (HANDED_OVER_ROWS + 1)
    for folder in (None, str(tmp_path)):
        assert [row.num_rows for row in written(small, folder)] == [HANDED_OVER_ROWS, 1]


def test_each_attempt_at_a_task_has_its_own_file(tmp_path: Path) -> None:
    [first] = written([(0, 1, bytearray(b"first"))], str(tmp_path))
    [second] = written([(0, 1, bytearray(b"second"))], str(tmp_path))
    with EncodedReader() as reader:
        assert [one.data for row in (second, first) for one in reader.batches(row)] == [b"second", b"first"]


def test_a_file_that_is_too_short_is_told(tmp_path: Path) -> None:
    [rows] = written([(0, 1, bytearray(b"12345"))], str(tmp_path))
    [file] = tmp_path.iterdir()
    file.write_bytes(b"1234")
    with EncodedReader() as reader, pytest.raises(OSError, match="ends before byte 5"):
        list(reader.batches(rows))
