"""The history of a topic in its archive's table, for a stream whose log begins later."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headwater.pipelines.datasource.errors import OptionError, SourceError
from headwater.pipelines.datasource.offsets import Offsets, TopicPartition
from headwater.pipelines.seam.history_batches import first_offset, history_ends
from headwater.pipelines.seam.recorded_gaps import OffsetPart, parted
from headwater.pipelines.seam.table_files import PLACE_COLUMNS, TableFiles, range_rows, table_fields, table_files
from headwater.pipelines.seam.table_offsets import SeamError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ARCHIVED",
    "History",
    "HistoryPartition",
    "LogPart",
    "archived_columns",
    "read_history",
    "with_no_history",
]

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


@dataclass(frozen=True, slots=True)
class LogPart:
    """Offsets [start, end) that the table lacks; `is_gap` if it has later ones."""

    key: TopicPartition
    start: int
    end: int
    is_gap: bool = False

    def lost(self, first: int, path: str) -> str | None:
        """What of it a log that begins at `first` has lost; None if nothing."""
        if self.start >= min(first, self.end):
            return None
        topic, partition = self.key
        deleted = f"{topic}-{partition}: the offsets {self.start} to {min(first, self.end) - 1} were deleted"
        if self.is_gap:
            return f"{deleted} (by retention), and the archive's table {path} has a gap there"
        return f"{deleted} (by retention) before they were read"


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

    def __init__(self, path: str, topic: str, read: Callable[[str], TableFiles] = table_files) -> None:
        self.path = path
        self._topic = topic
        self._read = read
        self._state: TableFiles | None = None

    def renew(
        self,
        topic_id: uuid.UUID | None,
        latest: Callable[[Offsets], Offsets],
        pause: Callable[[], None],
        attempts: int,
    ) -> None:
        """Read the table. Raises SourceError if it is not of this topic, or has offsets beyond the log's end.

        The log's ends are asked for up to `attempts` times: a newly elected leader may not know its high watermark yet.
        """
        found = _told(lambda: self._read(self.path))
        if found.offsets.topic != self._topic or (
            topic_id is not None and uuid.UUID(found.offsets.topic_id) != topic_id
        ):
            raise SourceError(
                f"the table {self.path} is of topic {found.offsets.topic!r} with the id {found.offsets.topic_id}, and "
                f"{self._topic!r} has the id {topic_id}: a topic made anew needs another archive"
            )
        seams = {(self._topic, partition): end for partition, end in found.offsets.ends.items()}
        for attempt in range(1, attempts + 1):
            ends = latest(seams)
            beyond = sorted(key for key, seam in seams.items() if seam > ends[key])
            if not beyond:
                break
            if attempt < attempts:
                pause()
                continue
            key = beyond[0]
            raise SourceError(
                f"the table {self.path} has {key[0]}-{key[1]} up to offset {seams[key]}, but its log ends at "
                f"{ends[key]}: records of it are lost"
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

    @property
    def version(self) -> int:
        """The table's version."""
        return self._known().offsets.version

    def seams(self) -> Offsets:
        """The next offset of each partition: all before are in the table."""
        return {(self._topic, partition): end for partition, end in self._known().offsets.ends.items()}

    def first(self, log_starts: Mapping[TopicPartition, int]) -> Offsets:
        """The first offsets of the table and the log together."""
        seams = self.seams()
        return {
            key: min(start, self._first(key[1], seams[key])) if key in seams else start
            for key, start in log_starts.items()
        }

    def _first(self, partition: int, seam: int) -> int:
        outside, _ = parted(0, seam, self._known().gaps.get(partition, ()))
        return max(first_offset(self._known().files, partition, seam), outside[0][0] if outside else seam)

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

    def split(self, begins: Offsets, ends: Offsets) -> tuple[list[HistoryPartition], list[LogPart]]:
        """The tasks for what the table has, and what only the log can have: what is in a gap, or above the seam."""
        seams, tasks, left = self.seams(), [], []
        for key, begin in sorted(begins.items()):
            seam = max(begin, min(seams.get(key, 0), ends[key]))
            outside, inside = parted(begin, seam, self._known().gaps.get(key[1], ()))
            tasks += [
                HistoryPartition(self.path, *key, low, min(low + TASK_OFFSETS, end))
                for start, end in outside
                for low in range(start, end, TASK_OFFSETS)
            ]
            left += [LogPart(key, *part, is_gap=True) for part in inside]
            if seam < ends[key]:
                left.append(LogPart(key, seam, ends[key]))
        return tasks, left

    def gap_at(self, key: TopicPartition, offset: int) -> OffsetPart | None:
        """The rest of the gap that has an offset."""
        seam = self.seams().get(key, 0)
        _, inside = parted(offset, max(offset, seam), self._known().gaps.get(key[1], ()))
        return inside[0] if inside and inside[0][0] == offset else None


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
