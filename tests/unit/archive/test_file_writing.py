"""A task's file is whole and as its action says; what is in doubt is beside it, and a failed task has returned none."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.logtier.records.columns import column_schema
from headwater.pipelines.archive import file_writing
from headwater.pipelines.archive.arrow_rows import ArrowRows, ValueKind
from headwater.pipelines.archive.earlier_rounds import file_prefix
from headwater.pipelines.archive.file_writing import UNDECODED, RangeWriter, WrittenRange, write_ranges
from headwater.pipelines.datasource import reading
from headwater.pipelines.datasource.json_fields import TAKEN, JsonFields, field_column
from headwater.pipelines.datasource.offsets import OffsetRange
from headwater.pipelines.datasource.options import ReadOptions
from headwater.pipelines.datasource.reading import RangePartition
from headwater.pipelines.file_systems.file_system import FileSystemError
from headwater.pipelines.file_systems.local import LocalFiles

OPTIONS = ReadOptions.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "flights"})
PART = RangePartition((OffsetRange("flights", 0, 0, 100),))
RECORDS = column_schema(include_headers=True)
COLUMNS: list[Any] = [
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", "UTC")),
    pa.field("_key", pa.binary()),
    pa.field("id", pa.int64()),
    pa.field("_headers", RECORDS.field("headers").type),
    pa.field("_error", pa.string()),
    pa.field("_value", pa.binary()),
]
SCHEMA = pa.schema(COLUMNS)
FIELDS = JsonFields((("id", "bigint"),))
ROWS = ArrowRows(ValueKind.JSON, SCHEMA, ("id",), fields=FIELDS)


def batch_of(first: int, ids: Sequence[int | None], *, value: bytes = b"", headers: Any = None) -> pa.RecordBatch:
    """Records from an offset on. A value that was not parsed has no id."""
    count = len(ids)
    columns: dict[str, Any] = {
        "key": [None] * count,
        "value": [value or b"%d" % offset for offset in range(first, first + count)],
        "topic": ["flights"] * count,
        "partition": [0] * count,
        "offset": list(range(first, first + count)),
        "timestamp": list(range(count)),
        "timestampType": [0] * count,
        "headers": [headers] * count,
    }
    arrays: list[Any] = [pa.array(columns[column.name], column.type) for column in RECORDS]
    arrays += [pa.array([id_ is not None for id_ in ids], pa.bool_()), pa.array(ids, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, names=[*RECORDS.names, TAKEN, field_column(0)])


class Task:
    """Writes given batches to a table in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = folder / "table"
        self.batches: list[pa.RecordBatch | Exception] = []
        self.writer = RangeWriter(str(self.table), LocalFiles(), ROWS, OPTIONS, "round")
        monkeypatch.setattr(reading, "read_range", self._read)

    def _read(self, part: RangePartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        assert (part, options) == (PART, OPTIONS)
        for each in self.batches:
            if isinstance(each, Exception):
                raise each
            yield each

    def write(self, *batches: pa.RecordBatch | Exception) -> WrittenRange:
        self.batches = list(batches)
        return self.writer.write(PART)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.table)) for path in self.table.rglob("*") if path.is_file())


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task that reads nothing yet."""
    return Task(tmp_path, monkeypatch)


def action(written: WrittenRange) -> dict[str, Any]:
    """The `add` action of a file, and nothing beside it."""
    found = json.loads(written.add)
    assert list(found) == ["add"]
    return cast(dict[str, Any], found["add"])


def group_sizes(path: Path | str) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_rows_of_all_batches_are_in_one_file_with_the_tables_columns(task: Task) -> None:
    written = task.write(batch_of(0, [5, 3]), batch_of(2, [9]), batch_of(10, [4, 7, 1]))
    assert task.files() == [action(written)["path"]]
    file = pq.ParquetFile(task.table / action(written)["path"])
    assert file.schema_arrow.equals(SCHEMA)
    rows = file.read().to_pydict()
    assert rows["id"] == [5, 3, 9, 4, 7, 1]
    assert rows["_offset"] == [0, 1, 2, 10, 11, 12]
    assert rows["_partition"] == [0] * 6
    assert rows["_value"] == rows["_error"] == rows["_headers"] == [None] * 6
    assert (written.rows, written.undecoded, written.undecoded_rows) == (6, "", 0)


def test_the_action_says_of_the_file_what_is_in_it(task: Task) -> None:
    before_ms = int(time.time() * 1000)
    written = task.write(batch_of(0, [5, 3]), batch_of(2, [9]))
    add = action(written)
    path = task.table / add["path"]
    assert add["size"] == path.stat().st_size
    assert before_ms <= add["modificationTime"] <= int(time.time() * 1000)
    assert add["dataChange"] is True
    assert add["partitionValues"] == {}
    assert set(add) == {"path", "size", "modificationTime", "dataChange", "partitionValues", "stats"}
    statistics = json.loads(add["stats"])
    assert statistics["numRecords"] == written.rows == pq.read_metadata(path).num_rows == 3
    assert (statistics["minValues"]["id"], statistics["maxValues"]["id"]) == (3, 9)
    assert (statistics["minValues"]["_offset"], statistics["maxValues"]["_offset"]) == (0, 2)
    assert statistics["nullCount"] == {
        "_partition": 0,
        "_offset": 0,
        "_timestamp": 0,
        "_key": 3,
        "id": 0,
        "_headers": 3,
        "_error": 3,
        "_value": 3,
    }


def test_statistics_are_of_as_many_columns_as_the_table_says(task: Task) -> None:
    task.writer = RangeWriter(str(task.table), LocalFiles(), ROWS, OPTIONS, "round", indexed_columns=2)
    statistics = json.loads(action(task.write(batch_of(0, [5])))["stats"])
    assert statistics["nullCount"] == {"_partition": 0, "_offset": 0}


def test_files_are_compressed_as_their_name_says(task: Task) -> None:
    name = action(task.write(batch_of(0, [5])))["path"]
    assert name.startswith(file_prefix("round"))
    assert name.endswith("-c000.snappy.parquet")
    group = pq.read_metadata(task.table / name).row_group(0)
    assert {group.column(number).compression for number in range(group.num_columns)} == {"SNAPPY"}


def test_each_attempt_has_a_file_of_its_own(task: Task) -> None:
    names = {action(task.write(batch_of(0, [5])))["path"] for _ in range(3)}
    assert task.files() == sorted(names)
    assert len(names) == 3


def test_a_path_may_be_a_url(task: Task) -> None:
    task.writer = RangeWriter(f"file://{task.table}/", LocalFiles(), ROWS, OPTIONS, "round")
    written = task.write(batch_of(0, [5, None]))
    assert (task.table / action(written)["path"]).is_file()
    assert LocalFiles().entry(written.undecoded) is not None
    assert len(task.files()) == 2


# -- records in doubt --------------------------------------------------------------------------------------------------


def test_records_in_doubt_are_in_a_file_beside_the_tables(task: Task) -> None:
    written = task.write(batch_of(0, [5, None, 3]), batch_of(3, [9]), batch_of(4, [None, None]))
    assert (written.rows, written.undecoded_rows) == (3, 3)
    table, beside = pq.read_table(task.table / action(written)["path"]), pq.read_table(written.undecoded)
    assert table.column("_offset").to_pylist() == [0, 2, 3]
    assert beside.schema.equals(RECORDS)
    assert beside.column("offset").to_pylist() == [1, 4, 5]
    assert beside.column("value").to_pylist() == [b"1", b"4", b"5"]
    assert str(Path(written.undecoded).parent) == f"{task.table}/{UNDECODED}/round"
    assert task.files() == sorted([action(written)["path"], str(Path(written.undecoded).relative_to(task.table))])


def test_the_folder_of_records_in_doubt_is_hidden_from_readers_of_the_table(task: Task) -> None:
    assert UNDECODED.startswith("_")
    written = task.write(batch_of(0, [None]))
    assert Path(written.undecoded).relative_to(task.table).parts[0].startswith("_")


def test_without_rows_beyond_doubt_there_is_no_file_in_the_table(task: Task) -> None:
    written = task.write(batch_of(0, [None, None]))
    assert (written.add, written.rows, written.undecoded_rows) == ("", 0, 2)
    assert task.files() == [str(Path(written.undecoded).relative_to(task.table))]


@pytest.mark.parametrize("batches", [[], [batch_of(0, [])]], ids=["no batch", "an empty batch"])
def test_without_records_there_is_no_file_at_all(task: Task, batches: list[pa.RecordBatch]) -> None:
    assert task.write(*batches) == WrittenRange()
    assert task.files() == []


@pytest.mark.parametrize("has_headers", [False, True])
def test_headers_of_records_in_doubt_are_reported_and_kept(task: Task, has_headers: bool) -> None:
    headers = [{"key": "h", "value": b"1"}]
    decoded = batch_of(0, [5], headers=headers)
    written = task.write(decoded, batch_of(1, [None], headers=headers if has_headers else None), batch_of(2, [None]))
    assert written.has_headers is has_headers
    kept = pq.read_table(written.undecoded).column("headers").to_pylist()
    assert kept == [headers if has_headers else None, None]
    assert pq.read_table(task.table / action(written)["path"]).column("_headers").to_pylist() == [headers]


# -- row groups --------------------------------------------------------------------------------------------------------


def test_row_groups_end_as_soon_as_they_have_enough_rows(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writing, "GROUP_ROWS", 5)
    batches = [batch_of(3 * number, [number] * 3) for number in range(7)]
    written = task.write(*batches)
    path = task.table / action(written)["path"]
    assert group_sizes(path) == [6, 6, 6, 3]
    assert pq.read_table(path).column("_offset").to_pylist() == list(range(21))
    statistics = json.loads(action(written)["stats"])
    assert (statistics["minValues"]["id"], statistics["maxValues"]["id"], statistics["numRecords"]) == (0, 6, 21)
    assert action(written)["size"] == path.stat().st_size


def test_row_groups_end_as_soon_as_they_have_enough_bytes(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    task.writer = RangeWriter(
        str(task.table), LocalFiles(), dataclasses.replace(ROWS, keeps_value=True), OPTIONS, "round"
    )
    monkeypatch.setattr(file_writing, "GROUP_BYTES", 10_000)
    batches = [batch_of(number, [number], value=bytes(4000)) for number in range(7)]
    assert group_sizes(task.table / action(task.write(*batches))["path"]) == [3, 3, 1]


def test_a_slice_counts_for_its_own_bytes_only(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writing, "GROUP_BYTES", 100_000)
    whole = batch_of(0, [1] * 10_000)
    slices = [whole.slice(first, 10) for first in range(0, 100, 10)]
    assert group_sizes(task.table / action(task.write(*slices))["path"]) == [100]


def test_a_last_group_of_the_full_size_is_followed_by_no_empty_one(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writing, "GROUP_ROWS", 2)
    written = task.write(batch_of(0, [1, 2]), batch_of(2, [None, None]))
    assert group_sizes(task.table / action(written)["path"]) == [2]
    assert group_sizes(written.undecoded) == [2]


def test_the_rows_of_both_files_are_grouped_apart(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_writing, "GROUP_ROWS", 3)
    written = task.write(*(batch_of(4 * number, [1, None, None, None]) for number in range(4)))
    assert group_sizes(task.table / action(written)["path"]) == [3, 1]
    assert group_sizes(written.undecoded) == [3, 3, 3, 3]


# -- failures ----------------------------------------------------------------------------------------------------------


class BrokerGone(Exception):
    """As the client reports it in the middle of a range."""


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What Python says of exceptions that nobody can catch, such as those of `__del__`."""
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: said.append(f"{each.object}: {each.exc_value!r}"))
    yield said
    gc.collect()  # before the tests' own hook, which would blame another test, is back


def failed(task: Task, *batches: pa.RecordBatch | Exception, error: type[Exception] = BrokerGone) -> None:
    """Write batches that fail."""
    with pytest.raises(error):
        task.write(*batches)


@pytest.mark.parametrize("group_rows", [1, 1000])
@pytest.mark.parametrize("ids", [[1, 2], [None, None], [1, None]], ids=["decoded", "in doubt", "both"])
def test_a_read_that_fails_half_way_returns_nothing(
    task: Task, unraisable: list[str], monkeypatch: pytest.MonkeyPatch, ids: list[int | None], group_rows: int
) -> None:
    monkeypatch.setattr(file_writing, "GROUP_ROWS", group_rows)
    failed(task, batch_of(0, ids), batch_of(2, ids), BrokerGone("connection lost"), batch_of(4, ids))
    assert task.files() == []


def test_nothing_is_written_to_the_file_of_a_failed_task_once_it_is_closed(task: Task, unraisable: list[str]) -> None:
    """A writer of Parquet that was not closed writes its footer when it is thrown away."""
    failed(task, batch_of(0, [1, None]), BrokerGone("connection lost"))
    gc.collect()
    assert unraisable == []


class Kept(LocalFiles):
    """Files that cannot be deleted."""

    def delete(self, path: str) -> None:
        raise FileSystemError(f"{path} cannot be deleted")


def test_a_file_that_a_failed_task_cannot_delete_is_no_whole_file_of_some_of_its_rows(
    task: Task, unraisable: list[str]
) -> None:
    task.writer = dataclasses.replace(task.writer, files=Kept())
    failed(task, batch_of(0, [1, None]), BrokerGone("connection lost"))
    gc.collect()
    assert len(task.files()) == 2
    for name in task.files():
        with pytest.raises(pa.ArrowInvalid):
            pq.read_metadata(task.table / name)


def test_a_batch_that_cannot_become_rows_fails_the_task(task: Task, unraisable: list[str]) -> None:
    broken = batch_of(2, [3, 4]).drop_columns([field_column(0)])
    failed(task, batch_of(0, [1, 2]), broken, error=KeyError)


class FullDisk(LocalFiles):
    """Files that have no room after some bytes."""

    @contextlib.contextmanager
    def writer(self, path: str) -> Iterator[BinaryIO]:
        with super().writer(path) as file:
            yield cast("BinaryIO", Full(file))


class Full:
    """A file on a full disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: memoryview) -> int:
        self._file.write(data[:2])
        self._file.flush()
        raise OSError(28, "No space left on device")


def test_a_disk_that_is_full_fails_the_task_which_leaves_nothing_on_it(task: Task, unraisable: list[str]) -> None:
    task.writer = dataclasses.replace(task.writer, files=FullDisk())
    with pytest.raises(OSError, match="No space left"):
        task.write(batch_of(0, [1, None]))
    assert task.files() == []


def test_an_attempt_after_a_failed_one_writes_all_of_the_range(task: Task, unraisable: list[str]) -> None:
    task.writer = dataclasses.replace(task.writer, files=Kept())
    failed(task, batch_of(0, [1, 2]), BrokerGone("connection lost"))
    left = set(task.files())
    assert left
    written = task.write(batch_of(0, [1, 2]), batch_of(2, [3]))
    assert action(written)["path"] not in left
    assert pq.read_table(task.table / action(written)["path"]).column("id").to_pylist() == [1, 2, 3]


# -- tasks of a job ----------------------------------------------------------------------------------------------------


def test_each_part_of_a_job_has_its_own_files(task: Task) -> None:
    task.batches = [batch_of(0, [1, None])]
    write = write_ranges(task.writer)
    found = list(write(iter([PART, PART, PART])))
    assert len({action(each)["path"] for each in found}) == len({each.undecoded for each in found}) == 3
    assert len(task.files()) == 6
    assert [(each.rows, each.undecoded_rows) for each in found] == [(1, 1)] * 3


def test_what_tasks_get_and_return_can_be_sent(task: Task) -> None:
    assert pickle.loads(pickle.dumps(task.writer)) == task.writer
    written = task.write(batch_of(0, [1, None]))
    assert pickle.loads(pickle.dumps(written)) == written
