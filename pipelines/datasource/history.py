"""The history of a topic in its archive's table, for a stream whose log begins later."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headwater.pipelines.datasource.errors import OptionError, SourceError
from headwater.pipelines.datasource.offsets import Offsets
from headwater.pipelines.seam.history_batches import first_offset, history_ends
from headwater.pipelines.seam.table_files import PLACE_COLUMNS, TableFiles, range_rows, table_fields, table_files
from headwater.pipelines.seam.table_offsets import SeamError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARCHIVED", "History", "HistoryPartition", "archived_columns", "read_history", "with_no_history"]

#: The column with a row of the table; null for a record of the log.
ARCHIVED: Final = "archived"
#: Offsets of a task, which holds its rows in memory.
TASK_OFFSETS: Final = 100_000
#: Offsets of a micro-batch of history, if no option says so.
BATCH_OFFSETS: Final = 1_000_000

_T = TypeVar("_T")


@dataclass
class HistoryPartition(InputPartition):
    """One task's part of a read: the rows [start, end) of a partition in a table."""

    path: str
    topic: str
    partition: int
    start: int
    end: int

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end}) of {self.path}"


def archived_columns(path: str) -> StructType:
    """The table's columns without place and key. Raises OptionError."""
    try:
        found = StructType.fromJson(table_fields(path))
    except SeamError as error:
        raise OptionError(f"option archiveTable: {error}") from None
    return StructType([field for field in found.fields if field.name not in PLACE_COLUMNS])


class History:
    """What a table has of one topic, as of its first use or the last `renew`.

    Renewing moves the seam, not the rows: a range that both the log and the table have is the same in both.
    """

    def __init__(self, path: str, topic: str) -> None:
        self.path = path
        self._topic = topic
        self._state: TableFiles | None = None

    def renew(self, topic_id: uuid.UUID | None, latest: Callable[[Offsets], Offsets]) -> None:
        """Read the table. Raises SourceError if it is not of this topic, or has offsets beyond the log's end."""
        found = _told(lambda: table_files(self.path))
        if found.offsets.topic != self._topic or (
            topic_id is not None and uuid.UUID(found.offsets.topic_id) != topic_id
        ):
            raise SourceError(
                f"the table {self.path} is of topic {found.offsets.topic!r} with the id {found.offsets.topic_id}, and "
                f"{self._topic!r} has the id {topic_id}: a topic made anew needs another archive"
            )
        seams = {(self._topic, partition): end for partition, end in found.offsets.ends.items()}
        ends = latest(seams)
        for key, seam in sorted(seams.items()):
            if seam > ends[key]:
                raise SourceError(
                    f"the table {self.path} has {key[0]}-{key[1]} up to offset {seam}, but its log ends at {ends[key]}"
                )
        self._state = found

    @property
    def is_known(self) -> bool:
        """Whether the table was read."""
        return self._state is not None

    def topic_id(self) -> uuid.UUID:
        """The id of the topic that the table is of."""
        return uuid.UUID(self._known().offsets.topic_id)

    def _known(self) -> TableFiles:
        assert self._state is not None, "renew comes first"
        return self._state

    def seams(self) -> Offsets:
        """The next offset of each partition: all before are in the table."""
        return {(self._topic, partition): end for partition, end in self._known().offsets.ends.items()}

    def first(self, log_starts: Mapping[tuple[str, int], int]) -> Offsets:
        """The first offsets of the table and the log together."""
        files, seams = self._known().files, self.seams()
        return {
            key: min(start, first_offset(files, key[1], seams[key])) if key in seams else start
            for key, start in log_starts.items()
        }

    def batch_end(self, known: Offsets, end: Offsets, most: int | None) -> Offsets | None:
        """The end of the next micro-batch, which has history alone; None if no partition is below the seam.

        No partition goes beyond `end`, and those at the seam stay: their records are later than all history.
        """
        seams = {
            key: min(seam, end[key]) for key, seam in self.seams().items() if key in known and known[key] < end[key]
        }
        below = {key: seam for key, seam in seams.items() if known[key] < seam}
        if not below:
            return None
        found = history_ends(
            self._known().files,
            {key[1]: known[key] for key in below},
            {key[1]: seam for key, seam in below.items()},
            most or BATCH_OFFSETS,
        )
        return known | {(self._topic, partition): offset for partition, offset in found.items()}

    def split(self, begins: Offsets, ends: Offsets) -> tuple[list[HistoryPartition], Offsets]:
        """The tasks for what lies below the seam, and where the log's part of each range begins."""
        seams, tasks, left = self.seams(), [], dict(begins)
        for key, begin in sorted(begins.items()):
            seam = min(seams.get(key, 0), ends[key])
            if begin < seam:
                tasks += [
                    HistoryPartition(self.path, *key, low, min(low + TASK_OFFSETS, seam))
                    for low in range(begin, seam, TASK_OFFSETS)
                ]
                left[key] = seam
        return tasks, left


def _told(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except SeamError as error:
        raise SourceError(str(error)) from None


def with_no_history(batch: pa.RecordBatch, columns: StructType) -> pa.RecordBatch:
    """Records of the log, with a null in place of the table's row."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    row: Any = to_arrow_type(columns, timezone="UTC")
    return batch.append_column(ARCHIVED, pa.nulls(batch.num_rows, row))


def read_history(part: HistoryPartition, columns: StructType, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a range in the columns of the source, by offset; `columns` are those of the table's row."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    rows = _told(lambda: range_rows(part.path, part.partition, part.start, part.end)).combine_chunks()
    count = rows.num_rows
    fields: list[pa.Field[Any]] = list(to_arrow_schema(columns, timezone="UTC"))

    def column(name: str | None, type_: Any) -> Any:
        if name is None or name not in rows.column_names:
            return pa.nulls(count, type_)
        found = rows[name].cast(type_)
        return pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], type_)

    names = set(rows.column_names)
    # Of a table without `_error` the column `value` is the record's own, never a field of a decoded value.
    value = "_value" if "_value" in names else "value" if "_error" not in names else None
    origins = {"key": "_key", "value": value, "partition": "_partition", "offset": "_offset",
               "timestamp": "_timestamp", "headers": "_headers"}  # fmt: skip
    arrays: list[pa.Array[Any]] = []
    target = to_arrow_schema(schema, timezone="UTC")
    for field in target:
        if field.name == ARCHIVED:
            struct = [column(each.name, each.type) for each in fields]
            arrays.append(pa.StructArray.from_arrays(struct, fields=fields))
        elif field.name == "topic":
            arrays.append(pa.array([part.topic] * count, field.type))
        else:
            arrays.append(column(origins.get(field.name), field.type))
    yield from pa.Table.from_arrays(arrays, schema=target).to_batches(max_chunksize=10_000)
