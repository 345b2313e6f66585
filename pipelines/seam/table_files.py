"""An archive's table at its newest version, as a stream needs it: offsets, bounds of its files, rows of a range.

Read by delta-rs, without a JVM. Archived rows never change, so that any later version has the same rows of a range.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.seam.history_batches import FileBounds
from headwater.pipelines.seam.marks import APPEND, PREFIX
from headwater.pipelines.seam.recorded_gaps import Gaps, recorded_gaps
from headwater.pipelines.seam.table_marks import table_marks
from headwater.pipelines.seam.table_offsets import SeamError, TableOffsets, offsets_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

__all__ = ["PLACE_COLUMNS", "TableFiles", "range_rows", "table_fields", "table_files"]

#: The columns of a record's place and key, which every archive has.
PLACE_COLUMNS: Final = ("_partition", "_offset", "_timestamp", "_key")
# A file that a plan names can be vacuumed before it is read: the newest version has its rows elsewhere.
ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The offsets of a table, the bounds of its files, and the gaps below its offsets."""

    offsets: TableOffsets
    files: tuple[FileBounds, ...]
    gaps: Gaps = field(default_factory=dict)


def table_files(path: str) -> TableFiles:
    """The newest state of an archive's table. Raises SeamError."""
    for attempt in range(ATTEMPTS):
        table, offsets = _opened(path)
        try:
            gaps = recorded_gaps(table_marks(table, PREFIX), offsets.topic_id)
        except (OSError, ValueError) as error:
            # Delta cleans its log up when it writes a checkpoint: a newer version has the actions elsewhere.
            if attempt == ATTEMPTS - 1:
                raise _unreadable(path, error) from None
        else:
            return TableFiles(offsets, _bounds(table), gaps)
    raise AssertionError("unreachable")


def table_fields(path: str) -> dict[str, Any]:
    """The table's columns as Spark's JSON of a struct. Raises SeamError."""
    table, _ = _opened(path)
    found: dict[str, Any] = json.loads(table.schema().to_json())
    return found


def _opened(path: str) -> tuple[DeltaTable, TableOffsets]:
    """An archive's table at its newest version, and its offsets. Raises SeamError also for one without a history."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(path)
        offsets = offsets_of(table, path)
    except TableNotFoundError:
        raise SeamError(f"there is no table at {path}") from None
    except (DeltaError, OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if offsets.mode != APPEND:
        raise SeamError(
            f"the table {path} keeps the last record of each key: its history has no offsets, and a stream begins at "
            "the log's start, without the table"
        )
    return table, offsets


def range_rows(path: str, partition: int, start: int, end: int) -> pa.Table:
    """The rows [start, end) of a partition by offset, all in memory. Raises SeamError."""
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    place = ds.field("_partition") == partition
    wanted = place & (ds.field("_offset") >= start) & (ds.field("_offset") < end)
    for attempt in range(ATTEMPTS):
        try:
            return DeltaTable(path).to_pyarrow_dataset().to_table(filter=wanted).sort_by("_offset")
        except FileNotFoundError as error:
            if attempt == ATTEMPTS - 1:
                raise _unreadable(path, error) from None
        except (DeltaError, OSError, ValueError) as error:
            raise _unreadable(path, error) from None
    raise AssertionError("unreachable")


def _unreadable(path: str, error: Exception) -> SeamError:
    return SeamError(f"the table {path} cannot be read: {str(error).splitlines()[0]}")


def _bounds(table: DeltaTable) -> tuple[FileBounds, ...]:
    import pyarrow as pa

    actions = pa.table(table.get_add_actions(flatten=True))

    def bounds(column: str) -> list[tuple[float, float]]:
        sides = []
        for side, unknown in (("min", -math.inf), ("max", math.inf)):
            name = f"{side}.{column}"
            values = actions[name] if name in actions.column_names else pa.nulls(len(actions), pa.int64())
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.timestamp("us")).cast(pa.int64())
                sides.append([unknown if each is None else each / 1000 for each in values.to_pylist()])
            else:
                sides.append([unknown if each is None else each for each in values.to_pylist()])
        return list(zip(*sides, strict=True))

    columns = zip(bounds("_partition"), bounds("_offset"), bounds("_timestamp"), strict=True)
    return tuple(FileBounds(*each) for each in columns)
